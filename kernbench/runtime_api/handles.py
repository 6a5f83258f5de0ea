"""Handles: promises of enqueued operations, as a rank program sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kernbench.sim_engine.operation import Operation

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext

Handle = Operation
"""What ``ctx.launch`` returns and ``ctx.wait`` takes."""


class Work:
    """The handle of a collective, as ``torch.distributed.Work``.

    Args:
        ctx: the context.
        operation: this rank's part of the collective.
        tensors: what the collective writes on this rank.
    """

    def __init__(self, ctx: RuntimeContext, operation: Operation, tensors: Sequence[Any]) -> None:
        self._ctx = ctx
        self._tensors = tensors
        self.operation = operation

    def wait(self, timeout: Any = None) -> bool:
        """Block this rank until the collective is complete. Raises what made it fail."""
        self._ctx.wait(self.operation)
        return True

    def is_completed(self) -> bool:
        """Whether :meth:`wait` would return at once. Asking lets the others go on, so a loop of this ends."""
        if not self.operation.done:
            self._ctx.polls.look(self.operation)
        return self.operation.done

    def is_success(self) -> bool:
        """Whether it is complete and did not fail."""
        return self.operation.done and self.operation.error is None

    def exception(self) -> BaseException | None:
        """What made it fail, if anything did."""
        return self.operation.error

    def result(self) -> list[Any]:
        """The tensors that it wrote; waits for them."""
        self.wait()
        return list(self._tensors)

    def source_rank(self) -> int:
        """Rank that the data came from; -1 for collectives."""
        return -1

    def __repr__(self) -> str:
        return f"<Work {self.operation!r}>"
