"""What a run has left, to be held against what another one has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import kernbench
from kernbench.trace.memory_report import memory_lines
from kernbench.trace.notes import notes_of
from kernbench.trace.rank_times import rank_times


class Outcome(NamedTuple):
    """All that a run has left.

    Attributes:
        operations: in the order of the log, with all that it says.
        waits: of hosts.
        collectives: with their steps.
        clocks: of hosts, when all had ended, and what the run says of itself.
        memory: the report, and peaks by SIP.
        printed: by ranks.
    """

    operations: list[Any]
    waits: list[Any]
    collectives: list[Any]
    clocks: list[Any]
    memory: list[Any]
    printed: str


def outcome(
    worker: Callable[[int], Any], isolation: str, world: int, printed: Callable[[], str], system: str = "dgx_h100",
    **options: Any,
) -> Outcome:  # fmt: skip
    """Run ``worker`` in ranks of one isolation; ``printed`` says what has been printed meanwhile."""
    with kernbench.simulate(system, log_limit=None, **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=world, isolation=isolation)
        log = ctx.engine.op_log
        operations = [
            (op.name, op.kind, op.rank, op.sip, op.stream, op.enqueue, op.start, op.end, op.duration, op.spread, op.nbytes,
             op.host, op.executed, tuple(op.operands), op.detail)
            for op in log.operations
        ]  # fmt: skip
        waits = [(rank, begin, end, awaited.name, sip) for rank, begin, end, awaited, sip in log.waits]
        collectives = [
            (each.name, each.ranks, each.sips, each.addresses, each.chunk_offsets, each.run.member_start,
             each.run.last_start, each.detail)
            for each in log.collectives
        ]  # fmt: skip
        clocks = [(rank, host.clock, host.busy, host.sip) for rank, host in ctx.simulation.hosts.of_rank.items()]
        memory = [
            *memory_lines(ctx),
            *((ledger.rank, ledger.sip, ledger.peak, ledger.peak_time) for ledger in log.ledgers),
        ]
        times = rank_times(ctx.simulation)
        clocks += [times, ctx.now(), notes_of(ctx.simulation, times)]
        return Outcome(operations, waits, collectives, clocks, memory, printed())


def assert_equal(one: Outcome, other: Outcome) -> None:
    """The same, byte for byte."""
    for name, left, right in zip(Outcome._fields, one, other, strict=True):
        if left == right:
            continue
        if isinstance(left, list):
            at = next(
                (at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right))
            )
            raise AssertionError(
                f"{name} differ at {at} of {len(left)}, {len(right)}:\n{left[at : at + 1]}\n{right[at : at + 1]}"
            )
        raise AssertionError(f"{name} differ:\n{left}\n{right}")
