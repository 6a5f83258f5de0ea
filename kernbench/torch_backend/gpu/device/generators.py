"""The generators of a rank's simulated GPUs: what ``torch.cuda.manual_seed`` seeds and random operations on a GPU draw from.

A simulated GPU's tensors are CPU tensors, and torch's operations on them draw from its one default generator. So that a program
finds two streams of random numbers, as on hardware, the recorder lends the GPU's state to that generator for the length
of an operation. A GPU's stream is that of a CPU generator with the same seed: a program that draws on one kind of device only
draws what it would on the other.

A program may have several states and change between them, also of what a CUDA graph draws (:class:`GpuGenerator`, ADR 0140).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.types import Device

from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.relies_on import Reliance

_HOST = torch.default_generator


RELIES_ON = (
    Reliance(
        "torch.Tag.nondeterministic_seeded", "operations that draw random numbers have this tag",
        holds=lambda tag: tag in torch.ops.aten.normal_.default.tags and tag not in torch.ops.aten.add.Tensor.tags,
    ),
    Reliance("torch.default_generator", "torch's operations on the CPU draw from it", has=("get_state", "set_state")),
    Reliance(
        "torch._C.Generator", "torch's own class, whatever stands in its place; two that draw from one object have its number",
        has=("_cdata", "clone_state", "graphsafe_get_state", "graphsafe_set_state"),
    ),
    Reliance("torch._ops.HigherOrderOperator", "what consists of other operations may draw"),
)  # fmt: skip


class GpuGenerator(torch._C.Generator):
    """A generator of a simulated GPU: its state may be another one's, too, as CUDA's may.

    What :meth:`graphsafe_get_state` gives shares the state: who draws from one moves the other.
    """

    _shares: torch.Generator | None = None  # whose state it has, None: its own

    def __init__(self, device: Device = "cpu") -> None:
        _MADE[_number(self)] = self

    @classmethod
    def on(cls, home: torch.Generator) -> GpuGenerator:
        """One that shares the state of ``home``, which is one of torch's."""
        made = cls(device="cpu")
        made._shares = home
        return made

    @property
    def home(self) -> torch.Generator:
        """The generator that torch's operations draw from."""
        return self if self._shares is None else self._shares

    def graphsafe_get_state(self) -> GpuGenerator:
        """A generator that shares the state."""
        return GpuGenerator.on(self.home)

    def graphsafe_set_state(self, state: torch.Generator) -> GpuGenerator:
        """From now on share the state of another one. Raises TypeError if that is not a generator of a GPU."""
        if not isinstance(state, GpuGenerator):
            raise TypeError(f"expected a generator of a GPU, such as graphsafe_get_state() gives, got {state!r}")
        self._shares = None if state.home is self else state.home
        return self

    def clone_state(self) -> GpuGenerator:
        """A generator with a copy of the state."""
        return GpuGenerator.on(torch._C.Generator.clone_state(self.home))

    def get_state(self) -> torch.Tensor:
        """The state, as bytes."""
        return torch._C.Generator.get_state(self.home)

    def set_state(self, new_state: torch.Tensor) -> GpuGenerator:
        """Change the state, for all that share it."""
        torch._C.Generator.set_state(self.home, new_state)
        return self

    def manual_seed(self, seed: int) -> GpuGenerator:
        """Begin anew with a seed, for all that share the state."""
        torch._C.Generator.manual_seed(self.home, seed)
        return self

    def seed(self) -> int:
        """Begin anew with a random seed, and say which."""
        return torch._C.Generator.seed(self.home)

    def initial_seed(self) -> int:
        """The seed that it began with."""
        return torch._C.Generator.initial_seed(self.home)


def _number(generator: Any) -> int:
    number: int = generator._cdata
    return number


def home_of(generator: torch.Generator) -> torch.Generator:
    """What torch's operations draw from when a program gives them ``generator``."""
    ours = _MADE.get(_number(generator))
    return generator if ours is None else ours.home


def as_it_is(generator: torch.Generator) -> torch.Generator:
    """A generator that keeps to the state which ``generator`` has now, whatever other one that may be given later."""
    ours = _MADE.get(_number(generator))
    return generator if ours is None else ours.graphsafe_get_state()


def is_of_gpu(generator: torch.Generator) -> bool:
    """Whether a generator that a program gives an operation is one of a simulated GPU."""
    return _number(generator) in _MADE


_MADE: weakref.WeakValueDictionary[int, GpuGenerator] = weakref.WeakValueDictionary()
"""Ours, by torch's object behind them: an operation is given one of torch's that has the same."""


class DeviceGenerators:
    """A rank's generators, one per GPU that it has used, made when asked for.

    Args:
        own: of the GPU that the rank drives at first; the others have its seed until the program gives another one.
        index: of that GPU, asked when one is used: a program that only seeds has not chosen yet.
    """

    def __init__(self, own: torch.Generator, index: Callable[[], int]) -> None:
        self._seed = own.initial_seed()
        self._own = GpuGenerator.on(own)
        self._index = index
        self._made: dict[int, GpuGenerator] = {}
        self._lent: int | None = None
        self._captured: dict[int, torch.Generator] = {}

    def of(self, index: int) -> torch.Generator:
        """The generator of a GPU; the same object each time, but for an operation that sets its state and then draws."""
        if index == self._lent:
            return _HOST
        if not self._made:
            self._made[self._index()] = self._own
        generator = self._made.get(index)
        if generator is None:
            generator = self._made[index] = GpuGenerator(device="cpu")
            generator.manual_seed(self._seed)
        return generator

    def seed_all(self, seed: int) -> None:
        """Seed the generators of all GPUs."""
        self._seed = seed
        for generator in {id(each): each for each in (self._own, *self._made.values())}.values():
            generator.manual_seed(seed)

    def home(self, index: int) -> torch.Generator:
        """Whose state operations on a GPU draw from now, if the program gives them no generator."""
        captured = None if index == self._lent else self._captured.get(index)
        return home_of(self.of(index)) if captured is None else captured

    def as_now(self, compute: Callable[[], Any]) -> Callable[[], Any]:
        """``compute``, which will draw from the states that the generators have now, whatever they have by then."""
        self.of(self._index())
        homes = {index: generator.home for index, generator in self._made.items()}

        def drawing_from_them() -> object:
            before, self._captured = self._captured, homes
            try:
                return compute()
            finally:
                self._captured = before

        return drawing_from_them

    @contextmanager
    def drawing(self, index: int) -> Iterator[None]:
        """Torch's default generator is a GPU's, for the length of a block."""
        generator = self.home(index)
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


def draws(func: OpOverload) -> bool:
    """Whether an operation draws random numbers from torch's default generator, or may (one of higher order)."""
    if isinstance(func, torch._ops.HigherOrderOperator):
        return True
    return torch.Tag.nondeterministic_seeded in getattr(func, "tags", ())
