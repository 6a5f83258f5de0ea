"""A process that measures sides of a bench when it is asked to: of another tree, or with another environment.

Its parent has the turns. Requests and replies are lines of JSON; what the bench prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernbench.benches.harness.turns import Comparison, Sampler, Side


class TurnWorker:
    """The parent's end. A context manager; RuntimeError where the process says that it cannot."""

    def __init__(self, bench: str, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        """Start the bench ``kernbench.benches.<bench>`` with the package ``kernbench`` that ``folder`` holds."""
        path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kernbench.benches.harness.turn_worker", bench],
            cwd=folder, env={**os.environ, "PYTHONPATH": path, **(environment or {})}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> TurnWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def figures(self) -> dict[str, str]:
        """Unit by name, in the order of the bench."""
        return dict(self._ask(what="figures"))

    def ours(self, figure: str) -> Side:
        """Ours of a figure, measured over there; sampling it raises RuntimeError where it cannot be."""

        def part(name: str) -> Sampler:
            return lambda: float(self._ask(what="sample", figure=figure, part=name))

        try:
            has_less = self._ask(what="less", figure=figure)
        except RuntimeError:  # sampling will say why
            has_less = False
        return Side(part("sample"), part("less") if has_less else None)

    def _ask(self, **request: str) -> Any:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the worker has no pipes")
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError("its process has ended; what it said is above") from None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("its process has ended; what it said is above")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply["value"]


class _Answers:
    """The process's end: one figure's sides are held at a time."""

    def __init__(self, bench: str) -> None:
        found: list[Comparison] = importlib.import_module(f"kernbench.benches.{bench}").figures()
        self._figures = {each.name: each for each in found}
        self._name = ""
        self._side: Side | None = None

    def answer(self, request: Mapping[str, str]) -> Any:
        if request["what"] == "figures":
            return [(each.name, each.unit) for each in self._figures.values()]
        side = self._of(request["figure"])
        if request["what"] == "less":
            return side.less is not None
        sample = side.less if request["part"] == "less" else side.sample
        return None if sample is None else sample()

    def _of(self, name: str) -> Side:
        if self._side is None or name != self._name:
            self._side = None  # before the next is made: both may be large
            self._side = next(iter(self._figures[name].sides().values()))
            self._name = name
        return self._side


def main(bench: str) -> None:
    """Answer until standard input ends."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answers = _Answers(bench)
    for line in sys.stdin:
        try:
            reply = {"value": answers.answer(json.loads(line))}
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main(sys.argv[1])
