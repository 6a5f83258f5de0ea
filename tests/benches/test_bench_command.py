"""``kernbench bench``: benches are found by entry point, third-party ones too."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kernbench.cli import app
from kernbench.commands.bench import find_bench, find_benches
from kernbench.errors import ConfigError

ROOT = Path(__file__).parents[2]

PLAIN = '''"""Greets from every rank.

Second paragraph.
"""

class Greeting:
    ok = {ok}

    def __init__(self, seen):
        self.seen = seen

    def __str__(self):
        return "hello from " + " ".join(map(str, self.seen))


def run(ctx):
    seen = []
    size = ctx.distributed.get_world_size()
    ctx.multiprocessing.spawn(lambda rank, n: seen.append(f"{{rank}}/{{n}}"), args=(size,), nprocs=size)
    return Greeting(seen)
'''

WITH_COMMAND = '''"""Doubles."""
import click

def run(ctx):
    raise AssertionError("the command runs instead")

@click.command()
@click.option("--times", type=int, default=2)
def command(times):
    click.echo(21 * times)
'''


def kernbench(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Install a distribution with one module as a bench, the way pip would leave it on the path."""
    monkeypatch.syspath_prepend(tmp_path)

    def install(name: str, module: str, source: str | None, dist: str = "acme-benches") -> None:
        info = tmp_path / f"{dist.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[kernbench.benches]\n{name} = {module}\n")
        if source is not None:
            (tmp_path / f"{module}.py").write_text(source)
        monkeypatch.delitem(__import__("sys").modules, module, raising=False)
        importlib.invalidate_caches()

    return install


def test_shipped_benches_are_listed_with_what_they_are_about() -> None:
    result = kernbench("bench", "list")
    assert result.exit_code == 0
    line = next(line for line in result.stdout.splitlines() if line.startswith("ccl_allreduce"))
    assert line.split(maxsplit=2)[1:] == [
        "kernbench",
        "All-reduce over message sizes: times modelled on a described system, values checked to the bit.",
    ]


def test_every_module_with_run_is_an_entry_point_and_kernbench_imports_none() -> None:
    """Read from the sources: what is installed may be older."""
    declared = (ROOT / "pyproject.toml").read_text().partition('[project.entry-points."kernbench.benches"]\n')[2]
    benches = [
        path.stem for path in sorted((ROOT / "kernbench" / "benches").glob("*.py")) if "\ndef run(" in path.read_text()
    ]
    assert declared.partition("\n\n")[0].splitlines() == [f'{name} = "kernbench.benches.{name}"' for name in benches]
    importing = re.compile(r"^\s*(from|import) (kernbench\.)?benches\b", re.MULTILINE)
    others = [path for path in (ROOT / "kernbench").rglob("*.py") if ROOT / "kernbench" / "benches" not in path.parents]
    assert not [path for path in others if importing.search(path.read_text())]


def test_the_short_name_is_that_of_the_same_modules() -> None:
    """A program that replaces ``benches.ccl_allreduce.worker`` replaces the one that ``kernbench bench`` runs."""
    for name in ("benches.ccl_allreduce", "benches.harness.collective"):
        module = importlib.import_module(f"kernbench.{name}")
        assert importlib.import_module(name) is module
        assert (module.__name__, module.__spec__.name) == (f"kernbench.{name}",) * 2
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'benches\.missing'"):
        importlib.import_module("benches.missing")


def test_every_shipped_bench_can_be_loaded() -> None:
    for bench in find_benches():
        if bench.distribution == "kernbench":
            assert callable(bench.load().run)


def test_a_third_party_bench_is_listed_and_runs(install) -> None:  # type: ignore[no-untyped-def]
    install("greet", "acme_greet", PLAIN.format(ok=True))
    rows = [line.split(maxsplit=2) for line in kernbench("bench", "list").stdout.splitlines()]
    assert ["greet", "acme-benches", "Greets from every rank."] in rows
    result = kernbench("bench", "run", "greet", "-g", "3")
    assert (result.exit_code, result.stdout) == (0, "hello from 0/3 1/3 2/3\n")


def test_what_is_not_ok_exits_with_1(install) -> None:  # type: ignore[no-untyped-def]
    install("greet", "acme_sad", PLAIN.format(ok=False))
    assert kernbench("bench", "run", "greet", "--ranks", "1").exit_code == 1


def test_a_bench_with_a_command_gets_its_own_arguments(install) -> None:  # type: ignore[no-untyped-def]
    install("double", "acme_double", WITH_COMMAND)
    assert kernbench("bench", "run", "double", "--times", "3").stdout == "63\n"
    assert "--times" in kernbench("bench", "run", "double", "--help").stdout


def test_arguments_reach_the_shipped_bench() -> None:
    result = kernbench("bench", "run", "ccl_allreduce", "-b", "64", "-e", "64", "-g", "2", "-o", "max")
    assert result.exit_code == 0
    assert " float     max " in result.stdout


def test_a_broken_bench_spoils_only_itself(install) -> None:  # type: ignore[no-untyped-def]
    install("broken", "acme_missing", None)
    listing = kernbench("bench", "list")
    assert listing.exit_code == 0
    assert "(no module acme_missing)" in listing.stdout
    assert "ccl_allreduce" in listing.stdout
    with pytest.raises(ConfigError, match="'broken' of acme-benches cannot be imported from acme_missing"):
        find_bench("broken").load()


def test_a_module_without_run_is_no_bench(install) -> None:  # type: ignore[no-untyped-def]
    install("empty", "acme_empty", '"""Nothing."""\n')
    with pytest.raises(ConfigError, match=r"has no run\(ctx\)"):
        find_bench("empty").load()


def test_two_benches_of_one_name_are_told_apart(install) -> None:  # type: ignore[no-untyped-def]
    install("ccl_allreduce", "acme_other", PLAIN.format(ok=True))
    with pytest.raises(
        ConfigError, match=r"ambiguous: acme_other of acme-benches, (kernbench\.)?benches\.ccl_allreduce of kernbench"
    ):
        find_bench("ccl_allreduce")


def test_an_unknown_bench_names_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no bench 'ccl_allredcue' \(did you mean ccl_allreduce\?\); there are "):
        find_bench("ccl_allredcue")


def test_a_bench_by_its_name_alone(install) -> None:  # type: ignore[no-untyped-def]
    install("acme", "acme_short", PLAIN)
    assert kernbench("bench", "acme").output == kernbench("bench", "run", "acme").output
    result = kernbench("bench", "acmee")
    assert result.exit_code != 0
    assert "no bench 'acmee' (did you mean acme?); there are" in str(result.exception)
