"""A pytest plugin: tests on simulated ranks, and resources shared by parallel tests. See ``docs/testing.md``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

TestT = TypeVar("TestT", bound=Callable[..., object])

__all__ = ["requires_cuda", "requires_devices"]


def requires_cuda(n: int = 1) -> Callable[[TestT], TestT]:
    """Skip the test where there are fewer than ``n`` real GPUs; else grant it ``n`` of them."""
    import pytest

    return pytest.mark.requires_cuda(n)


def requires_devices(n: int = 1, *, memory: int | str | None = None, ports: int = 0) -> Callable[[TestT], TestT]:
    """Grant the test ``n`` devices, real or simulated, with ``memory`` (bytes or ``"2GB"``) on each, and ports."""
    import pytest

    return pytest.mark.resources(devices=n, memory=memory, ports=ports)
