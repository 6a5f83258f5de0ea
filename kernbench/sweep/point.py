"""Running one point of a sweep, in whatever process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from kernbench.advice import advice_for
from kernbench.errors import ConfigError, message_of
from kernbench.scheduler import user_traceback
from kernbench.scheduler.tracebacks import program_line
from kernbench.simulation.ranks.failures import SpawnException
from kernbench.stand_ins import stand_in_as_told
from kernbench.sweep.outcome import FAILED, OK, Outcome
from kernbench.sweep.spec import Task, accepted, load_program

_MOST_OF_A_LINE = 100
"""Characters of a message beside which there is advice."""

_BITS = 63
"""Of a whole number beside its sign: what tables hold."""


def run_task(task: Task) -> Outcome:
    """Simulate one point. An error of the program is part of the outcome."""
    try:
        metrics = _simulate(task)
    except (Exception, SystemExit) as error:
        text = _in_a_line(error)
        return Outcome(task.index, task.key, FAILED, {}, text, user_traceback(error))
    return Outcome(task.index, task.key, OK, metrics)


def _in_a_line(error: BaseException) -> str:
    """What has failed, the program's line, and what to do where that is known. The same on every machine."""
    rank = ""
    if isinstance(error, SpawnException):
        first, cause = next(iter(error.errors.items()), (None, error))
        rank, error = ("" if first is None else f"rank {first}: "), cause
    lines = [line.strip() for line in message_of(error).splitlines() if line.strip()]
    advice = advice_for(error)
    said = "" if not lines else lines[-1] if advice is None else lines[0][:_MOST_OF_A_LINE]
    where = program_line(error)
    return (
        f"{rank}{type(error).__name__}: {said}" + (f" ({os.path.basename(where)})" if where else "")
        + (f": {advice}" if advice else "")
    )  # fmt: skip


def _simulate(task: Task) -> dict[str, object]:
    from kernbench.ccl.config import load_ccl_config
    from kernbench.plugins import default_manager
    from kernbench.runtime_api.context import simulate
    from kernbench.topology import resolve_topology

    stand_in_as_told(",".join(task.stand_ins))
    program = load_program(task.program)
    parameters = task.parameters
    options = {name: parameters[name] for name in ("world_size", "seed", "policy", "enable_data") if name in parameters}
    plugins = default_manager().extended(task.plugins)
    handle = resolve_topology(parameters.get("system"), nodes=parameters.get("nodes"), plugins=plugins)
    ccl = None
    if "algorithm" in parameters:
        config = load_ccl_config(system=handle.topology_obj.system, plugins=plugins)
        config.select(parameters["algorithm"])  # an unknown name is an error here
        ccl = config.model_copy(update={"algorithm": parameters["algorithm"]})
    with simulate(handle, ccl=ccl, plugins=task.plugins, **options) as ctx:
        returned = program(ctx, **accepted(program, parameters))
        ctx.synchronize()
        return {**_metrics({} if returned is None else returned), "virtual_seconds": ctx.now()}


def _metrics(returned: object) -> dict[str, Any]:
    """What a program has returned as numbers and text."""
    if not isinstance(returned, Mapping):
        raise ConfigError(f"the program returned {type(returned).__name__}; expected a mapping from names to metrics")
    wrong = next((name for name in returned if not isinstance(name, str)), None)
    if wrong is not None:
        raise ConfigError(f"the program returned a metric whose name is {type(wrong).__name__}; expected text")
    return {name: _plain(name, value) for name, value in returned.items()}


def _plain(name: str, value: object) -> Any:
    """A metric as a number or text."""
    if hasattr(value, "item") and getattr(value, "numel", lambda: getattr(value, "size", 0))() == 1:
        value = value.item()
    if isinstance(value, int) and value.bit_length() > _BITS:
        raise ConfigError(
            f"the program returned {name!r}, a number of {value.bit_length()} bits; expected {_BITS} at most"
        )
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(f"the program returned {name!r} = {type(value).__name__}; expected a number or text")
