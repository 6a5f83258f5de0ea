"""Running one point of a sweep, in whatever process."""

from __future__ import annotations

import traceback
from typing import Any

from kernbench.errors import ConfigError
from kernbench.sweep.outcome import FAILED, OK, Outcome
from kernbench.sweep.spec import Task, accepted, load_program


def run_task(task: Task) -> Outcome:
    """Simulate one point. An error of the program is part of the outcome."""
    try:
        metrics = _simulate(task)
    except Exception as error:
        line = next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), "")
        return Outcome(
            task.index, task.key, FAILED, {}, f"{type(error).__name__}: {line}",
            "".join(traceback.format_exception(error)),
        )  # fmt: skip
    return Outcome(task.index, task.key, OK, metrics)


def _simulate(task: Task) -> dict[str, Any]:
    from kernbench.ccl.config import load_ccl_config
    from kernbench.plugins import default_manager
    from kernbench.runtime_api.context import simulate
    from kernbench.topology import resolve_topology

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
        metrics = {name: _plain(name, value) for name, value in (returned or {}).items()}
        return {**metrics, "virtual_seconds": ctx.now()}


def _plain(name: str, value: Any) -> Any:
    """A metric as a number or text."""
    if hasattr(value, "item") and getattr(value, "numel", lambda: getattr(value, "size", 0))() == 1:
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigError(f"the program returned {name!r} = {type(value).__name__}; expected a number or text")
