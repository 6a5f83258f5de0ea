"""``kernbench examples``: what is there, what is copied, and that the first ones are README's."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernbench.cli import app
from kernbench.commands.examples import copy, examples
from kernbench.errors import ConfigError

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["examples", *arguments])
    return result.exit_code, result.output


def test_every_file_is_listed_with_what_it_is() -> None:
    code, output = run("list")
    assert code == 0
    assert [*examples()] == re.findall(r"^ *(\S+\.(?:py|yml))\s", output, re.M)
    assert {*examples()} == {
        path.relative_to(ROOT / "examples").as_posix()
        for path in (ROOT / "examples").rglob("*.*")
        if "__pycache__" not in path.parts
    }
    assert max(map(len, output.splitlines())) <= 80


@pytest.mark.parametrize("name", [name for name in examples() if "/" in name and name.endswith(".py")])
def test_the_command_at_the_head_of_an_example_is_that_of_its_copy(name: str) -> None:
    head = ast.get_docstring(ast.parse(examples()[name].read_text())) or ""
    commands = [
        line.split() for line in head.splitlines() if line.strip().startswith(("kernbench run ", "python -m pytest"))
    ]
    assert any(argument in f"examples/{name}" for argument in commands[0] if argument.startswith("examples/"))


def test_the_first_ones_are_readmes() -> None:
    blocks = dict(re.findall(r"```python file=(\S+)\n(.*?)```", (ROOT / "README.md").read_text(), re.S))
    for name, path in examples().items():
        if name.startswith("first/"):
            assert path.read_text().split('"""\n\n', 1)[1] == blocks[path.name]


@pytest.mark.parametrize(
    ("names", "count"),
    [(("first",), 3), (("first/",), 3), (("sum",), 1), (("first/sum.py", "early"), 2), ((), len(examples()))],
)
def test_copies(names: tuple[str, ...], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, output = run("copy", *names)
    copies = {path.relative_to("examples").as_posix(): path.read_bytes() for path in Path("examples").rglob("*.*")}
    assert (code, len(copies)) == (0, count)
    assert sorted(output.splitlines()) == sorted(f"written: examples/{name}" for name in copies)
    assert copies == {name: examples()[name].read_bytes() for name in copies}
    assert run("copy", *names)[0] == 0  # the same again


def test_a_changed_copy_stays(tmp_path: Path) -> None:
    mine = tmp_path / "first" / "sum.py"
    mine.parent.mkdir()
    mine.write_text("mine\n")
    with pytest.raises(ConfigError, match="is there already, and differs"):
        copy(("first",), tmp_path)
    assert [*tmp_path.rglob("*.py")] == [mine]
    assert mine.read_text() == "mine\n"


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no example 'nope'; there are ci/split_linear\.py"):
        copy(("nope",), tmp_path / "x")
    assert not (tmp_path / "x").exists()
