"""What ``kernbench what-if`` does once its arguments are known: it asks, and prints the table."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from kernbench.commands.points_bar import points_bar
from kernbench.errors import ConfigError
from kernbench.html_report.study import write_study
from kernbench.plurals import counted
from kernbench.trace.steps_report import duration, scaled
from kernbench.what_if import Answer, Question, ask
from kernbench.what_if.point import tasks_of
from kernbench.what_if.question import GPUS, SYSTEM
from kernbench.what_if.study import study_of

GIB = 2**30
_MOST_OF_ERROR = 100
"""Characters of an error that the table shows; the files have it whole."""


def answer_question(
    *, program: str, arguments: tuple[str, ...], settings: tuple[str, ...], systems: str, gpus: str, overrides: tuple[str, ...],
    environment: tuple[str, ...], steps: int, jobs: int | None, scheduler: str | None, timeout: float | None,
    output: Path | None, fresh: bool, retry_failed: bool, report_file: str | None, list_only: bool, **others: Any,
) -> None:  # fmt: skip
    """Run every combination, print the table, write the files. The arguments are the command's."""
    question = Question(
        program, dict(_named("--set", text) for text in settings), _values("--system", systems, as_text=True),
        _values("--gpus", gpus), arguments=(*arguments, *overrides), environment=dict(map(_variable, environment)),
        steps=steps or None, **others,
    )  # fmt: skip
    if len(question.settings) < len(settings):
        raise ConfigError("--set: a setting is given twice; its values stand in one, with commas between them")
    if list_only:
        for task in tasks_of(question):
            variables = "".join(f"{name}={shlex.quote(value)} " for name, value in task.environment.items())
            problem = f"  # {task.problem}" if task.problem else ""
            click.echo(f"{variables}kernbench {shlex.join(task.arguments)}{problem}")
        return
    with points_bar(Path(program).stem) as advance:
        answer = ask(
            question, output=output or Path(f"what-if-{Path(program).stem}"), scheduler=scheduler, jobs=jobs, resume=not fresh,
            retry_failed=retry_failed, timeout=timeout, progress=advance,
        )  # fmt: skip
    for text in table(answer, [SYSTEM, GPUS, *question.settings]):
        click.echo(text)
    files = [str(path) for path in answer.files]
    if report_file is not None:
        write_study(report_file, study_of(question, answer))
        files.append(report_file)
    click.echo("written: " + ", ".join(files))
    sys.exit(1 if len(answer.failed) == len(answer.rows) else 0)


def _named(option: str, text: str) -> tuple[str, list[object]]:
    name, equals, values = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError(f"{option} {text}: expected NAME=A,B,...")
    return name.strip(), _values(f"{option} {name.strip()}", values)


def _values(option: str, text: str, *, as_text: bool = False) -> list[Any]:
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise ConfigError(f"{option}={text}: a value is empty; expected A,B,...")
    if twice := [part for part in parts if parts.count(part) > 1]:
        raise ConfigError(f"{option}={text}: {twice[0]} stands there twice")
    return parts if as_text else [_value(part) for part in parts]


def _value(text: str) -> object:
    """A number if it is one, so that filters can compute with it; it reaches the program as it was written."""
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if str(number) == text else text
    return text


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ConfigError(f"--env {text}: expected NAME=TEXT")
    return name, value


def table(answer: Answer, names: Sequence[str]) -> Iterator[str]:
    """The lines of the table; ``names``: the columns that say which point it is."""
    fits = [row for row in answer.rows if row.get("fits")]
    out = [row for row in answer.rows if row["status"] != "failed" and not row.get("fits")]
    yield (
        f"{counted(len(answer.rows), 'point')} ({answer.ran} run now): {len(fits)} fit, {len(out)} out of memory, "
        f"{len(answer.failed)} failed; best first, by {answer.unit} per GPU"
    )
    cells = [[*names, f"{answer.unit}/GPU", "step", "MFU", "comm", "device", "of"]]
    for row in answer.rows:
        point = [str(row[name]) for name in names]
        if row["status"] == "failed":
            error = row["error"] if len(row["error"]) <= _MOST_OF_ERROR else f"{row['error'][:_MOST_OF_ERROR]}..."
            cells.append([*point, "-", "-", "-", "-", "-", "-", f"failed: {error}"])
            continue
        cells.append([
            *point, _number(row["throughput_per_gpu"]),
            "-" if row["seconds_per_step"] is None else duration(row["seconds_per_step"]),
            "-" if row["mfu"] is None else f"{row['mfu']:.1%}",
            "-" if row["communication"] is None else f"{row['communication']:.1%}",
            _size(row["device_bytes"]), _size(row["capacity_bytes"]), _remark(row),
        ])  # fmt: skip
    widths = [max(len(line[at]) for line in cells) for at in range(len(cells[0]))]
    for line in cells:
        yield "  ".join([
            *(cell.ljust(width) if at < len(names) else cell.rjust(width)
              for at, (cell, width) in enumerate(zip(line, widths, strict=False))), *line[len(widths):],
        ]).rstrip()  # fmt: skip


def _remark(row: dict[str, Any]) -> str:
    if row.get("ttft_p50") is not None:
        times: Any = ((name, row.get(f"{name}_p50"), row.get(f"{name}_p99")) for name in ("ttft", "tpot"))
        return ", ".join(
            f"{name.upper()} {duration(p50)} (p99 {duration(p99)})" for name, p50, p99 in times if p50 is not None
        )
    if row["fits"]:
        return "" if row["seconds_per_step"] is not None else "made no optimizer step"
    return f"out of memory by {_size(row['over_bytes'])}{' at least' if row['at_least'] else ''}"


def _size(nbytes: int) -> str:
    for limit, unit in ((GIB, "GiB"), (2**20, "MiB")):
        if nbytes >= limit:
            return f"{nbytes / limit:.1f} {unit}"
    return f"{nbytes / 2**10:.1f} KiB"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if value >= 1e7:
        return scaled(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
