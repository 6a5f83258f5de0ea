"""``kernbench examples``: list the programs that come with kernbench, and copy them to where they can be changed.

An installed wheel carries them as ``kernbench/examples``; in a source tree they are ``examples/`` beside the package.
"""

from __future__ import annotations

import ast
from pathlib import Path

import click

from kernbench.errors import ConfigError
from kernbench.input_files import exists, is_directory
from kernbench.names import Name
from kernbench.output_files import shown, write_file
from kernbench.suggestions import did_you_mean

FOLDER = "examples"
"""Where copies go unless a folder is given: that of the commands at their heads."""


def examples_root() -> Path:
    """The folder of the examples. Raises :class:`ConfigError` when the installation lacks it."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "examples", package.parent / "examples"):
        if candidate.is_dir():
            return candidate
    raise ConfigError(f"kernbench's examples are missing: neither {package}/examples nor {package.parent}/examples")


def examples() -> dict[str, Path]:
    """The files by name, such as ``real_size/pipeline.py``, sorted: those that are run from the terminal first."""
    root = examples_root()
    found = [path.relative_to(root) for pattern in ("*.py", "*.yml") for path in root.rglob(pattern)]
    return {path.as_posix(): root / path for path in sorted(found, key=lambda path: (len(path.parts) == 1, path))}


def about(path: Path) -> str:
    """What an example is: the first paragraph of its docstring, or of the comment at its head."""
    text = path.read_text(encoding="utf-8")
    head = text.removeprefix("# ") if path.suffix == ".yml" else ast.get_docstring(ast.parse(text)) or ""
    return head.split("\n\n")[0].replace("\n", " ")


def chosen(names: tuple[str, ...]) -> dict[str, Path]:
    """The examples of some names, of files or folders; all without a name. Raises :class:`ConfigError` for an unknown one."""
    known = examples()
    found: dict[str, Path] = {}
    for name in names:
        base = name.rstrip("/").removesuffix(".py")
        fit = {
            each: path
            for each, path in known.items()
            if base in (each.removesuffix(".py"), path.stem) or each.startswith(f"{base}/")
        }
        if not fit:
            raise ConfigError(f"there is no example {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
        found |= fit
    return found if names else known


def copy(names: tuple[str, ...], folder: Path) -> list[Path]:
    """Copy examples into a folder, which is made; gives the files.

    Raises:
        ConfigError: there is no such example, or a file is in the way that is not the same; then nothing is copied.
        OutputError: a file cannot be written.
    """
    targets = {folder / name: path.read_bytes() for name, path in chosen(names).items()}
    for target, content in targets.items():
        if exists(target) and (is_directory(target) or target.read_bytes() != content):
            raise ConfigError(f"{shown(target)} is there already, and differs: copy with --to another folder")
    for target, content in targets.items():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{shown(target.parent)}: cannot be made a folder: {error.strerror}") from error
        write_file(target, content)
    return [*targets]


@click.group()
def command() -> None:
    """Programs to begin with: list them, copy them.

    Each is a program for GPUs as it would run on a cluster, or a plugin; how it is run stands at its head.
    """


@command.command("list")
def list_examples() -> None:
    """List the examples, and what each is."""
    formatter = click.get_current_context().make_formatter()
    formatter.write_dl([(name, about(path)) for name, path in examples().items()])
    click.echo(formatter.getvalue(), nl=False)
    click.echo(f"\nkernbench examples copy [NAME]... copies them to {FOLDER}/")


@command.command("copy")
@click.argument("names", nargs=-1, metavar="[NAME]...", type=Name("NAME", examples))
@click.option("--to", "folder", type=click.Path(file_okay=False, path_type=Path), default=Path(FOLDER), metavar="DIR",
              help=f"Folder for the copies, made if it is not there.  [default: {FOLDER}]")  # fmt: skip
def copy_examples(names: tuple[str, ...], folder: Path) -> None:
    """Copy examples, all or those with a NAME: a file's, or a folder's. A file that is there and differs stays."""
    for path in copy(names, folder):
        click.echo(f"written: {shown(path)}")
