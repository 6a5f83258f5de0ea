"""The body of a test on simulated ranks: output and failures say which rank they are of."""

from __future__ import annotations

import gc
import inspect
import traceback
from typing import Any

import pytest

from kernbench.runtime_api.context import RuntimeContext, simulate
from kernbench.runtime_api.multiprocessing import SpawnException
from kernbench.testing.table import ROW
from kernbench.topology import Topology, TopologyHandle, resolve_topology
from kernbench.torch_backend.rank_state.output import rank_streams

RANK = "[rank {}] "
"""In front of the lines that a rank prints."""


class RankFailed(AssertionError):
    """Ranks failed for different reasons, or in a way that cannot be raised in their place."""


class RankEnded(Exception):
    """The test was skipped, or is known to fail, in a rank that is a process."""

    def __init__(self, skipped: bool, reason: str) -> None:
        super().__init__(skipped, reason)
        self.skipped = skipped
        self.reason = reason

    def outcome(self) -> BaseException:
        """As pytest has it."""
        return (pytest.skip.Exception if self.skipped else pytest.xfail.Exception)(self.reason)


_NO_FAILURES = (pytest.skip.Exception, pytest.xfail.Exception)
"""What a test may raise and not have failed."""


def run_on_ranks(item: pytest.Function, mark: pytest.Mark) -> None:
    """Run the body of ``item`` once per rank.

    A failure of one rank is raised as it is, with a note that names the rank. More of them are in the report's sections.
    """
    count = int(mark.args[0] if mark.args else mark.kwargs["n"])
    options = {name: value for name, value in mark.kwargs.items() if name in ("seed", "nodes", "policy", "enable_data")}
    names = set(inspect.signature(item.obj).parameters)
    given = {name: value for name, value in item.funcargs.items() if name in names}
    ended: dict[int, BaseException] = {}
    isolation = mark.kwargs.get("isolation", "carrier")
    with simulate(_system(item, mark), world_size=count, **options) as ctx:

        def body(rank: int) -> None:
            mine = {"rank": rank, "world_size": count, "kernbench_context": ctx}
            arguments = {**given, **{name: value for name, value in mine.items() if name in names}}
            try:
                item.obj(**arguments)
            except _NO_FAILURES as outcome:
                if isolation == "process":  # what is noted there is not noted here, and pytest's cannot travel
                    raise RankEnded(isinstance(outcome, pytest.skip.Exception), str(outcome.msg)) from None
                ended[rank] = outcome

        spaces: list[Any] = []
        try:
            with rank_streams(ctx.simulation.scheduler.current_rank, RANK):
                ctx.multiprocessing.spawn(body, nprocs=count, isolation=isolation)
            if ended:
                raise ended[min(ended)]
        except SpawnException as failure:
            first = failure.errors[min(failure.errors)]
            if isinstance(first, RankEnded) and all(isinstance(each, RankEnded) for each in failure.errors.values()):
                raise first.outcome() from None
            _raise_of_rank(item, failure, count)
        finally:
            spaces = [space for space in ctx.engine.memory.spaces() if space.name == "hbm"]
            item.stash.setdefault(ROW, {})["device"] = max((space.peak for space in spaces), default=0)
            if isolation == "process":  # whose memory was counted there
                item.stash[ROW]["device"] = max((ledger.peak for ledger in ctx.engine.op_log.ledgers), default=0)
    _check_released(item, ctx, given)


def _system(item: pytest.Function, mark: pytest.Mark) -> TopologyHandle:
    """The system of the mark, each SIP capped to the memory that the test was granted."""
    handle = resolve_topology(mark.kwargs.get("system"))
    grant: Any = item.funcargs.get("test_resources")
    if grant is None or not grant.memory:
        return handle
    system = handle.topology_obj.system
    device = system.sips.device
    hbm = device.hbm.model_copy(update={"size": min(device.hbm.size, grant.memory)})
    sips = system.sips.model_copy(update={"device": device.model_copy(update={"hbm": hbm})})
    capped = system.model_copy(update={"sips": sips})
    return TopologyHandle(handle.name, handle.path, Topology(capped, spec=handle.topology_obj.spec))


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


def _raise_of_rank(item: pytest.Function, failure: SpawnException, count: int) -> None:
    first, *others = sorted(failure.errors)
    for rank in others:
        text = "".join(traceback.format_exception(failure.errors[rank]))
        item.add_report_section("call", f"rank {rank} of {count}", text)
    error = failure.errors[first]
    where = f"rank {first} of {count}" + (f"; ranks {', '.join(map(str, others))} failed too" if others else "")
    if isinstance(error, SystemExit):
        raise RankFailed(f"{where} called sys.exit({error.code!r})") from None
    if hasattr(error, "add_note"):
        error.add_note(f"in {where}")
    item.add_report_section("call", "ranks", f"raised in {where}")
    if error.__traceback__ is None:  # it was raised in a process of its own
        item.add_report_section("call", "rank's traceback", str(failure).strip())
    raise error.with_traceback(_of_test(error, item)) from error.__cause__


def _of_test(error: BaseException, item: pytest.Function) -> Any:
    """The traceback from the test's own frame on: what lies above is kernbench's."""
    code = getattr(item.obj, "__code__", None)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code is not code:
        trace = trace.tb_next
    return trace or error.__traceback__
