"""Triton kernels of a test run: compiled ahead of the tests, counted while they run, recorded for the next run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kernbench.precompile import Record, precompile
from kernbench.precompile.events import listening
from kernbench.precompile.record import is_record

_OUTPUT = "kernbench_compiled"
_SHOWN = 10


class KernelWatch:
    """What one process of a test run compiles.

    Args:
        config: pytest's.
        compiles_ahead: whether this is the process that compiles before the tests begin.
    """

    def __init__(self, config: pytest.Config, *, compiles_ahead: bool) -> None:
        self._config = config
        self._compiles_ahead = compiles_ahead
        self._record = Record()
        self._compiled: Counter[str] = Counter()
        self._ahead = ""
        self._stack = ExitStack()

    def start(self) -> None:
        """Compile ahead, then listen.

        Raises :class:`~kernbench.errors.KernbenchError` if a declared kernel cannot be compiled; one of a record, which may be
        older than the code, is left to the tests.
        """
        specs = self._config.getoption("--kernbench-precompile")
        if specs and self._compiles_ahead:
            values = bool(self._config.getoption("--kernbench-precompile-values"))
            reports = [precompile(spec, values=values) for spec in specs]
            for spec, report in zip(specs, reports, strict=True):
                if not is_record(spec):
                    report.raise_if_failed()
            compiled, hits = sum(report.compiled for report in reports), sum(report.hits for report in reports)
            seconds = sum(report.seconds for report in reports)
            self._ahead = f"{compiled} compiled ahead in {seconds:.1f} s, {hits} were in the cache; "
        self._stack.enter_context(listening(self._note))

    def _note(self, src: object, metadata: Mapping[str, Any], cache_hit: bool) -> None:
        self._record.add(src, metadata)
        if not cache_hit:
            self._compiled[str(getattr(src, "name", "?"))] += 1

    def take_from(self, output: Mapping[str, Any]) -> None:
        """Controller: add what a worker has reported."""
        self._compiled.update(output.get(_OUTPUT, {}))

    def finish(self, directory: Path, *, is_worker: bool) -> None:
        """Stop listening; hand over what was found, through a ``directory`` that the processes of the run share."""
        self._stack.close()
        path = self._config.getoption("--kernbench-record")
        if is_worker:
            self._config.workeroutput[_OUTPUT] = dict(self._compiled)  # type: ignore[attr-defined]
            if path:
                directory.mkdir(parents=True, exist_ok=True)
                self._record.write(directory / f"kernels-{self._config.workerinput['workerid']}.yaml")  # type: ignore[attr-defined]
        elif path:
            for part in sorted(directory.glob("kernels-*.yaml")):
                self._record.read(part)
            self._record.write(path)

    def report(self, terminal: Any) -> None:
        """The line of the summary."""
        number = self._compiled.total()
        names = ", ".join(f"{name} ({count})" for name, count in self._compiled.most_common(_SHOWN))
        more = f": {names}{', ...' if len(self._compiled) > _SHOWN else ''}" if number else ""
        terminal.write_line(f"kernbench: kernels: {self._ahead}{number} compiled by the tests{more}")
