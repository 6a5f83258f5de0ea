"""What torch's Python code finds where a process group's backend would be: answers to its questions, and options."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from kernbench.torch_backend.process_groups.absent_calls import AbsentInBackends


class BackendStandIn(AbsentInBackends):
    """What ``ProcessGroup._get_backend`` returns: the answers that torch's Python code asks it for.

    Args:
        group: whose backend it is.
        backend: its name.
    """

    supports_splitting = True
    supports_time_estimate = False
    supports_shrinking = False

    def __init__(self, group: Any, backend: str) -> None:
        self._group = group
        self._backend = backend
        self.options = BackendOptions(backend, group.timeout)

    def name(self) -> str:
        return self._backend

    @property
    def supports_coalescing(self) -> bool:
        """Whether ``batch_isend_irecv`` is one call: NCCL's is."""
        return self._backend == "nccl"

    def rank(self) -> int:
        return self._group.rank()

    def size(self) -> int:
        return self._group.size()

    def comm_split_count(self) -> int:
        return self._group.splits

    def _is_initialized(self) -> bool:
        return self._group.connected

    def set_timeout(self, timeout: timedelta) -> None:
        self._group.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def _set_sequence_number_for_group(self) -> None:
        """Sequence numbers exist from the start."""

    def perform_nocolor_split(self, device: torch.device) -> None:
        """Nothing is shared that a non-member would have to take part in."""

    def eager_connect_single_device(self, device: torch.device | None) -> None:
        """Simulated links need no connection."""

    uid = 0

    def _add_ephemeral_timeout(self, timeout: timedelta) -> None:
        """Nothing is watched by wall-clock time."""

    def _group_start(self) -> None:
        """Nothing to group: what was posted completes or is reported."""

    _group_end = _group_start

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether :meth:`allocate_tensor` may be called: NCCL has memory of its own where GPUs can multicast."""
        return self._backend == "nccl" and torch.device(device).type == "cuda" and bool(self._group.supports_multicast)

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory that is registered with NCCL: reached as any other, see :meth:`register_mem_pool`."""
        if not self.supports_tensor_alloc(device):
            raise RuntimeError(f"Backend {self._backend} does not support tensor allocation: use torch.empty")
        return torch.empty(size, dtype=dtype, device=device)

    mem_allocator = None
    """The allocator of a pool whose memory is registered with NCCL: any."""

    def register_mem_pool(self, pool: object, symm: bool = False) -> None:
        """Memory that is registered is reached as any other; what it would save is not modelled."""

    deregister_mem_pool = register_mem_pool

    def abort(self) -> None:
        """Nothing to stop."""

    shutdown = abort


class BackendOptions:
    """The options of a backend: a timeout and what torch's code notes in them."""

    def __init__(self, backend: str = "nccl", timeout: timedelta = timedelta(minutes=10), **kwargs: object) -> None:
        self.backend = backend
        self._timeout = timeout
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self.is_high_priority_stream = bool(kwargs.get("is_high_priority_stream", False))
        self.config = NcclConfig()
        self.split_from: Any = None
        self.split_color = 0


class NcclConfig:
    """NCCL's tuning knobs: kept, without effect."""
