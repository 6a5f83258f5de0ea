"""Collectives whose algorithm is a Triton kernel over the peers' buffers and signal words.

Such an algorithm's module has ``run(call)``, the code of one rank, which launches a kernel (or several, one after the
other) as it would on hardware. Here it is called for every member, the launches are collected, and the k-th of all members
run as one batch: members that wait for each other's signals make progress together, and one that waits for a signal that
is never sent is a :class:`~kernbench.errors.DeadlockError` that names kernel, line, address and values.

Buffers are registered before: each member's input is copied into one, so that an in-place call cannot overwrite what a
peer has still to read. Signal words are kept from call to call, as on hardware.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from kernbench.ccl.expressions import WIDE_DTYPES
from kernbench.ccl.reduce_op import PREMULTIPLIED_AVERAGE, ReduceOp, Reduction
from kernbench.errors import ConfigError, DeadlockError
from kernbench.triton_engine.launching import set_launch_sink
from kernbench.triton_engine.machine import Execution, Launch
from kernbench.triton_engine.memory import AllocationMap, RegisteredAllocations, write_epoch
from kernbench.triton_engine.values import way_of_reading

EPOCHS = 2
"""How much ``epoch`` grows from call to call: a kernel may meet its peers that often."""


_MOST_YIELDS = 1000
"""Turns in a row that kernels may give way without anything changing, before they count as waiting for another writer."""


@dataclass(frozen=True)
class KernelCall:
    """What one rank's ``run(call)`` gets.

    Attributes:
        rank, world: this rank's number in the group, and the group's size.
        count: elements of a member's buffer.
        inputs, outputs, signals: ``[world]`` int64 tables of addresses: every member's registered input, its output, and
            its int32 signal words (``signal_words(world, count)`` of the module, zero at first).
        dtype, wide: the elements' type, and the one to keep sums in, as Triton types.
        op: ``sum``, ``product``, ``min`` or ``max``; of ``avg`` the division comes after the kernel.
        epoch: a number that grows by 2 from call to call, to put into signal words.
        root: the root's number, None without one.
    """

    rank: int
    world: int
    count: int
    inputs: torch.Tensor
    outputs: torch.Tensor
    signals: torch.Tensor
    dtype: Any
    wide: Any
    op: str
    epoch: int
    root: int | None = None


class KernelCollectives:
    """Runs them for one context; keeps the signal words of each group."""

    def __init__(self) -> None:
        self._signals: dict[tuple[str, tuple[int, ...], int], tuple[list[torch.Tensor], int]] = {}

    def run(
        self,
        module: ModuleType,
        ranks: tuple[int, ...],
        inputs: Sequence[Sequence[torch.Tensor]],
        outputs: Sequence[Sequence[torch.Tensor]],
        op: Reduction | None,
        root: int | None,
    ) -> None:
        """Move the values of one collective.

        Args:
            module: the algorithm.
            ranks: the members, for messages.
            inputs, outputs: per member, its tensors (see :mod:`kernbench.ccl.movements`); they are joined to one buffer.

        Raises:
            ConfigError: ``run`` launched nothing, or not the same on every member.
            DeadlockError: every member waits for a signal that is never sent.
        """
        sent = [_joined(tensors) for tensors in inputs]
        if op is PREMULTIPLIED_AVERAGE:
            sent = [op.contribution(buffer, len(ranks)) for buffer in sent]
        received = [_joined(tensors) for tensors in outputs]
        count = max((buffer.numel() for buffer in (*sent, *received)), default=0)
        if count == 0:
            return
        words = getattr(module, "signal_words", lambda members, count: members)(len(ranks), count)
        key = (module.__name__, ranks, words)
        signals, epoch = self._signals.get(key) or ([torch.zeros(words, dtype=torch.int32) for _ in ranks], 1)
        self._signals[key] = (signals, epoch + EPOCHS)
        tables = [torch.tensor([buffer.data_ptr() for buffer in buffers]) for buffers in (sent, received, signals)]
        dtype = next(buffer.dtype for buffer in (*sent, *received) if buffer.numel())
        collected: list[list[Launch]] = []
        for number, rank in enumerate(ranks):
            call = KernelCall(
                rank=number, world=len(ranks), count=count, inputs=tables[0], outputs=tables[1], signals=tables[2],
                dtype=_triton_type(dtype), wide=_triton_type(WIDE_DTYPES.get(dtype, dtype)),
                op="sum" if op in (None, ReduceOp.AVG, PREMULTIPLIED_AVERAGE) else op.value, epoch=epoch, root=root,
            )  # fmt: skip
            collected.append(_launches_of(module, call, rank))
        lengths = {len(launches) for launches in collected}
        if len(lengths) > 1 or not collected[0]:
            raise ConfigError(
                f"{module.__name__}.run launched {sorted(lengths)} kernels on its members: expected as many on each, at "
                "least one"
            )
        memory = RegisteredAllocations()  # all that such a kernel may touch
        for what, buffers in (("input", sent), ("output", received), ("signals", signals)):
            for rank, buffer in zip(ranks, buffers, strict=True):
                memory.register(buffer, what, rank)
        for table in tables:
            memory.register(table, "table of addresses")
        for together in zip(*collected, strict=True):
            run_together(together, memory)
        for tensors, buffer in zip(outputs, received, strict=True):
            if not tensors:
                continue
            if op is not None:
                op.finish(buffer, len(ranks))
            for tensor, part in zip(tensors, buffer.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view(tensor.shape))


def run_together(launches: Sequence[Launch], memory: AllocationMap) -> None:
    """Run launches of several ranks to their ends, each going on while another waits for it.

    Those of one compiled kernel and grid are one batch. (Triton compiles another one for arguments that are 1 or divide by
    16, a rank's number for instance.)

    Raises:
        DeadlockError: no rank can go on, and nothing has been written since they looked.
    """
    alike: dict[Hashable, list[Launch]] = {}
    for launch in launches:
        alike.setdefault((id(launch.program), launch.grid, tuple(map(way_of_reading, launch.args))), []).append(launch)
    running = [Execution(batch, memory) for batch in alike.values()]
    fruitless = 0
    while running:
        before, had = write_epoch.count, len(running)
        statuses = [(execution, execution.run()) for execution in running]
        running = [execution for execution, status in statuses if status != "done"]
        moved = len(running) < had or write_epoch.count != before
        fruitless = 0 if moved else fruitless + 1
        yielded = any(status == "yielded" for _, status in statuses)
        if running and not moved and (not yielded or fruitless > _MOST_YIELDS):
            raise DeadlockError("\n".join(execution.describe_wait() for execution in running))


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A member's tensors as one new buffer."""
    if not tensors:
        return torch.empty(0)
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _launches_of(module: ModuleType, call: KernelCall, rank: int) -> list[Launch]:
    collected: list[Launch] = []

    class Collector:
        def submit(self, launch: Launch) -> None:
            launch.rank = rank
            collected.append(launch)

        def memory(self) -> None:
            return None

        def aside(self) -> AbstractContextManager[None]:
            return nullcontext()

        def say(self, sentence: str) -> None:
            pass

    before = set_launch_sink(Collector())
    try:
        module.run(call)
    finally:
        set_launch_sink(before)
    return collected


def _triton_type(dtype: torch.dtype) -> object:
    import triton.language as tl

    names = {torch.bool: "int1", torch.float16: "float16", torch.bfloat16: "bfloat16"}
    return getattr(tl, names.get(dtype, str(dtype).removeprefix("torch.")))
