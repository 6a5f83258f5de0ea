"""What Triton receives as torch's device: the CPU, or whatever a simulator of GPUs says."""

from __future__ import annotations

from typing import Protocol


class TorchNames(Protocol):
    """Torch's side of a device that Triton asks for."""

    def index(self) -> int | None:
        """Number of the current ``cuda`` device; None where there is none: on the CPU."""

    def interface(self) -> object:
        """What stands for ``torch.cuda`` in ``triton.testing``."""

    def clear_cache(self) -> None:
        """The last-level cache of the device holds nothing that is asked for next."""


gpu: TorchNames | None = None
"""The source of the names; None: unset."""

ESTIMATE = 1e6
"""What the estimate of ``do_bench`` receives, in milliseconds: more than any budget, so that a measurement is one run."""


def torch_names() -> TorchNames | None:
    """Who is asked, if there is a current ``cuda`` device."""
    return None if gpu is None or gpu.index() is None else gpu
