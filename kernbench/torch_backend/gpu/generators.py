"""The generators of a rank's simulated GPUs: what ``torch.cuda.manual_seed`` seeds and random operations on a GPU draw from.

A simulated GPU's tensors are CPU tensors, and torch's operations on them draw from its one default generator. So that a program
finds two streams of random numbers, as on hardware, the recorder lends the GPU's state to that generator for the length
of an operation. A GPU's stream is that of a CPU generator with the same seed: a program that draws on one kind of device only
draws what it would on the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from kernbench.torch_backend.relies_on import Reliance

_HOST = torch.default_generator


RELIES_ON = (
    Reliance(
        "torch.Tag.nondeterministic_seeded", "operations that draw random numbers have this tag",
        holds=lambda tag: tag in torch.ops.aten.normal_.default.tags and tag not in torch.ops.aten.add.Tensor.tags,
    ),
    Reliance("torch.default_generator", "torch's operations on the CPU draw from it", has=("get_state", "set_state")),
    Reliance("torch._C.Generator", "torch's own class, whatever stands in its place"),
    Reliance("torch._ops.HigherOrderOperator", "what consists of other operations may draw"),
)  # fmt: skip


class DeviceGenerators:
    """A rank's generators, one per GPU that it has used, made when asked for.

    Args:
        own: of the GPU that the rank drives at first; the others have its seed until the program gives another one.
        index: of that GPU.
    """

    def __init__(self, own: torch.Generator, index: int) -> None:
        self._seed = own.initial_seed()
        self._made: dict[int, torch.Generator] = {index: own}
        self._lent: int | None = None

    def of(self, index: int) -> torch.Generator:
        """The generator of a GPU; the same object each time, but for an operation that sets its state and then draws."""
        if index == self._lent:
            return _HOST
        generator = self._made.get(index)
        if generator is None:
            generator = self._made[index] = torch._C.Generator(device="cpu")
            generator.manual_seed(self._seed)
        return generator

    def seed_all(self, seed: int) -> None:
        """Seed the generators of all GPUs."""
        self._seed = seed
        for generator in self._made.values():
            generator.manual_seed(seed)

    @contextmanager
    def drawing(self, index: int) -> Iterator[None]:
        """Torch's default generator is a GPU's, for the length of a block."""
        generator = self.of(index)
        host = _HOST.get_state()
        _HOST.set_state(generator.get_state())
        self._lent = index
        try:
            yield
        finally:
            self._lent = None
            generator.set_state(_HOST.get_state())
            _HOST.set_state(host)


class DefaultGenerators:
    """``torch.cuda.default_generators`` of the rank that looks.

    Args:
        count: says how many GPUs there are.
        of: the generator of a GPU.
    """

    def __init__(self, count: Callable[[], int], of: Callable[[int], torch.Generator]) -> None:
        self._count = count
        self._of = of

    def __len__(self) -> int:
        return self._count()

    def __getitem__(self, index: Any) -> Any:
        picked = range(len(self))[index]
        return self._of(picked) if isinstance(picked, int) else [self._of(each) for each in picked]


def draws(func: Any) -> bool:
    """Whether an operation draws random numbers from torch's default generator, or may (one of higher order)."""
    if isinstance(func, torch._ops.HigherOrderOperator):
        return True
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
