"""Where the configuration files that come with kernbench are, and how a name or a path becomes a file.

An installed wheel carries them as ``kernbench/configs``; in a source tree they are ``configs/`` beside the package.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from kernbench.errors import ConfigError
from kernbench.input_files import expanded, is_directory, is_file, shown_path
from kernbench.plugins.manager import PluginManager, default_manager
from kernbench.suggestions import nearest
from kernbench.topology.problems import describe

SUFFIXES = (".yaml", ".yml")


@cache
def config_root() -> Path:
    """The directory of the shipped configuration files. Raises ConfigError when the installation lacks it."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "configs", package.parent / "configs"):
        if candidate.is_dir():
            return candidate
    raise ConfigError(
        f"kernbench's configuration files are missing: neither {package}/configs nor {package.parent}/configs"
    )


def shipped_names(kind: str) -> list[str]:
    """Names of the shipped files of one kind (``systems``, ``devices``, ``fabrics``), sorted."""
    return sorted(path.stem for path in (config_root() / kind).glob("*.yaml"))


def added_systems(plugins: PluginManager | None = None) -> dict[str, Path]:
    """The systems of other distributions and of plugins (default: the installed ones), by name."""
    found = (default_manager() if plugins is None else plugins).systems()
    shipped = shipped_names("systems")
    for name, (path, owner) in found.items():
        if name in shipped:
            raise ConfigError(
                f"{owner} brings a system {name!r} ({path}), but a shipped system is called so: rename it"
            )
    return {name: path for name, (path, _) in sorted(found.items())}


def find_config(
    kind: str, name_or_path: str | Path, *, beside: Path | None = None, plugins: PluginManager | None = None
) -> Path:
    """The file that ``name_or_path`` means: a path to a YAML file, or the name of a shipped one or (systems) of a plugin's.

    A relative path is taken from the working directory, or from the directory ``beside`` when one file names another.
    Raises ConfigError, with the shipped names and the nearest of them, when there is no such file.
    """
    text = str(name_or_path)
    singular = kind.removesuffix("s")
    if isinstance(name_or_path, Path) or text.endswith(SUFFIXES) or "/" in text:
        path = expanded(text)
        if beside is not None and not path.is_absolute():
            path = beside / path
        if is_file(path):
            return path
        what = "is a directory, not a file" if is_directory(path) else "does not exist"
        raise ConfigError(f"{singular} file {shown_path(path)} {what}{_suggestion(kind, path.stem)}")
    path = config_root() / kind / f"{text}.yaml"
    if is_file(path):
        return path
    added = added_systems(plugins) if kind == "systems" else {}
    if text in added:
        return added[text]
    suggestion = _suggestion(kind, text, added)
    raise ConfigError(f"no shipped {singular} is called {describe(text)}{suggestion}; or give a YAML file's path")


def _suggestion(kind: str, name: str, added: Iterable[str] = ()) -> str:
    names = [*shipped_names(kind), *added]
    close = nearest(name, names)
    return (f"; did you mean {close!r}?" if close else ".") + f" Shipped {kind}: {', '.join(names)}"


def shipped_systems() -> list[str]:
    """Names of the shipped systems."""
    return shipped_names("systems")


def shipped_devices() -> list[str]:
    """Names of the shipped devices."""
    return shipped_names("devices")


def shipped_fabrics() -> list[str]:
    """Names of the shipped fabrics."""
    return shipped_names("fabrics")
