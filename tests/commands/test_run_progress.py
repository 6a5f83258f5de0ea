"""The line on the terminal: what it says, that it is erased, and that it changes nothing."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import kernbench
from kernbench.commands import run_progress
from kernbench.commands.run_progress import ProgressLine, Reading, RunProgress
from kernbench.simulation.simulation import Simulation


class Terminal(io.StringIO):
    """Says that it is one; ``shown`` is set once a line has been drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.shown = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if " rank" in text:
            self.shown.set()
        return super().write(text)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines come at once."""
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(run_progress, "AFTER", 0.0)
    monkeypatch.setattr(run_progress, "PERIOD", 0.001)
    monkeypatch.setattr(run_progress, "PERIOD_IN_PIPES", 0.001)


@contextmanager
def on(terminal: Terminal) -> Iterator[None]:
    """Inside, it is where output goes."""
    with redirect_stdout(terminal), redirect_stderr(terminal):
        yield


def test_what_a_line_says() -> None:
    assert ProgressLine(0.0).text(Reading(0, None, 0, 0, 0), 3.0).startswith("looking for ranks that do the same | ")
    line = ProgressLine(100.0)
    assert (
        line.text(Reading(0, 10, 8, 8, 4000), 102.0) == "step 1 of 10 | 8 of 8 ranks | 4,000 operations, 2,000/s | 0:02"
    )
    assert line.text(Reading(1, 10, 8, 8, 6000), 104.0).endswith("6,000 operations, 1,500/s | 0:04, about 0:36 left")
    assert line.text(Reading(3, 10, 8, 8, 9000), 106.0).endswith("| 0:06, about 0:07 left")
    assert line.text(Reading(10, 10, 0, 8, 9000), 3800.0).startswith("ranks have ended | 0 of 8 ranks")
    assert (
        ProgressLine(0.0).text(Reading(4, None, 1, 2, 0), 3700.0)
        == "step 5 | 1 of 2 ranks | 0 operations, 0/s | 1:01:40"
    )


def simulated(before: Callable[[Simulation], None], after: Callable[[], None]) -> Any:
    """The op log of a small program, with what is to be done before and after its ranks run."""

    def body(rank: int) -> None:
        torch.cuda.set_device(rank)
        x = torch.ones(8, 8, device="cuda")
        for _ in range(200):
            x = x @ x.t()
        print("printed")

    with kernbench.simulate("dgx_h100") as ctx:
        before(ctx.simulation)
        ctx.multiprocessing.spawn(body, nprocs=2)
        after()
        return [(op.name, op.rank, op.start, op.end) for op in ctx.engine.op_log.operations]


@pytest.mark.usefixtures("quick")
def test_the_line_comes_and_goes_and_changes_nothing() -> None:
    terminal = Terminal()
    with on(terminal):
        shown: list[RunProgress] = []

        def start(simulation: Simulation) -> None:
            shown.append(RunProgress(simulation))
            shown[0].start()

        def stop() -> None:
            seen = terminal.shown.wait(30)
            shown[0].stop()
            shown[0].stop()
            assert seen

        with_line = simulated(start, stop)
        assert sys.stdout is terminal
        assert with_line == simulated(lambda simulation: None, lambda: None)
    assert " rank" not in terminal.getvalue().rpartition("\x1b[2K")[2]
    for line in terminal.getvalue().split("\n")[:-1]:
        assert line.rpartition("\x1b[2K")[2] == "printed"
    assert not [each for each in threading.enumerate() if each.name == run_progress.PROGRESS_THREAD]


class Pipe(Terminal):
    def isatty(self) -> bool:
        return False


@pytest.mark.usefixtures("quick")
def test_nothing_in_a_pipe_unless_asked_for() -> None:
    simulation = cast(Simulation, SimpleNamespace(
        scheduler=SimpleNamespace(live_count=1, ranks=[0]), steps=SimpleNamespace(counts=iter(()), limit=None),
        engine=SimpleNamespace(op_log=SimpleNamespace(dropped=0, operations=[])),
    ))  # fmt: skip
    pipe = Pipe()
    with on(pipe):
        for wanted in (None, False):
            quiet = RunProgress(simulation, wanted)
            quiet.start()
            quiet.stop()
        assert pipe.getvalue() == ""
        asked = RunProgress(simulation, True)
        asked.start()
        seen = pipe.shown.wait(30)
        asked.stop()
    assert seen
    assert pipe.getvalue().splitlines()[0] == "kernbench: step 1 | 1 of 1 rank | 0 operations, 0/s | 0:00"
    assert "\x1b" not in pipe.getvalue()


@pytest.mark.usefixtures("quick")
def test_a_terminal_that_has_gone_does_not_matter() -> None:
    class Closed(Pipe):
        def write(self, text: str) -> int:
            self.shown.set()
            raise BrokenPipeError

    closed = Closed()
    with redirect_stderr(closed):
        simulated(lambda simulation: RunProgress(simulation, True).start(), lambda: None)
    assert closed.shown.wait(30)
