"""Changes of a program after which an allocation that failed would have had room, and which it does not make yet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernbench.memory.ledger import ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS, TEMPORARIES, Composition
from kernbench.memory.limits import format_size
from kernbench.memory.modules import recomputation_of


@dataclass(frozen=True)
class ModelInput:
    """The first tensor that a model is called with.

    Attributes:
        module: the class of the outermost module.
        shape: of the tensor.
    """

    module: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ProgramState:
    """What a program is known to do already.

    Attributes:
        trains: whether activations are kept for a backward pass.
        given: the first tensor that its model was called with last; None: no module has been called.
        inputs: bytes of what modules are given, by name.
        divided: among how many ranks parameters, gradients and optimizer state are divided, by category; left out: each rank
            has all of them.
    """

    trains: bool = False
    given: ModelInput | None = None
    inputs: Mapping[str, int] = field(default_factory=dict)
    divided: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Shortage:
    """An allocation that had no room, and what there was then.

    Attributes:
        requested: bytes that were asked for.
        wanted: bytes of the segment that they would have been in.
        room: bytes that could have been reserved, after all caches had been given back.
        allocated, reserved: bytes in use, and kept by the allocator.
        world: number of ranks.
        scales: whether what a program does then takes memory in proportion to the batch: it is in no step of an optimizer.
        settings: of the allocator.
        composition: what was in use for what.
        others: bytes that other ranks have reserved on the same device, by rank.
        pieces: bytes of the free blocks that are reserved, largest first.
        program: what it is known to do already.
    """

    requested: int
    wanted: int
    room: int
    allocated: int
    reserved: int
    world: int
    scales: bool
    settings: str
    composition: Composition
    others: dict[int, int] = field(default_factory=dict)
    pieces: Sequence[int] = ()
    program: ProgramState = field(default_factory=ProgramState)

    @property
    def missing(self) -> int:
        """Bytes that there were too few."""
        return max(self.wanted - self.room, 0)

    @property
    def expandable(self) -> bool:
        """Whether segments are expandable already."""
        return "expandable_segments:True" in self.settings


def remedies_of(shortage: Shortage) -> Iterator[str]:
    """In sentences. What makes use of the largest part of the memory comes first, then what moves memory to the host."""
    categories, state = shortage.composition.categories, (PARAMETERS, GRADIENTS, OPTIMIZER)
    groups = [
        (categories.get(ACTIVATIONS, 0) + categories.get(TEMPORARIES, 0), [*_recompute(shortage), *_smaller_input(shortage)]),
        (sum(categories.get(each, 0) for each in state), [*_shard(shortage)]),
        (shortage.reserved - shortage.allocated, [*_join_pieces(shortage)]),
        (sum(shortage.others.values()), [*_own_device(shortage)]),
    ]  # fmt: skip
    for _, found in sorted(groups, key=lambda group: -group[0]):
        yield from found
    yield from _offload(shortage)
    yield f"{format_size(shortage.missing)} more memory"


def _recompute(shortage: Shortage) -> Iterator[str]:
    found = recomputation_of(shortage.composition.activations, shortage.program.inputs)
    if shortage.program.trains and found is not None and found.saved >= max(shortage.missing, 1):
        yield (
            f"recomputing activations in the backward pass (torch.utils.checkpoint) of {found.layers}, {found.count} modules: "
            f"frees about {format_size(found.saved)}; one of them has {format_size(found.again)} again while its own runs"
        )


def _smaller_input(shortage: Shortage) -> Iterator[str]:
    categories = shortage.composition.categories
    batch = categories.get(ACTIVATIONS, 0) + categories.get(TEMPORARIES, 0) + shortage.requested
    if not shortage.scales or batch <= shortage.missing:
        return
    taken = f"activations, temporaries and this request, {format_size(batch)}, taken as proportional to it"
    given = shortage.program.given
    if given is None:
        yield f"a batch of at most {1 - shortage.missing / batch:.0%} of this one: {taken}"
        return
    for number, (what, which) in enumerate((("micro-batch", "first"), ("sequence", "second"))):
        size = given.shape[number] if number < len(given.shape) else 0
        fits = size * (batch - shortage.missing) // batch
        if 0 < fits < size:
            yield f"a {what} of {fits} instead of {size} ({which} dimension of the input of {given.module}): {taken}"
            return


def _shard(shortage: Shortage) -> Iterator[str]:
    """Optimizer state alone if that suffices, else all that parameters have; among as few ranks as suffice."""
    categories, divided = shortage.composition.categories, shortage.program.divided
    for names in ((OPTIMIZER,), (PARAMETERS, GRADIENTS, OPTIMIZER)):
        for ways in range(2, shortage.world + 1):
            before = {name: divided.get(name, 1) for name in names if categories.get(name)}
            more = {name: few for name, few in before.items() if few < ways and ways % few == 0}
            freed = sum(categories[name] * (ways - few) // ways for name, few in more.items())
            if freed >= max(shortage.missing, 1):
                what = " and ".join(filter(None, (", ".join([*more][:-1]), [*more][-1])))
                instead = f" instead of {max(more.values())}" if max(more.values()) > 1 else ""
                yield (
                    f"sharding {what} over {ways} ranks{instead}, which frees {format_size(freed)} (if the ranks have the "
                    "same; buffers to gather them are not counted)"
                )
                return


def _join_pieces(shortage: Shortage) -> Iterator[str]:
    cached = shortage.reserved - shortage.allocated
    if 0 < cached >= shortage.requested - shortage.room and not shortage.expandable:
        yield (
            f"PYTORCH_ALLOC_CONF=expandable_segments:True, which is modelled: {format_size(cached)} are reserved and free, in "
            "pieces (taken as usable whole)"
        )


def _own_device(shortage: Shortage) -> Iterator[str]:
    if shortage.others and sum(shortage.others.values()) >= shortage.missing:
        yield (
            "a GPU for each rank: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before anything is allocated, and "
            "map_location where tensors are loaded"
        )


def _offload(shortage: Shortage) -> Iterator[str]:
    categories = shortage.composition.categories
    ways = [
        (ACTIVATIONS, "torch.autograd.graph.save_on_cpu, for layers whose copies it hides"),
        (OPTIMIZER, "FSDP2: CPUOffloadPolicy, with parameters and gradients"),
    ]  # fmt: skip
    for what, how in sorted(ways, key=lambda way: -categories.get(way[0], 0)):
        nbytes = categories.get(what, 0)
        if nbytes >= max(shortage.missing, 1) and (what != ACTIVATIONS or shortage.program.trains):
            yield f"keeping {what} on the host ({how}): frees at most {format_size(nbytes)}"
