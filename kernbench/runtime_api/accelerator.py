"""``ctx.accelerator``: which SIP this rank drives, with ``torch.accelerator``'s names."""

from __future__ import annotations

import torch
from torch.types import Device

from kernbench.errors import ConfigError
from kernbench.input_files import whole_number
from kernbench.simulation.memory.process_memory import ProcessMemory
from kernbench.simulation.simulation import Simulation


class Accelerator:
    """The SIPs of a context, numbered 0.. in the order of its ``target_device``."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def is_available(self) -> bool:
        """True: a context always has a SIP."""
        return True

    def device_count(self) -> int:
        """Number of SIPs that the context may use."""
        return len(self._simulation.sips)

    def current_accelerator(self) -> torch.device:
        """The torch device that values live on."""
        return torch.device("cpu")

    def set_device_index(self, device: int | torch.device | str) -> None:
        """Drive another SIP from now on."""
        index = self._index(device)
        if not 0 <= index < len(self._simulation.sips):
            raise ConfigError(f"no device {index}: this context has 0..{len(self._simulation.sips) - 1}")
        self._simulation.hosts.current().drive(self._simulation.sips[index])

    def current_device_index(self) -> int:
        """The SIP that this rank drives."""
        return self._simulation.sips.index(self._simulation.hosts.current().sip)

    def synchronize(self, device: Device = None) -> None:
        """Wait for everything that this rank has enqueued."""
        self._simulation.synchronize()

    def memory_allocated(self, device: Device = None) -> int:
        """Bytes allocated in the HBM of this rank's SIP."""
        return self._memory().allocator.allocated

    def max_memory_allocated(self, device: Device = None) -> int:
        """Most bytes that were ever allocated there at one time."""
        statistics = self._memory().allocator.statistics
        statistics.fold()
        return statistics.groups["allocated_bytes"].stats["all"].peak

    def memory_reserved(self, device: Device = None) -> int:
        """Bytes that its caching allocator holds there."""
        return self._memory().allocator.reserved

    def empty_cache(self) -> None:
        """Give back what the caching allocator holds and nothing uses."""
        self._memory().allocator.empty_cache()

    def _memory(self) -> ProcessMemory:
        return self._simulation.storages.memory(self._simulation.hosts.current().sip).mine

    @staticmethod
    def _index(device: int | torch.device | str) -> int:
        if isinstance(device, int):
            return device
        text = str(device)
        number = whole_number(text.rpartition(":")[2])
        if number is None:
            raise ConfigError(f"device {device!r}: expected an index or 'name:index'")
        return number

    current_device_idx = current_device_index
    set_device_idx = set_device_index
