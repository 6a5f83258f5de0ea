"""Memory of CUDA graphs: their pools, and who holds what a capture has taken, the program or the recording alone (ADR 0233).

A recording keeps the tensors that its steps compute with, so that a replay has the same bytes. On a GPU nothing does: what the
program drops is free in the graph's pool at once, and is given out again, within the capture and to the graphs that share the
pool. So a block that recordings alone still hold is given back to the allocator. Its bytes stay with them: two results that
share memory on a GPU have their own here, and the values of both.

Tensors that a program has of such memory without holding it (:func:`weak_reference`) count as the recordings' do.

Whether the program holds a storage is counted when that matters: before anything is taken from the pool, when a peak is noted,
and when memory is asked about.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from kernbench.memory.ledger import EXTENT, Entry
from kernbench.simulation.memory.process_memory import ProcessMemory
from kernbench.simulation.memory.storages import NOTE, Block
from kernbench.simulation.memory.tensor_queries import storage_of
from kernbench.torch_backend.relies_on import Reliance


def _counts_references(count: Any) -> bool:
    tensor = torch.zeros(1)
    tensor.untyped_storage().kernbench_seen = True  # type: ignore[attr-defined]
    number = tensor.untyped_storage()._cdata
    alone, view = count(number), tensor.detach()
    return bool(alone == 1 + _OF_PYTHON and count(number) == alone + 1 and view is not tensor)


_OF_PYTHON = 1
"""References to a storage that its Python object has."""
RELIES_ON = (
    Reliance("torch._C._storage_Use_Count", "a storage whose Python object is there counts that, and each tensor that has it",
             holds=_counts_references),
)  # fmt: skip

_SEED_BYTES = 8
"""Of a generator that graphs draw from, torch keeps seed and offset on the GPU, a tensor each, once for all graphs."""


class GraphPool:
    """The pool of one or more graphs of a process on one SIP.

    Args:
        number: of the pool, to the allocator.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.graphs = 0
        self._blocks: dict[int, weakref.ref[Block]] = {}
        self._references: Counter[int] = Counter()

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is in memory of the pool that the program may hold."""
        if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
            return False
        block = getattr(storage_of(tensor), NOTE, None)
        if type(block) is not Block or block.entry is None or block.shared:
            return False
        return bool(block.entry[EXTENT].pool.owner == self.number)

    def hold(self, tensor: torch.Tensor) -> int:
        """There is this tensor, by which the program does not hold its memory; gives the storage's number."""
        storage = storage_of(tensor)
        number: int = storage._cdata
        self._blocks[number] = weakref.ref(getattr(storage, NOTE))
        self._references[number] += 1
        return number

    def release(self, held: Counter[int]) -> None:
        """Such tensors are gone, by storages."""
        self._references.subtract(held)
        for number in held:
            if self._references[number] <= 0:
                del self._references[number]
                self._blocks.pop(number, None)

    def settle(self) -> None:
        """Give back what the program does not hold."""
        for number, found in list(self._blocks.items()):
            block = found()
            if block is None or block.entry is None:
                self._blocks.pop(number, None)
            elif torch._C._storage_Use_Count(number) <= self._references[number] + _OF_PYTHON:
                self._blocks.pop(number, None)
                block.let_go()


def weak_reference(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in the same memory that does not keep it for the program, where it is a graph's: the graph has the bytes.

    Other memory it keeps, as freed memory has no bytes here. A view of it holds what it is of, as long as the view lives.
    """
    found = tensor.detach()
    block = getattr(storage_of(found), NOTE, None)
    pools = block.owner.graph_pools.values() if type(block) is Block else ()
    for pool in pools:
        assert isinstance(pool, GraphPool)
        if pool.owns(found):
            weakref.finalize(found, pool.release, Counter([pool.hold(found)])).atexit = False
    return found


class RecordedMemory:
    """What one graph has of its pool, until it is forgotten.

    Args:
        memories: of the process; the first is that of the SIP on which the capture begins.
        number: of the pool.
        generators: that the graph may draw from.
    """

    def __init__(self, memories: list[ProcessMemory], number: int, generators: Iterable[Any]) -> None:
        self.memories = memories
        first = memories[0]
        pool = first.graph_pools.setdefault(number, GraphPool(number))
        assert isinstance(pool, GraphPool)
        self.pool = pool
        pool.graphs += 1
        self._held: Counter[int] = Counter()
        self._expected: list[torch.Tensor] = []
        self._generators = [_Seeds.of(first, each) for each in generators]

    def alias(self, value: Any) -> Any:
        """A value of an operation's call for the recording: for tensors of the pool others in the same memory."""
        if type(value) in (list, tuple):
            return type(value)(map(self.alias, value))
        if not isinstance(value, torch.Tensor):
            return value
        alias = value.detach()  # the same memory, also when a program gives the tensor other data later
        if self.pool.owns(value):
            self._held[self.pool.hold(alias)] += 1
        return alias

    def expect(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """The recording has tensors that the program has not, and that are put in the pool next."""
        self._expected += tensors
        return tensors

    def hold_expected(self) -> None:
        """They are there, if they are to be."""
        for tensor in self._expected:
            if self.pool.owns(tensor):
                self._held[self.pool.hold(tensor)] += 1
        self._expected.clear()

    def forget(self) -> bool:
        """The graph is gone, with its steps. Whether it was the last of its pool."""
        self.pool.release(self._held)
        self._expected.clear()
        self._held.clear()
        for each in self._generators:
            each.release()
        self._generators.clear()
        self.pool.graphs -= 1
        if self.pool.graphs:
            return False
        for memory in self.memories:
            memory.graph_pools.pop(self.pool.number, None)
        return True


class _Seeds:
    """Seed and offset of a generator on a SIP, as long as a graph has it."""

    def __init__(self, memory: ProcessMemory, generator: torch.Generator) -> None:
        self._memory = memory
        self._key = id(generator)
        self._generator = generator  # so that no other one has its number
        self._entries: list[Entry | None] = [memory.take(_SEED_BYTES) for _ in range(2)]
        self._users = 0

    @classmethod
    def of(cls, memory: ProcessMemory, generator: torch.Generator) -> _Seeds:
        """Those of a generator, which have one user more."""
        found = memory.seeds.get(id(generator))
        if found is None:
            found = memory.seeds[id(generator)] = cls(memory, generator)
        assert isinstance(found, _Seeds)
        found._users += 1
        return found

    def release(self) -> None:
        """One user less."""
        self._users -= 1
        if not self._users:
            self._memory.seeds.pop(self._key, None)
            for entry in filter(None, self._entries):
                self._memory.give_back(entry)
