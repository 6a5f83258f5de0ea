"""How long a launch takes on the target: :func:`kernbench.cost.kernel_time.kernel_time`, unless another model is installed.

It answers autotuning, ``do_bench`` and the runtime; :func:`set_duration_model` replaces it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernbench.cost.devices import resolve_device
from kernbench.cost.estimate import Estimate
from kernbench.cost.kernel_time import Resources, kernel_time, suggested_resources
from kernbench.topology.device import DeviceSpec

from .counts import Counts

#: The shipped device that stands for a target when no system is being simulated.
DEVICES: dict[tuple[str, str], str] = {
    ("cuda", "80"): "a100_sxm",
    ("cuda", "90"): "h100_sxm",
    ("cuda", "100"): "b200",
    ("hip", "gfx90a"): "mi210",
    ("hip", "gfx942"): "mi300x",
    ("hip", "gfx950"): "mi355x",
}

Model = Callable[[Counts, "Resources | None", DeviceSpec], "float | Estimate"]

_model: Model | None = None
_described: DeviceSpec | None = None


def set_duration_model(model: Model | None) -> None:
    """Install the model that answers ``do_bench``, autotuning and the runtime; None restores the default."""
    global _model
    _model = model


def describe_device(device: DeviceSpec | None) -> None:
    """Say what the current target is, in full; None: its shipped stand-in."""
    global _described
    _described = device


def device_of(backend: str, arch: str) -> DeviceSpec:
    """The device that is simulated, else the shipped one of a target."""
    return _described or resolve_device(DEVICES.get((backend, str(arch)), "h100_sxm"))


def estimate(
    counts: Counts, resources: Resources | None, device: DeviceSpec, *, kernel: Any = None, cold: bool = False
) -> Estimate:
    """Modelled duration of a launch.

    Args:
        counts: what it did.
        resources: what the compiler says that it needs.
        device: where it runs.
        kernel: the compiled kernel, whose options stand in for ``resources``.
        cold: timed alone after caches were cleared, as ``do_bench`` does.
    """
    if resources is None and kernel is not None:
        options = {
            name: value
            for name in ("num_warps", "num_stages")
            if (value := getattr(kernel.metadata, name, None)) is not None
        }
        resources = suggested_resources(counts, device, **options)
    if _model is None:
        return kernel_time(device, counts, resources, cold=cold)
    found = _model(counts, resources, device)
    return found if isinstance(found, Estimate) else Estimate(found, found, found, "model")
