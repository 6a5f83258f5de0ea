"""Granting resources to a test, and looking afterwards whether it kept to them."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kernbench.plurals import counted
from kernbench.testing.checks import read_mark
from kernbench.testing.pool import Capacity, Grant, ResourceError, ResourceRequest, port_is_free, workers_that_fit
from kernbench.testing.sizes import parse_ports, parse_size
from kernbench.testing.table import ROW

_SLACK = 1 << 20  # bytes that a CUDA library may keep for itself after its first use


def capacity_of(config: pytest.Config) -> Capacity:
    """The real GPUs of this machine, else the simulated devices of the options."""
    ports = parse_ports(config.getoption("--kernbench-ports"))
    if real := _gpu_memory():
        return Capacity(real, ports, simulated=False)
    size = parse_size(config.getoption("--kernbench-device-memory"))
    return Capacity((size,) * config.getoption("--kernbench-devices"), ports)


def _gpu_memory() -> tuple[int, ...]:
    torch = _torch()
    if torch is None or not torch.cuda.is_available():
        return ()
    return tuple(torch.cuda.get_device_properties(at).total_memory for at in range(torch.cuda.device_count()))


def _torch() -> Any:
    """Torch if this process has it, or if there is a GPU to ask it about: importing it costs seconds."""
    if "torch" in sys.modules:
        return sys.modules["torch"]
    if not Path("/dev/nvidiactl").exists() and not Path("/dev/kfd").exists():
        return None
    try:
        import torch
    except ImportError:
        return None
    return torch


def require_cuda(item: pytest.Item) -> None:
    """Skip a test of the requires_cuda mark where there are too few real GPUs."""
    needed = read_mark("requires_cuda", item.get_closest_marker("requires_cuda"))["n"]
    have = len(_gpu_memory())
    if have < needed:
        pytest.skip(f"needs {counted(needed, 'CUDA device')}, there {'is' if have == 1 else 'are'} {have}")


def request_of(item: pytest.Item) -> ResourceRequest:
    """What a test's marks ask for."""
    asked = read_mark("resources", item.get_closest_marker("resources"))
    memory = asked["memory"]
    devices = asked["devices"] or (1 if memory else 0)
    cuda = item.get_closest_marker("requires_cuda")
    if cuda is not None:
        devices = max(devices, read_mark("requires_cuda", cuda)["n"])
    if memory is None:
        memory = item.config.getoption("--kernbench-memory") if devices else 0
    return ResourceRequest(devices, parse_size(memory), asked["ports"])


def grant_for(item: pytest.Item, session: Any) -> Iterator[Grant]:
    """Grant, run, check."""
    refused = ""
    try:
        grant = _granted(item, session)
    except ResourceError as error:
        refused = str(error)
    if refused:  # not where it is handled, or it would be shown twice
        pytest.fail(refused, pytrace=False)
    pool = session.pool
    breaches: list[str] = []
    row = item.stash.setdefault(ROW, {})
    row["devices"] = grant.devices
    try:
        if grant.devices and not grant.simulated:
            yield from _on_gpus(grant, row, breaches)
        else:
            yield grant
        breaches += [f"port {port} is still open" for port in grant.ports if not port_is_free(port)]
    finally:
        pool.release(grant)
    if breaches:
        pytest.fail(f"{item.nodeid} did not keep to what it was granted: {'; '.join(breaches)}", pytrace=False)


def _granted(item: pytest.Item, session: Any) -> Grant:
    request = request_of(item)
    pool = session.pool
    fit = workers_that_fit(pool.capacity, parse_size(item.config.getoption("--kernbench-memory")))
    if request.devices and session.workers > fit:
        sizes = f"{len(pool.capacity.device_memory)} devices of {min(pool.capacity.device_memory) / 1e9:g} GB"
        memory = item.config.getoption("--kernbench-memory")
        raise ResourceError(
            f"{session.workers} workers are too many: {sizes} hold {fit} processes of {memory} each. "
            f"Use -n {fit}, or a smaller --kernbench-memory"
        )
    return pool.acquire(request, timeout=item.config.getoption("--kernbench-wait"))


def _on_gpus(grant: Grant, row: dict[str, Any], breaches: list[str]) -> Iterator[Grant]:
    """Cap the memory of this process, make the first device the default one, and look what is left afterwards."""
    import torch

    before, previous = {}, torch.cuda.current_device()
    for device in grant.devices:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, grant.memory / total), device)
        torch.cuda.reset_peak_memory_stats(device)
        before[device] = torch.cuda.memory_allocated(device)
    torch.cuda.set_device(grant.devices[0])
    try:
        yield grant
    finally:
        gc.collect()
        torch.cuda.set_device(previous)
        row["device"] = max(torch.cuda.max_memory_allocated(device) for device in grant.devices)
        for device in grant.devices:
            left = torch.cuda.memory_allocated(device) - before[device]
            torch.cuda.set_per_process_memory_fraction(1.0, device)
            torch.cuda.empty_cache()
            if left > _SLACK:
                breaches.append(f"{left:,} bytes of device {device} are not released")
