"""The report of a deadlock: what each rank is doing, who waits for whom, and what would have to happen."""

from __future__ import annotations

from kernbench.scheduler import Rank, RankPhase, RankScheduler, SideThread, find_cycle
from kernbench.scheduler.tracebacks import headline
from kernbench.sim_engine import DataExecutor
from kernbench.simulation.matching.groups import Arrival, Collective
from kernbench.simulation.matching.history import History
from kernbench.simulation.matching.matcher import Matcher
from kernbench.simulation.matching.messages import Message
from kernbench.simulation.ranks.locations import NOWHERE, Location, location_of
from kernbench.simulation.stuck_streams import StuckStreams
from kernbench.simulation.time.wait_queue import Waits

_MOST_RANKS = 64
_MOST_DIVERGING = 8
_MOST_HISTORIES = 16
_LAST_CALLS = 3


def deadlock_report(
    title: str, scheduler: RankScheduler, waits: Waits, matcher: Matcher, executor: DataExecutor
) -> str:
    """Describe why no rank can make progress, in full sentences and with the user's own file:line; ``title``: of the run."""
    stuck = StuckStreams(matcher)
    waits_for, doing = who_waits(scheduler, waits, matcher, stuck)
    lines = [f"rank {rank.index} has ended by {rank.ended_by}" for rank in scheduler.ranks if rank.ended_by]
    lines.append(f"deadlock{title and f' of {title}'}: no rank can run and nothing is in flight.")
    cycle = find_cycle(waits_for)
    if cycle:
        lines.append("Wait-for cycle: " + " -> ".join(f"rank {rank}" for rank in (*cycle, cycle[0])))
    lines += [f"  rank {rank}: {words}" for rank, words in doing.items()]
    if len(scheduler.ranks) > len(doing):
        lines.append(f"  ... and {len(scheduler.ranks) - len(doing)} more ranks")
    unmatched = [collective for collective in matcher.pending if not collective.matched]
    messages = matcher.mailbox.waiting
    for batch, wait in executor.suspended():
        where = ", ".join("main" if launch.rank is None else f"rank {launch.rank}" for launch in batch[:8])
        lines.append(f"  kernel {batch[0].op.name} of {where} is suspended: {wait}")
    for collective in unmatched:
        missing = collective.missing
        lines.append(
            f"To go on: {_ranks(missing)} must call {collective.signature} as collective #{collective.sequence} of "
            f"{collective.group.name}." + "".join(_never(scheduler.rank(rank)) for rank in missing[:8])
        )
    lines += stuck.lines()
    for message in messages:
        if message.peer is None:
            lines.append(
                f"To go on: some rank must send to rank {message.rank} (tag {message.tag}, {message.group.name})."
            )
        else:
            what = "receive from" if message.sends else "send to"
            lines.append(
                f"To go on: rank {message.peer} must {what} rank {message.rank} (tag {message.tag}, "
                f"{message.group.name}) {tuple(message.tensor.shape)}."
                + (_elsewhere(message, matcher.mailbox.unmet) or _never(scheduler.rank(message.peer)))
            )
    return "\n".join([*lines, *history_lines(matcher.history)])


def who_waits(
    scheduler: RankScheduler, waits: Waits, matcher: Matcher, stuck: StuckStreams | None = None
) -> tuple[dict[int, list[int]], dict[int, str]]:
    """Which ranks each one waits for, and what each does, in words; of very many ranks, the first ones.

    ``stuck``: what stands on streams, where nothing can go on.
    """
    unmatched = [collective for collective in matcher.pending if not collective.matched]
    origin = matcher.runs.awaited
    awaited = {id(op): (op, target) for op, target in ((origin(op), t) for op, t in waits.pending)}
    arrival_of: dict[int, tuple[Collective, Arrival]] = {}
    for collective in unmatched:
        for arrival in collective.arrivals.values():
            arrival_of[id(arrival.op)] = (collective, arrival)

    messages = matcher.mailbox.waiting
    message_of = {id(message.op): message for message in messages}

    waits_for: dict[int, list[int]] = {}
    waiting_line: dict[int, str] = {}
    of_threads: dict[int, list[str]] = {}
    for op, target in awaited.values():
        rank = scheduler.rank_by_greenlet.get(target)
        if rank is None:
            continue
        side = scheduler.side_threads.get(target)
        if id(op) in arrival_of:
            collective, arrival = arrival_of[id(op)]
            waits_for.setdefault(rank, []).extend(collective.missing)
            words = f"waits in {collective}: {arrival.signature} at {arrival.location}"
        elif id(op) in message_of:
            message = message_of[id(op)]
            others = [other.index for other in scheduler.ranks if other.index != rank]
            waits_for.setdefault(rank, []).extend(others if message.peer is None else [message.peer])
            words = f"waits in {message}: {message.signature} at {message.location}"
        else:
            words = f"waits for {op.name} ({op.kind}) at {_where(side or scheduler.rank(rank))}"
            on_streams = "" if stuck is None else stuck.words(rank)
            if on_streams:
                words = f"{words}: its GPU is in {on_streams}"
        if side is None:
            waiting_line[rank] = words
        else:
            of_threads.setdefault(rank, []).append(f"its thread {side.name!r} {words}")

    for rank, others in ({} if stuck is None else stuck.waits_for()).items():
        waits_for.setdefault(rank, []).extend(others)

    shown = scheduler.ranks[:_MOST_RANKS]
    doing = {rank.index: waiting_line.get(rank.index) or _state(rank) for rank in shown}
    for rank, lines in of_threads.items():
        if rank in doing:
            doing[rank] = "; ".join([doing[rank], *lines])
    return {rank: list(dict.fromkeys(others)) for rank, others in waits_for.items()}, doing


def history_lines(history: History) -> list[str]:
    """What the ranks called last, and the first collective that they disagree on."""
    lines = []
    diverging = history.divergence()
    if diverging is not None:
        sequence, calls = diverging
        lines.append(f"Ranks diverge at collective #{sequence} of {calls[0].group.name}:")
        lines += [f"  rank {call.rank}: {call.signature} at {call.location}" for call in calls[:_MOST_DIVERGING]]
    recent = [(rank, history.of(rank)[-_LAST_CALLS:]) for rank in history.ranks[:_MOST_HISTORIES]]
    if recent:
        lines.append("Last operations:")
        lines += [f"  rank {rank}: {call}" for rank, calls in recent for call in calls]
    return lines


def _ranks(ranks: list[int]) -> str:
    text = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {text}"


def _state(rank: Rank) -> str:
    return {
        RankPhase.DONE: f"has ended ({rank.ended_by or 'its function returned'})",
        RankPhase.FAILED: f"has failed: {'' if rank.error is None else headline(rank.error)}",
        RankPhase.ABORTED: "was unwound",
    }.get(rank.phase, f"is {rank.phase.value} at {_where(rank)}")


def _never(rank: Rank | None) -> str:
    return "" if rank is None or rank.live else f" Rank {rank.index} never will: it {_state(rank)}."


def _elsewhere(message: Message, unmet: list[Message]) -> str:
    """What the other side has posted that would be this message's, had it gone the same way."""
    for other in unmet:
        if (other.rank, other.peer, other.sends) != (message.peer, message.rank, not message.sends):
            continue
        has = f" Rank {other.rank} has {'sent' if other.sends else 'asked for'} one at {other.location}, but"
        if other.group is not message.group:
            return f"{has} on {other.group.name}."
        if other.route.lane != message.route.lane:
            side = "this one" if message.route.lane == "pair" else "that one"
            return (
                f"{has} the two never meet: of NCCL's messages what is called by itself ({side}) goes over a communicator of "
                "the two ranks, and a batch over the group's. Let both be in a batch, both by themselves, or give "
                "init_process_group a device_id."
            )
        if other.tag != message.tag:
            return f"{has} with tag {other.tag}."
    return ""


def _where(rank: Rank | SideThread | None) -> Location:
    """Where a suspended rank, or a thread of it, is in the user's code."""
    if rank is None:
        return NOWHERE
    return location_of(rank.execution.frame()) if rank.place is None else Location(*rank.place)
