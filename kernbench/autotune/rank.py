"""Ranking the configs of a kernel for a device, without the device.

A few programs of each config run on the CPU without storing anything, and are scaled up to the grid: they count bytes,
operations and trips. Triton's own backend compiles the config for the device: registers, spills, shared memory. A model
turns both into seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from kernbench.autotune.collect import config_row
from kernbench.autotune.model import ConfigModel, OccupancyRoofline, Prediction
from kernbench.cost.devices import resolve_device
from kernbench.errors import ConfigError
from kernbench.topology.device import DeviceSpec


@dataclass(frozen=True)
class Ranked:
    """A config with its prediction.

    Attributes:
        config: what it passes to the launch.
        seconds: predicted duration, infinite if it cannot run on the device.
        limit: what limits it, or why it cannot run.
        registers, shared: of one thread, and bytes of one program; zero if it did not compile.
        resident: programs per PE.
    """

    config: Mapping[str, Any]
    seconds: float
    limit: str
    registers: int = 0
    shared: int = 0
    resident: int = 0


def rank_configs(
    kernel: Any,
    grid: object,
    arguments: Mapping[str, Any],
    *,
    device: Any = "h100_sxm",
    configs: Sequence[Mapping[str, Any]] | None = None,
    model: ConfigModel | None = None,
) -> list[Ranked]:
    """The configs of ``kernel`` for one launch, the fastest first; equally fast ones in the order in which they were given.

    Args:
        kernel: a ``@triton.jit`` kernel, with or without ``@triton.autotune``.
        grid: of the launch, a tuple or a function of the arguments.
        arguments: parameter to value; CPU tensors of the real shapes (``torch.empty`` will do: nothing is written).
        device: shipped name, YAML path or DeviceSpec.
        configs: meta-parameters and launch options of each; by default the autotuner's own.
        model: what predicts; by default :class:`~kernbench.autotune.model.OccupancyRoofline`.

    Raises:
        ConfigError: there is no config, or none can be run.
    """
    spec = resolve_device(device)
    candidates = list(configs) if configs is not None else configs_of(kernel)
    if not candidates:
        raise ConfigError(f"{kernel!r} is not autotuned: say which configs to rank")
    inner = kernel.fn if hasattr(kernel, "configs") else kernel
    model = model or OccupancyRoofline()
    ranked = [_predict(inner, grid, arguments, dict(config), spec, model) for config in candidates]
    ranked.sort(key=lambda each: each.seconds)
    if ranked[0].seconds == inf:
        reasons = "\n  ".join(f"{dict(each.config)}: {each.limit}" for each in ranked)
        raise ConfigError(f"no config of {kernel!r} can run on {spec.name}:\n  {reasons}")
    return ranked


def configs_of(kernel: object) -> list[dict[str, Any]]:
    """The configs of an autotuned kernel, as rows."""
    return [config_row(config) for config in getattr(kernel, "configs", [])]


def target_of(device: DeviceSpec) -> str:
    """The device's Triton target, ``cuda:90``."""
    return f"{device.target.backend}:{device.target.arch}"


def _predict(
    kernel: Any,
    grid: object,
    arguments: Mapping[str, Any],
    config: dict[str, Any],
    device: DeviceSpec,
    model: ConfigModel,
) -> Ranked:
    from kernbench.triton_engine import activate, deactivate, get_target, resources, set_target
    from kernbench.triton_engine.launching import sampled_launches

    before = get_target()
    set_target(target_of(device))
    activate()
    try:
        with sampled_launches(device) as records:
            compiled = kernel[grid](**arguments, **config)
        needed = resources(compiled)
    except Exception as error:  # a config that does not compile cannot be chosen; the next one may
        reason = (str(error).strip().splitlines() or [""])[-1]
        return Ranked(config, inf, f"{type(error).__name__}: {reason}")
    finally:
        deactivate()
        set_target(before)
    if not records:
        return Ranked(config, inf, "its programs wait for each other, so that a sample of them cannot run")
    found: Prediction = model.predict(records[-1].counts, needed, device)
    return Ranked(config, found.seconds, found.limit, needed.registers, needed.shared, found.resident)
