"""Options and arguments of every command with hostile values: an answer, or one line and exit code 2; 1 where a file that was
asked for cannot be written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from hypothesis import strategies as st

from kernbench.benches.command_speed import commands
from kernbench.cli import COMMANDS
from tests.reliability.hostile import PARTS, run_hostile_command, use_a_handful, use_many
from tests.reliability.test_hostile_files import KERNEL, MANIFEST, PROGRAM, SPACES, SWEEP, TABLES, TUNE

TEXTS = [
    "", " ", "-1", "0", "1", "2", "3.5", "1e5", "1e999", "nan", "inf", "9" * 5000, "2147483648",
    "9223372036854775808", "1_0", "0x10",
    "é", "\udcff", "/" * 5000, "a" * 300 + ".yaml", "a" * 300, "~nosuchuser/x.yaml", "nosuch.yaml", ".", "..",
    "broken.yaml", "sip8",
    "dgx_h100,,", ",", "h100_sxm", "a=b", "=", "=1", "tp=1,2", "tp=" + ",".join(map(str, range(2000))), "{", "{tp",
    "{tp}", "{nosuch}",
    "{9**9**9}", "{tp**tp**tp**tp}", "(" * 300, "-" * 5000 + "1", "{" + "-" * 5000 + "1}", "{" * 3000,
    "{'x' * 10**9}", "[/red]", "[bold",
    "\x1b[31m", "random", "pct:x", "pct:-1", "exhaustive:-1", "5 GiB", "-5GiB", "1 us", "sm_90", "gfx", "nosuch.py",
    "nothing.py:x",
    "x" * 100_000, "off", "auto", "0-3", "0,0", "3-1", "carrier", "--", "-", "*", "%s%n", "\n", "a\nb", "\u202e",
    "all_reduce", "()", "1/0",
    "tp.__class__", "tp in gpus", "gpus > 0", "NAME=TEXT", "broken.json", "t.csv",
]  # fmt: skip
PLACES = {  # what a command is given besides, so that its options matter
    ("run",): ["nothing.py"],
    ("explore",): ["--runs", "2", "--jobs", "1", "nothing.py"],
    ("what-if",): ["--list", "--set", "tp=1,2", "nothing.py", "--", "{tp}"],
    ("sweep",): ["--list", "sweep.yaml"],
    ("precompile",): ["--list", "spaces.yaml"],
    ("tune",): ["tune.yaml"],
    ("trace", "summary"): ["broken.json"],
    ("trace", "report"): ["broken.json", "page.html"],
    ("systems", "list"): [],
    ("systems", "show"): ["sip8"],
    ("probe",): ["sip8"],
    ("validate",): ["manifest.yaml"],
    ("calibrate",): ["manifest.yaml", "--system", "dgx_h100", "--out", "out.yaml"],
    ("ccl", "list"): [],
    ("ccl", "order"): ["ring_allreduce"],
    ("ccl", "check"): ["ring_allreduce"],
    ("bench", "list"): [],
    ("bench", "run"): ["nosuch"],
    ("kernel",): ["nothing.py"],
    ("examples", "list"): [],
    ("examples", "copy"): [],
    ("stand-ins",): [],
    ("doctor",): [],
    ("serve",): ["--model", "broken.json"],
}
LEFT_OUT = {
    "scheduler": "it is asked for over the network, for half a minute",
    "end_to_end": "it runs published steps for minutes",
    "exit_when_done": "of a server",
    "values": "it compiles",
    "times": "it compiles",
}


OPTIONS = [
    (name, parameter)
    for name, command in commands()
    for parameter in command.params
    if name in PLACES and parameter.name not in LEFT_OUT
]


def test_every_command_is_among_them() -> None:
    assert {name[0] for name in PLACES} == set(COMMANDS) - {"report"}  # a server: tests/html_report/test_server.py


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    files = {
        "nothing.py": "", "program.py": PROGRAM, "kernel.py": KERNEL, "broken.yaml": "{[",
        "broken.json": '{"traceEvents": [{}]}',
        "mine.yaml": "extends: sip8\n", "sweep.yaml": SWEEP, "spaces.yaml": SPACES, "tune.yaml": TUNE,
        "manifest.yaml": MANIFEST,
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    for name, table in zip(("t.csv", "g.csv", "m.csv"), TABLES, strict=True):
        (tmp_path / name).write_bytes(table)
    return tmp_path


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command that works, with one or two options or arguments of hostile values."""
    name, first = draw(st.sampled_from(OPTIONS))
    of_command = [parameter for each, parameter in OPTIONS if each == name]
    options, rest = [], list(PLACES[name])
    for parameter in [first, *([draw(st.sampled_from(of_command))] if draw(st.booleans()) else [])]:
        text = draw(st.sampled_from(TEXTS) | st.text(max_size=8))
        if isinstance(parameter, click.Option):
            option = draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts]))
            options += [option] if parameter.is_flag else [option, text.replace("\0", "")]
        else:
            rest = (
                [*rest, text.replace("\0", "")]
                if draw(st.booleans()) or not rest
                else [text.replace("\0", ""), *rest[1:]]
            )
    return [*name, *options, *rest]


def forget(folder: Path, known: set[str]) -> None:
    """Remove what a command has written: another would run it."""
    for path in folder.iterdir():
        if path.name not in known:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _use(folder: Path) -> Callable[[list[str]], None]:
    known = {path.name for path in folder.iterdir()}

    def use(line: list[str]) -> None:
        run_hostile_command(*line, or_unwritable=True, programs=[folder / "t.csv"] if "t.csv" in line else [])
        forget(folder, known)

    return use


def test_a_handful(folder: Path) -> None:
    use_a_handful(command_lines(), _use(folder), 30)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.parametrize("part", range(len(PARTS)))
def test_many(part: int, folder: Path) -> None:
    use_many("options", part, command_lines(), _use(folder))
