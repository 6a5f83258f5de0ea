"""The body of a test on simulated ranks: output and failures say which rank they are of."""

from __future__ import annotations

import gc
import inspect
import mmap
import re
import warnings
from collections.abc import Iterable
from typing import Any, NoReturn

import pytest

from kernbench.errors import kind_of, message_of
from kernbench.runtime_api.context import RuntimeContext, simulate
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing.checks import RanksOfTest
from kernbench.testing.failures import text_of
from kernbench.testing.table import ROW
from kernbench.topology import Topology, TopologyHandle, resolve_topology
from kernbench.torch_backend.rank_state.output import rank_streams

RANK = "[rank {}] "
"""In front of the lines that a rank prints."""


class RankFailed(AssertionError):
    """Ranks failed for different reasons, or in a way that cannot be raised in their place."""


class BodyEnds:
    """How the body of a test has ended in each rank, in memory that ranks which are processes share.

    Args:
        count: of ranks.

    Attributes:
        raised: what ranks of this process have raised to skip the test or to say that it is known to fail.
    """

    NEVER, RETURNED, GAVE_AWAITABLE, LEFT, SKIPPED, XFAILED = range(6)
    _ROOM = 512  # bytes: how, how often, and why

    def __init__(self, count: int) -> None:
        self.count = count
        self.raised: dict[int, BaseException] = {}
        self._memory = mmap.mmap(-1, count * self._ROOM)

    def note(self, rank: int, how: int, why: str = "") -> None:
        """The body has ended in ``rank``."""
        at = rank * self._ROOM
        text = why.encode(errors="backslashreplace")
        if len(text) > self._ROOM - 3:
            text = text[: self._ROOM - 6] + b"..."
        times = min(255, self._memory[at + 1] + 1)
        self._memory[at : at + 2 + len(text)] = bytes((how, times)) + text

    def of(self, rank: int) -> int:
        """How it has."""
        return self._memory[rank * self._ROOM]

    def times(self, rank: int) -> int:
        """How often."""
        return self._memory[rank * self._ROOM + 1]

    def why(self, rank: int) -> str:
        """What was said to it."""
        at = rank * self._ROOM + 2
        return self._memory[at : at + self._ROOM - 2].rstrip(b"\0").decode(errors="ignore")  # it may be cut

    def which(self, *how: int) -> list[int]:
        """The ranks in which it has ended so."""
        return [rank for rank in range(self.count) if self.of(rank) in how]


def run_on_ranks(item: pytest.Function, ranks: RanksOfTest) -> None:
    """Run the body of ``item`` once per rank. Returns if it has run to its end, once, on each of them.

    A failure of one rank is raised as it is, with a note that names the rank. More of them are in the report's sections.
    """
    count = ranks.count
    names = set(inspect.signature(item.obj).parameters)
    given = {name: value for name, value in item.funcargs.items() if name in names}
    ends = BodyEnds(count)
    failure: SpawnException | None = None
    with simulate(_system(item, ranks), world_size=count, **ranks.options) as ctx:

        def body(rank: int) -> None:
            mine = {"rank": rank, "world_size": count, "kernbench_context": ctx}
            arguments = {**given, **{name: value for name, value in mine.items() if name in names}}
            try:
                returned = item.obj(**arguments)
            except pytest.skip.Exception as outcome:
                ends.raised[rank] = outcome
                ends.note(rank, ends.SKIPPED, str(outcome.msg))
            except pytest.xfail.Exception as outcome:
                ends.raised[rank] = outcome
                ends.note(rank, ends.XFAILED, str(outcome.msg))
            except (SystemExit, KeyboardInterrupt) as end:
                ends.note(rank, ends.LEFT, repr(end))
                raise
            else:
                _note_returned(item, ends, rank, returned)

        try:
            with rank_streams(ctx.simulation.scheduler.current_rank, RANK):
                ctx.multiprocessing.spawn(body, nprocs=count, isolation=ranks.isolation)
        except SpawnException as raised:
            failure = raised
        finally:
            spaces = [space for space in ctx.engine.memory.spaces() if space.name == "hbm"]
            item.stash.setdefault(ROW, {})["device"] = max((space.peak for space in spaces), default=0)
            if ranks.isolation == "process":  # whose memory was counted there
                item.stash[ROW]["device"] = max((ledger.peak for ledger in ctx.engine.op_log.ledgers), default=0)
        if failure is not None:  # not where it is handled: what a rank has raised keeps what it was raised in
            _raise_of_rank(item, failure, ends)
    _require_ends(item, ends)
    _check_released(item, ctx, given)


def _note_returned(item: pytest.Function, ends: BodyEnds, rank: int, returned: object) -> None:
    if inspect.isawaitable(returned) or inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        ends.note(rank, ends.GAVE_AWAITABLE, type(returned).__name__)
        if inspect.iscoroutine(returned):
            returned.close()
        return
    ends.note(rank, ends.RETURNED)
    if returned is not None:  # as pytest says it of its own
        warnings.warn(
            pytest.PytestReturnNotNoneWarning(
                f"Test functions should return None, but {item.nodeid} returned {type(returned)!r}.\n"
                "Did you mean to use `assert` instead of `return`?"
            ),
            stacklevel=2,
        )


def _require_ends(item: pytest.Function, ends: BodyEnds) -> None:
    """Skip the test if all ranks do; fail it if its body has not run to its end, once, on every rank."""
    known = ends.which(ends.XFAILED)
    if known:
        raise ends.raised.get(known[0]) or pytest.xfail.Exception(ends.why(known[0]))
    skipped = ends.which(ends.SKIPPED)
    if len(skipped) == ends.count:
        raise ends.raised.get(0) or pytest.skip.Exception(ends.why(0))
    problems = []
    if made := ends.which(ends.GAVE_AWAITABLE):
        problems.append(f"in {_words(made)} it returned a {ends.why(made[0])}, which nothing runs")
    if left := ends.which(ends.LEFT):
        problems.append(f"{_words(left)} left it by {ends.why(left[0])}")
    if skipped:
        problems.append(
            f"{_words(skipped)} skipped ({ends.why(skipped[0])!r}) and the other ranks did not: skip in all ranks or in none"
        )
    if never := ends.which(ends.NEVER):
        problems.append(f"it did not end in {_words(never)}")
    if often := [rank for rank in range(ends.count) if ends.times(rank) > 1]:
        problems.append(f"it ended more than once in {_words(often)}")
    if problems:
        path, line, _ = item.location
        pytest.fail(
            f"{path}:{(line or 0) + 1}: the body did not run to its end on all {ends.count} ranks: {'; '.join(problems)}",
            pytrace=False,
        )


def _words(ranks: Iterable[int]) -> str:
    numbers = list(ranks)
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _system(item: pytest.Function, ranks: RanksOfTest) -> Any:
    """The system of the mark, each SIP capped to the memory that the test was granted."""
    handle = ranks.system
    grant: Any = item.funcargs.get("test_resources")
    if grant is None or not grant.memory:
        return handle
    if not isinstance(handle, TopologyHandle):
        handle = resolve_topology(handle)
    handle = handle.with_nodes(ranks.options.get("nodes"))
    graph = handle.topology_obj
    system = graph.system
    device = system.sips.device
    hbm = device.hbm.model_copy(update={"size": min(device.hbm.size, grant.memory)})
    sips = system.sips.model_copy(update={"device": device.model_copy(update={"hbm": hbm})})
    capped = system.model_copy(update={"sips": sips})
    return TopologyHandle(handle.name, handle.path, Topology(capped, nodes=graph.nodes, spec=graph.spec))


def _check_released(item: pytest.Function, ctx: RuntimeContext, given: dict[str, Any]) -> None:
    """A test that was granted memory must not leave tensors on the simulated devices alive."""
    grant: Any = item.funcargs.get("test_resources")
    if grant is None or not grant.memory or not grant.simulated:
        return
    gc.collect()
    left = {space.sip: space.used for space in ctx.engine.memory.spaces() if space.name == "hbm" and space.used}
    if left:
        what = ", ".join(f"{used:,} bytes of device {sip}" for sip, used in left.items())
        pytest.fail(
            f"{item.nodeid} did not release {what}: something outside of the test keeps its tensors", pytrace=False
        )


def _raise_of_rank(item: pytest.Function, failure: SpawnException, ends: BodyEnds) -> None:
    first, *others = sorted(failure.errors)
    error = failure.errors[first]
    shown = {_said(error): first}
    same = [rank for rank in others if shown.setdefault(_said(failure.errors[rank]), rank) == first]
    for rank in others:
        if shown[_said(failure.errors[rank])] == rank:
            item.add_report_section("call", f"rank {rank} of {ends.count}", text_of(failure.errors[rank], item.config))
    where = f"rank {first} of {ends.count}"
    if same:
        where += f"; the same in {_words(same)}"
    if different := sorted({*others} - {*same}):
        where += f"; {_words(different)} failed too"
    if isinstance(error, SystemExit):
        raise RankFailed(f"{where} called sys.exit({error.code!r})").with_traceback(_of_test(error, item))
    if hasattr(error, "add_note"):
        error.add_note(f"in {where}")
    item.add_report_section("call", "ranks", f"raised in {where}")
    if skipped := ends.which(ends.SKIPPED):
        item.add_report_section("call", "skips", f"{_words(skipped)} skipped: {ends.why(skipped[0])}")
    if error.__traceback__ is None:  # it was raised in a process of its own
        item.add_report_section("call", "rank's traceback", _without_message(str(failure), error).strip())

        def raise_from_process() -> NoReturn:  # without arguments, which pytest shows
            raise error  # in a rank that is a process: where, is in a section below

        raise_from_process()
    raise error.with_traceback(_of_test(error, item))


def _without_message(report: str, error: BaseException) -> str:
    """Tracebacks, in which ``error``, which pytest shows itself, has a line at most."""
    said = re.escape(f"{kind_of(error)[1]}: {message_of(error)}")
    short = f"{kind_of(error)[1]}: the message above"
    return re.sub(rf"^([\w.]+\.)?{said}$", lambda found: (found[1] or "") + short, report, flags=re.MULTILINE)


def _said(error: BaseException) -> tuple[type[BaseException], str]:
    return type(error), message_of(error)


def _of_test(error: BaseException, item: pytest.Function) -> Any:
    """The traceback from the test's own frame on: what lies above is kernbench's."""
    code = getattr(item.obj, "__code__", None)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next
    return trace or error.__traceback__
