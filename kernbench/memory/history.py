"""What an allocator did, and what it holds, in the format of ``torch.cuda.memory._snapshot``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kernbench.memory.caching_allocator import CachingAllocator
from kernbench.memory.extents import Extent

Frames = list[dict[str, Any]]

DEFAULT_POOL = (0, 0)


def stream_number(name: str) -> int:
    """The number that stands for a stream's address: 0 for the default one, as in CUDA."""
    number = name.rpartition(" ")[2]
    return int(number) if number.isdigit() else 0


class AllocationHistory:
    """The actions of one allocator, from when it is made until :meth:`close`.

    Args:
        allocator: whose actions.
        frames: the Python stack of the current caller, innermost first.
        clock: virtual time, s.
        entries: the last so many are kept; None: none, only who has what.
        context: of what stacks are kept: ``"state"``: of blocks that are there; ``"alloc"``: of entries, too; ``"all"``: of
            those about what is freed, too; None: of nothing.
        skip: actions that are not kept.
    """

    def __init__(
        self, allocator: CachingAllocator, frames: Callable[[], Frames], clock: Callable[[], float], *,
        entries: int | None, context: str | None, skip: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.entries: deque[dict[str, Any]] = deque(maxlen=entries if entries is None or entries > 0 else 0)
        self.metadata = ""
        self._keeps = entries is not None
        self._context = context
        self._allocator = allocator
        self._frames = frames
        self._clock = clock
        self._skip = frozenset(skip)
        allocator.trace = self.note

    def close(self) -> None:
        """Note nothing any more."""
        self._allocator.trace = None

    def note(self, action: str, address: int, nbytes: int, stream: str, extent: Extent | None) -> None:
        """An action of the allocator."""
        frames: Frames = []
        if action in ("alloc", "oom", "segment_alloc", "segment_map"):
            frames = self._frames() if self._context is not None else []
            if action == "alloc" and extent is not None:
                extent.context = frames
            elif extent is not None:
                extent.segment_context = frames
        elif self._context == "all":
            frames = self._frames()
        elif extent is not None and extent.context is not None:
            frames = extent.context
        if not self._keeps or action in self._skip:
            return
        if self._context == "state":
            frames = []
        place = {"device_free": address} if action == "oom" else {"addr": address}
        self.entries.append({
            "action": action, **place, "size": nbytes, "stream": stream_number(stream), "frames": frames,
            "time_us": round(self._clock() * 1e6), "compile_context": "N/A", "user_metadata": self.metadata,
            "pool_id": DEFAULT_POOL if extent is None else (0, extent.pool.owner),
        })  # fmt: skip


def segments_of(allocator: CachingAllocator, device: int) -> Iterator[dict[str, Any]]:
    """The segments of an allocator, as torch shows them."""
    for run in allocator.segments():
        address, blocks = run[0].address, []
        for extent in run:
            state = "inactive" if extent.idle else "active_awaiting_free" if extent.awaited else "active_allocated"
            requested = 0 if extent.idle else extent.requested
            blocks.append({
                "address": extent.address, "size": extent.size, "requested_size": requested, "state": state,
                "frames": extent.context or [], "user_metadata": "",
            })  # fmt: skip
        yield {
            "device": device, "address": address, "total_size": sum(each["size"] for each in blocks),
            "allocated_size": sum(each["size"] for each in blocks if each["state"] == "active_allocated"),
            "active_size": sum(each["size"] for each in blocks if each["state"] != "inactive"),
            "requested_size": sum(each["requested_size"] for each in blocks),
            "stream": stream_number(run[0].pool.stream), "segment_type": "small" if run[0].pool.small else "large",
            "segment_pool_id": (0, run[0].pool.owner), "is_expandable": run[0].arena is not None,
            "frames": run[0].segment_context or [], "blocks": blocks,
        }  # fmt: skip
