"""What a program says of itself to the simulator: batches, steps, requests. On real devices these do nothing.

    import kernbench

    for batch in loader:
        kernbench.report_batch(tokens=global_batch_size * sequence_length)
        ...

Importing this imports nothing else, so that a program may keep the calls wherever it runs.
"""

from __future__ import annotations

import sys
from typing import Any


def report_batch(*, tokens: int = 0, samples: int = 0) -> None:
    """Say how much is trained on: what the **whole job** works on here, over all ranks together.

    What is given between two steps is added up, so a program that accumulates gradients may call it for each microbatch. Every
    rank may call it, and one is enough: of a step, the largest of the ranks' sums counts, and if they differ that is said.

    Args:
        tokens: of all ranks, such as global batch size times sequence length.
        samples: of all ranks: the global batch size.

    Raises:
        ValueError: one is negative or no whole number.
    """
    for name, value in (("tokens", tokens), ("samples", samples)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"report_batch({name}={value!r}): expected a whole number of {name}, at least 0")
    simulation = _current_simulation()
    if simulation is not None:
        account = simulation.hosts.current().account
        account.tokens += tokens
        account.samples += samples


def report_step() -> None:
    """Say that a step ends here, in every rank: for programs without an optimizer of torch's, or whose steps are others.

    Once a rank has called it, its optimizers are not counted. ``kernbench run --steps`` stops a program here.
    """
    simulation = _current_simulation()
    if simulation is not None:
        simulation.steps.tell()


def report_request(name: str, event: str, *, tokens: int = 0, at: float | None = None) -> None:
    """Say what has happened to a request of a serving engine: :mod:`.serving_requests` has what is made of it.

    Of ranks that run one engine together each may call it, and one is enough.

    Args:
        name: of the request, one for each.
        event: ``"arrived"``, ``"token"`` (the engine has the next token), ``"preempted"`` (it is to be computed again), or
            ``"ended"``.
        tokens: of ``"arrived"``, those of the prompt; of ``"token"``, how many there are at once, 1 by default.
        at: when, seconds of ``time.perf_counter()``; now by default.

    Raises:
        ValueError: there is no such event, or ``tokens`` is negative or no whole number.
    """
    if event not in ("arrived", "token", "preempted", "ended"):
        raise ValueError(f"report_request({event!r}): expected arrived, token, preempted or ended")
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
        raise ValueError(f"report_request(tokens={tokens!r}): expected a whole number of tokens, at least 0")
    simulation = _current_simulation()
    if simulation is not None:
        host = simulation.hosts.current()
        simulation.requests.event(host.rank or 0, str(name), event, tokens, host.clock if at is None else float(at))
    elif (companion := _current_companion()) is not None:
        companion.report("event", str(name), event, tokens, companion.now() if at is None else float(at))


def report_engine_step(
    *, prefill: int = 0, decode: int = 0, running: int = 0, waiting: int = 0, blocks_used: int = 0, blocks: int = 0,
    at: float | None = None,
) -> None:  # fmt: skip
    """Say that a serving engine has made a step, when it has the step's tokens.

    Args:
        prefill, decode: tokens of prompts, and of sequences that generate, that it computed.
        running, waiting: requests in its batch, and beside it.
        blocks_used, blocks: of its cache.
        at: when, seconds of ``time.perf_counter()``; now by default.
    """
    simulation = _current_simulation()
    if simulation is not None:
        host = simulation.hosts.current()
        moment = host.clock if at is None else float(at)
        simulation.requests.step(host.rank or 0, moment, prefill, decode, running, waiting, blocks_used, blocks)
    elif (companion := _current_companion()) is not None:
        moment = companion.now() if at is None else float(at)
        companion.report("step", moment, prefill, decode, running, waiting, blocks_used, blocks)


def is_simulated() -> bool:
    """Whether this process is in a simulation: a rank, or one that lives in its time."""
    return _current_simulation() is not None or _current_companion() is not None


def assume(remark: str) -> bool:
    """Whether the values that the program computes are not known: then the summary says so, by ``remark``.

    For what stands between an engine and a simulation, in a rank or in a process beside the ranks.
    """
    simulation = _current_simulation()
    if simulation is not None:
        if not simulation.engine.enable_data:
            simulation.remarks.setdefault(remark)
        return not simulation.engine.enable_data
    companion = _current_companion()
    if companion is None or companion.computes:
        return False
    companion.report("remark", remark)
    return True


def _current_simulation() -> Any:
    """The simulation whose rank runs, None outside: then the module that knows it is not imported."""
    known = sys.modules.get("kernbench.simulation.active_simulation")
    return None if known is None else known.current_simulation()


def _current_companion() -> Any:
    """This process, if it is no rank of a simulation but lives in its time; None otherwise."""
    known = sys.modules.get("kernbench.processes.companion_waits")
    return None if known is None else known.current()
