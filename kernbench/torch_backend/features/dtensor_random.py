"""DTensor's random operations on simulated GPUs.

DTensor lets the ranks that hold a tensor's shards draw from one stream of random numbers, each from its place: it reads and
writes the offset in the state of a GPU's generator. A simulated GPU's generator is a CPU generator, whose state has no offset.
Here a state at another offset is that of a generator seeded with both: shards differ, holders of one shard agree, and
afterwards the generators of all ranks are at the same place.
"""

from __future__ import annotations

import hashlib
from types import ModuleType
from typing import Any

import torch

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch.distributed.tensor._random"


RELIES_ON = (
    Reliance(
        f"{MODULE}._PhiloxState", "a generator's state is used through these", looked_up_by=(MODULE,), parameters=("state",),
        has=("state", "offset", "seed"),
    ),
    Reliance(f"{MODULE}.OffsetBasedRNGTracker.__init__", "it compares states by `all`, element by element",
             holds=lambda function: "all" in function.__code__.co_names),
    Reliance("torch._C.Generator", "torch's own class, whatever stands in its place"),
)  # fmt: skip


class GeneratorState:
    """A generator's state with an offset from where it was read.

    Args:
        state: of torch's CPU generator, uint8.
    """

    def __init__(self, state: torch.Tensor) -> None:
        self._base = state.to("cpu")
        self._offset = 0

    @property
    def offset(self) -> torch.Tensor:
        """int64, shape [1]."""
        return torch.tensor([self._offset])

    @offset.setter
    def offset(self, offset: torch.Tensor) -> None:
        self._offset = int(offset)

    @property
    def seed(self) -> torch.Tensor:
        """uint64, shape [1]: stands for the base state."""
        return torch.tensor([self._mixed(0)], dtype=torch.uint64)

    @property
    def state(self) -> torch.Tensor:
        """To be given to a generator, uint8."""
        if self._offset == 0:
            return self._base
        generator = torch._C.Generator(device="cpu")
        return generator.manual_seed(self._mixed(self._offset)).get_state()

    def _mixed(self, offset: int) -> int:
        digest = hashlib.blake2b(self._base.numpy().tobytes(), digest_size=8, key=offset.to_bytes(8, "little"))
        return int.from_bytes(digest.digest(), "little") >> 1


def install(patches: Patches, module: ModuleType) -> None:
    """Give DTensor this state, and have it compare states at once."""
    patches.set(module, "_PhiloxState", GeneratorState)
    patches.add(module, "all", _all)


def _all(values: Any) -> bool:
    """``all``, which of a tensor is one look of the host.

    The tracker compares states element by element. CUDA's have 16 bytes, those that stand for them 5,056: as many looks, of
    which each takes the host some microseconds, would be 35 ms that no hardware takes.
    """
    return bool(values.all()) if isinstance(values, torch.Tensor) else all(values)
