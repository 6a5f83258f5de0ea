"""``ctx.accelerator``: which SIP this rank drives, with ``torch.accelerator``'s names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kernbench.errors import ConfigError

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext


class Accelerator:
    """The SIPs of a context, numbered 0.. in the order of its ``target_device``."""

    def __init__(self, ctx: RuntimeContext) -> None:
        self._ctx = ctx

    def is_available(self) -> bool:
        """True: a context always has a SIP."""
        return True

    def device_count(self) -> int:
        """Number of SIPs that the context may use."""
        return len(self._ctx.sips)

    def current_accelerator(self) -> torch.device:
        """The torch device that values live on."""
        return torch.device("cpu")

    def set_device_index(self, device: int | torch.device | str) -> None:
        """Drive another SIP from now on."""
        index = self._index(device)
        if not 0 <= index < len(self._ctx.sips):
            raise ConfigError(f"no device {index}: this context has 0..{len(self._ctx.sips) - 1}")
        self._ctx._me().sip = self._ctx.sips[index]

    def current_device_index(self) -> int:
        """The SIP that this rank drives."""
        return self._ctx.sips.index(self._ctx._me().sip)

    def synchronize(self, device: Any = None) -> None:
        """Wait for everything that this rank has enqueued."""
        self._ctx.synchronize()

    def memory_allocated(self, device: Any = None) -> int:
        """Bytes allocated in the HBM of this rank's SIP."""
        return self._ctx.engine.memory.space("hbm", self._ctx._me().sip).used

    def max_memory_allocated(self, device: Any = None) -> int:
        """Most bytes that were ever allocated there at one time."""
        return self._ctx.engine.memory.space("hbm", self._ctx._me().sip).peak

    @staticmethod
    def _index(device: int | torch.device | str) -> int:
        if isinstance(device, int):
            return device
        text = str(device)
        number = text.rpartition(":")[2]
        if not number.isdigit():
            raise ConfigError(f"device {device!r}: expected an index or 'name:index'")
        return int(number)

    current_device_idx = current_device_index
    set_device_idx = set_device_index
