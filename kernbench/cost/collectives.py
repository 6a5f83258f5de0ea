"""How long a collective takes: ``collective_time``."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from kernbench.collective_kinds import TIMED, timed_name
from kernbench.cost import collective_models as models
from kernbench.cost.collective_choice import Candidate, rank_value
from kernbench.cost.collective_world import CollectiveWorld, build_world, resolve_system
from kernbench.cost.estimate import Estimate, Floats
from kernbench.cost.peer_access import FEW_BLOCKS
from kernbench.cost.selection import eligible
from kernbench.cost.uncertainty import band_interval, collective_group
from kernbench.errors import ConfigError
from kernbench.topology.dtypes import canonical_dtype

COLLECTIVES = tuple(TIMED)
"""What can be timed, by nccl-tests' names in this house's spelling."""

_MISJUDGED_INSIDE = 2.0
_COPY_FLOOR = 3.0e-6


def collective_time(
    system: object,
    collective: str,
    nbytes: Any,
    *,
    ranks: int,
    nodes: int = 1,
    dtype: str = "float32",
    algorithm: str | None = None,
    kind: Literal["host", "kernel"] = "host",
    placement: Literal["out", "in"] = "out",
    gpus_per_process: int = 1,
    blocks: int = FEW_BLOCKS,
) -> Estimate:
    """How long a collective of the vendor's library takes (ADR 0030).

    Args:
        system: shipped name, YAML path, topology or its handle. Its fabric joins the nodes.
        collective: one of :data:`COLLECTIVES`; nccl-tests' names are understood.
        nbytes: nccl-tests' size column in bytes, a number or an array: the whole buffer for all-gather,
            reduce-scatter and all-to-all.
        ranks: GPUs taking part, as many on each of ``nodes``.
        dtype: of the elements.
        algorithm: ``ring``, ``tree``, ``nvls``, ``nvls_tree`` or ``p2p``, also with a protocol (``"ring/ll128"``,
            ``"/simple"``), instead of the library's own choice. ``one_shot``, ``two_shot``, ``/direct``, the faster of
            both, and ``multimem``, in the switch, are the all-reduces of serving frameworks inside a node.
        kind: ``kernel`` is the duration of the kernel on the device; ``host`` the time of one call in a loop of many,
            as nccl-tests measures it.
        placement: ``out`` of place or ``in`` place.
        gpus_per_process: GPUs that one process launches on, one after the other (``nccl-tests -g``).
        blocks: of 512 threads each, of the kernel of ``one_shot`` and ``two_shot``; the default is vLLM's.

    Returns:
        An :class:`Estimate`; with an array of sizes, of arrays.

    Raises:
        ConfigError: unknown system, collective or algorithm; ranks that do not fit; a negative size.
    """
    collective = timed_name(collective)
    if kind not in ("host", "kernel"):
        raise ConfigError(f"kind is {kind!r}; expected host or kernel")
    if placement not in ("out", "in"):
        raise ConfigError(f"placement is {placement!r}; expected out or in")
    try:
        canonical_dtype(dtype)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    scalar = np.ndim(nbytes) == 0
    try:
        size = np.atleast_1d(np.asarray(nbytes, dtype=np.float64))
    except (TypeError, ValueError):
        raise ConfigError(f"nbytes is {nbytes!r}; expected a number of bytes or an array of them") from None
    if not np.all(np.isfinite(size)) or np.any(size < 0):
        raise ConfigError("nbytes holds a negative or non-finite size; expected bytes >= 0")
    for name, value in (
        ("ranks", ranks), ("nodes", nodes), ("gpus_per_process", gpus_per_process), ("blocks", blocks),
    ):  # fmt: skip
        if isinstance(value, bool) or int(value) != value or (name in ("gpus_per_process", "blocks") and value < 1):
            raise ConfigError(f"{name} is {value!r}; expected a whole number of at least 1")
    world = build_world(resolve_system(system), ranks=int(ranks), nodes=int(nodes), blocks=int(blocks))
    seconds, chosen = _kernel_time(world, collective, size, algorithm)
    if kind == "host":
        seconds = host_time(world, seconds, gpus_per_process)
    low, high = band_interval(collective_group(world.nodes, kind), size, seconds)
    names = np.array([candidate[0] for candidate in chosen[0]])[chosen[1]]
    protocols = np.array([candidate[1] for candidate in chosen[0]])[chosen[1]]
    algbw = size / seconds
    busbw = algbw * TIMED[collective].bus_factor(world.ranks)
    values = (seconds, low, high, names, protocols, algbw, busbw)
    return Estimate(*(value.item() if scalar else value for value in values))


def _kernel_time(
    world: CollectiveWorld, collective: str, size: Floats, algorithm: str | None
) -> tuple[Floats, tuple[list[Candidate], Any]]:
    """Device time, and the candidates with the index of the chosen one for each size."""
    if world.ranks == 1:
        return _COPY_FLOOR + 2 * size / world.copy_bandwidth, ([("copy", "simple")], np.zeros(size.shape, dtype=int))
    options = eligible(world, collective, algorithm)
    if len(options) == 1:
        return models.time_of(world, collective, *options[0], size), (options, np.zeros(size.shape, dtype=int))
    values = np.stack([rank_value(world, collective, option, size) for option in options])
    times = np.stack([models.time_of(world, collective, *option, size) for option in options])
    index = np.argmin(values, axis=0)
    seconds = np.take_along_axis(times, index[None], axis=0)[0]
    if algorithm is None:
        seconds = np.minimum(seconds, times.min(axis=0) * misjudged(world, collective))
    return seconds, (options, index)


def misjudged(world: CollectiveWorld, collective: str) -> float:
    """Most that the library's choice costs, as a factor of the best algorithm's time."""
    if world.nodes == 1:
        return _MISJUDGED_INSIDE
    return world.transport.misjudged if collective == "all_reduce" else min(world.transport.misjudged, 4.0)


def host_time(world: CollectiveWorld, kernel: Floats, gpus_per_process: int) -> Floats:
    """Time of one call in a loop: the device's and the gap between two kernels; the first of several GPUs that one
    process launches on, one after the other, waits for the last."""
    launching = (gpus_per_process - 1) * world.launch_overhead
    return kernel + models.library().host_gap + models.library().host_serial * launching
