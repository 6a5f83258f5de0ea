"""``random`` and ``numpy.random``: one generator state per rank, switched when it is used.

Switching these two takes about 40 us, which every switch of ranks would pay. So their functions are wrapped while ranks
run: the first one that a rank calls after another rank has used the generator brings the rank's own state back.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance


@dataclass
class _Shared:
    """A generator that a whole process shares, through the functions of a module.

    Attributes:
        resident: the rank whose state it has, None for main.
    """

    module: ModuleType
    owner: Any
    read: Callable[[], Any]
    write: Callable[[Any], None]
    seed: Callable[[int], None]
    resident: int | None = None
    states: dict[int | None, Any] = field(default_factory=dict)


_PLAIN_FUNCTIONS = ("seed", "sample", "ranf")
"""Functions of ``numpy.random`` that use its generator without being its methods."""


RELIES_ON = (
    Reliance(
        "random._inst", "the functions of `random` are methods of one generator",
        holds=lambda generator: getattr(random.random, "__self__", None) is generator,
    ),
    Reliance(
        "numpy.random.mtrand._rand", "those of `numpy.random` are, but for a few",
        holds=lambda generator: getattr(np.random.rand, "__self__", None) is generator,
    ),
    Reliance("numpy.random", "these use it without being its methods", has=_PLAIN_FUNCTIONS),
)  # fmt: skip


def _uses(function: object, owner: Any) -> bool:
    return getattr(function, "__self__", None) is owner or (
        owner is np.random.mtrand._rand
        and getattr(function, "__name__", "") in _PLAIN_FUNCTIONS
        and not isinstance(function, type)
    )


class LazyGenerators:
    """The generators of ``random`` and ``numpy.random`` for the ranks of a spawn.

    Attributes:
        resident: the rank that runs, None for main.
    """

    def __init__(self) -> None:
        self.resident: int | None = None
        self._seed_of: Callable[[int], int] | None = None
        self._shared = (
            _Shared(random, random._inst, random.getstate, random.setstate, random.seed),
            _Shared(np.random, np.random.mtrand._rand, np.random.get_state, np.random.set_state, np.random.seed),
        )

    def install(self, patches: Patches) -> None:
        """Wrap every function of the two modules that belongs to the shared generator."""
        for shared in self._shared:
            for name, function in list(vars(shared.module).items()):
                if _uses(function, shared.owner):
                    patches.set(shared.module, name, self._wrap(shared, function))

    def open(self, seed_of: Callable[[int], int]) -> None:
        """Begin anew; ``seed_of``: the seed of a rank's generators until it sets one."""
        self._seed_of = seed_of

    def keep(self, rank: int, names: Collection[str]) -> None:
        """In a process that is ``rank``'s alone: the generators of these modules go on where they are."""
        for shared in self._shared:
            if shared.module.__name__ in names:
                shared.resident = rank

    def close(self) -> None:
        """Give main its states back. Idempotent."""
        self.resident = None
        for shared in self._shared:
            self._bring(shared, None)
            shared.states.clear()
        self._seed_of = None

    def _wrap(self, shared: _Shared, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapped(*args: object, **kwargs: object) -> Any:
            if self.resident != shared.resident:
                self._bring(shared, self.resident)
            return function(*args, **kwargs)

        return wrapped

    def _bring(self, shared: _Shared, rank: int | None) -> None:
        if rank == shared.resident:
            return
        shared.states[shared.resident] = shared.read()
        if rank in shared.states:
            shared.write(shared.states[rank])
        else:
            assert rank is not None
            assert self._seed_of is not None
            shared.seed(self._seed_of(rank) % 2**32)
        shared.resident = rank
