"""One table of options: the function, the command line, marks, the result's file and the page say what it says."""

from __future__ import annotations

import dataclasses
import inspect
import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import kernbench
from kernbench.cli import app
from kernbench.commands import run_program
from kernbench.commands.run import command
from kernbench.errors import ConfigError
from kernbench.options import RunOptions, SimulateOptions, changed, command_line, options_of
from kernbench.options.__main__ import lines
from kernbench.order.findings import MODES
from kernbench.runtime_api.multiprocessing import ISOLATIONS
from kernbench.testing.declared import MARKS

PARAMETERS = {each.name: each for each in command.params}


def test_the_signature_of_simulate_is_the_record() -> None:
    parameters = inspect.signature(kernbench.simulate).parameters
    fields = dataclasses.fields(SimulateOptions)
    assert [*parameters] == [each.name for each in fields]
    for each in fields:
        assert (parameters[each.name].default, parameters[each.name].annotation) == (each.default, each.type), each.name
        assert f"    {each.name}: {each.metadata['kernbench.option'].about}\n" in (kernbench.simulate.__doc__ or "")


def test_each_default_is_one_of_the_values_that_are_taken() -> None:
    for record in (SimulateOptions, RunOptions):
        for row in options_of(record):
            assert row.read(row.default) == row.default, row.name


def test_the_command_line_has_the_rows_with_flags_and_torchruns() -> None:
    rows = {row.name: row for row in options_of(RunOptions) if row.flags}
    assert rows.keys() <= PARAMETERS.keys()
    for name, row in rows.items():
        option = PARAMETERS[name]
        assert isinstance(option, click.Option)
        assert (option.help or "").startswith(row.about)
        assert (option.envvar, option.multiple) == (row.variable, row.many)
    values = CliRunner().invoke(app, ["run", "--help"]).output
    assert all(flag in values for row in rows.values() for flag in row.flags[0].split("/"))


def told(monkeypatch: pytest.MonkeyPatch, *words: str) -> RunOptions:
    """The options that a command line gives."""
    given: list[RunOptions] = []
    monkeypatch.setattr(run_program, "run", lambda options, *rest: given.append(options))
    done = CliRunner().invoke(app, ["run", *words, "x.py"])
    assert done.exit_code == 0, done.output
    return given.pop()


def test_nothing_said_is_the_record_of_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KERNBENCH_PROGRESS", raising=False)
    assert told(monkeypatch) == RunOptions()


LINE = (
    "--nproc-per-node=4", "--system=dgx_h100", "--nnodes=2", "--no-data", "--seed=3", "--memory-limit=80GB", "--unknown=error",
    "--ranks=0,2-3", "--exact-dtype", "--fill-uninitialized=nan", "--races=warn", "--memory=weak", "--jitter=0.02",
    "--straggler=1:2.0", "--straggler=2:1.5", "--schedule=random:4", "--steps=2", "--isolation=process",
    "--per-rank-module=a", "--per-rank-module=b", "--stand-in=auto", "--extrapolate=9", "--tokens-per-step=5",
    "--samples-per-step=6", "--traceback=full", "--hang-after=2.0", "-m",
)  # fmt: skip


def test_a_record_says_the_command_line_that_made_it(monkeypatch: pytest.MonkeyPatch) -> None:
    options = told(monkeypatch, *LINE)
    assert sorted(command_line(options)) == sorted(LINE)
    assert told(monkeypatch, *command_line(options)) == options
    assert command_line(options, ["seed", "enable_data", "trace"]) == ["--no-data", "--seed=3"]
    silent = {row.name for row in options_of(RunOptions) if not row.flags or row.output} | {"goodput"}
    assert {row.name for row in options_of(RunOptions)} - silent == changed(options).keys()


def test_choices_are_those_of_what_reads_them() -> None:
    rows = {row.name: row for row in options_of(RunOptions)}
    assert rows["races"].kind.choices == MODES
    assert {*rows["isolation"].kind.choices} < {*ISOLATIONS}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("unknown", "eror", "'assume', 'error'"), ("policy", "fifo", "'round_robin', 'random'"), ("races", "w", "'warn'"),
     ("fill_uninitialized", "zero", "'off', 'nan', '0xAA'")],
)  # fmt: skip
def test_a_misspelt_word_is_said(name: str, value: object, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name}=") as caught, kernbench.simulate(**{name: value}):  # type: ignore[arg-type]
        pass
    assert words in str(caught.value)


def test_the_record_is_frozen_and_its_values_are_plain() -> None:
    options = SimulateOptions(stragglers={1: 2})
    assert options.stragglers == {1: 2.0}
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.seed = 1  # type: ignore[misc]


def test_marks_and_the_page_have_the_rows() -> None:
    mark = next(each for each in MARKS if each.name == "world_size")
    assert {row.name for row in options_of(SimulateOptions) if row.mark} < {each.name for each in mark.named}
    page = "\n".join(lines())
    for row in options_of(RunOptions):
        assert all(flag in page for flag in row.flags)
    for row in options_of(SimulateOptions):
        assert f"{row.name}={row.default!r}" in page


def test_the_results_file_says_the_options(tmp_path: Path) -> None:
    program, result = tmp_path / "one.py", tmp_path / "result.json"
    program.write_text("import torch\ntorch.ones(4, device='cuda').sum()\n")
    words = ["run", "--system", "dgx_h100", "--seed", "5", "--no-summary", "--json", str(result), str(program)]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert json.loads(result.read_text())["options"] == {"system": "dgx_h100", "seed": 5}
