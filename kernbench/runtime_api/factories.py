"""Tensor factories of a context: ``ctx.zeros``, ``ctx.randn`` ... with torch's signatures.

They allocate in the HBM of the SIP that the calling rank drives. ``dtype`` may be a torch dtype or a name (``"f16"``).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch.types import Device

from kernbench.errors import ConfigError
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.types import GivenDtype, as_dtype
from kernbench.simulation.memory.tensor_queries import poison
from kernbench.simulation.simulation import Simulation
from kernbench.simulation.values.known_values import are_whole, keep
from kernbench.torch_backend.gpu.memory.host_memory import explain
from kernbench.torch_backend.hollow.shapes import hollow


def _size(size: tuple[Any, ...]) -> tuple[int, ...]:
    if len(size) == 1 and not isinstance(size[0], int):
        return tuple(size[0])
    return size


class Factories:
    """Makes tensors in the memory of the SIP that the running rank drives."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        spec = simulation.topology.system.host
        self._called = spec.factor * spec.operator

    def _make(self, make: Any, name: str, requires_grad: bool, kernel: str = "", *, given: bool = False) -> Tensor:
        """``make(device)`` builds a plain tensor: on the CPU, or without values when only time is modelled.

        ``kernel``: torch's operation that fills it on a GPU; without one, nothing is launched.
        ``given``: its values are the host's.
        """
        simulation = self._simulation
        host = simulation.hosts.current()
        with host.as_one():
            storages = simulation.storages
            with_values = storages.has_data or (given and are_whole((make("meta"),)))
            try:
                made = make("cpu") if with_values else hollow(make)
            except RuntimeError as error:
                explain(error, simulation, f"ctx.{sys._getframe(1).f_code.co_name}")
                raise
            if with_values:
                keep(storages, made)
        host.uses_gpu = True
        storages.put(made, storages.memory(host.sip))
        storages.adopt(made, host, name)
        if kernel and not host.unrecorded:
            host.prepare(self._called)
            simulation.streams.enqueue(host, f"{kernel}.default", simulation.op_costs.of_tensors(kernel, [], [made]))
        tensor: Any = made.as_subclass(Tensor)
        return tensor.requires_grad_() if requires_grad else tensor

    def _draw(
        self, draw: Any, name: str, requires_grad: bool, kernel: str, generator: torch.Generator | None = None
    ) -> Tensor:
        """``draw(device=, generator=)`` builds a plain tensor of random numbers, from the rank's own generator by default."""
        source = generator or self._simulation.hosts.current().generator
        return self._make(
            lambda where: draw(device=where, generator=None if where == "meta" else source), name, requires_grad, kernel
        )

    def empty(
        self,
        *size: object,
        dtype: GivenDtype = None,
        device: Device = None,
        requires_grad: bool = False,
        name: str = "",
    ) -> Tensor:
        """A tensor of unwritten memory: it is poisoned, so that a read of it shows."""
        shape, kind = _size(size), as_dtype(dtype)
        return self._make(lambda where: poison(torch.empty(shape, dtype=kind, device=where)), name, requires_grad)

    def zeros(
        self,
        *size: object,
        dtype: GivenDtype = None,
        device: Device = None,
        requires_grad: bool = False,
        name: str = "",
    ) -> Tensor:
        """Zeros, written to the memory store, so that kernels that read it by address see them."""
        shape, kind = _size(size), as_dtype(dtype)
        return self._make(lambda where: torch.zeros(shape, dtype=kind, device=where), name, requires_grad, "zeros")

    def ones(
        self,
        *size: object,
        dtype: GivenDtype = None,
        device: Device = None,
        requires_grad: bool = False,
        name: str = "",
    ) -> Tensor:
        """Ones."""
        shape, kind = _size(size), as_dtype(dtype)
        return self._make(lambda where: torch.ones(shape, dtype=kind, device=where), name, requires_grad, "ones")

    def full(
        self, size: object, fill_value: Any, *, dtype: GivenDtype = None, device: Device = None, requires_grad: bool = False,
        name: str = "",
    ) -> Tensor:  # fmt: skip
        """``fill_value`` everywhere; the dtype is inferred from it unless given."""
        kind = None if dtype is None else as_dtype(dtype)
        return self._make(
            lambda where: torch.full(_size((size,)), fill_value, dtype=kind, device=where), name, requires_grad, "full"
        )

    def arange(
        self, *bounds: Any, dtype: GivenDtype = None, device: Device = None, name: str = "", **kwargs: Any
    ) -> Tensor:
        """``torch.arange``."""
        kind = None if dtype is None else as_dtype(dtype)
        return self._make(
            lambda where: torch.arange(*bounds, dtype=kind, device=where, **kwargs), name, False, "arange"
        )

    def randn(
        self, *size: object, dtype: GivenDtype = None, device: Device = None, requires_grad: bool = False, name: str = "",
        generator: torch.Generator | None = None,
    ) -> Tensor:  # fmt: skip
        """Normal random numbers from the rank's own generator."""
        shape, kind = _size(size), as_dtype(dtype)
        return self._draw(lambda **how: torch.randn(shape, dtype=kind, **how), name, requires_grad, "randn", generator)

    def rand(
        self,
        *size: object,
        dtype: GivenDtype = None,
        device: Device = None,
        requires_grad: bool = False,
        name: str = "",
    ) -> Tensor:
        """Uniform random numbers in [0, 1) from the rank's own generator."""
        shape, kind = _size(size), as_dtype(dtype)
        return self._draw(lambda **how: torch.rand(shape, dtype=kind, **how), name, requires_grad, "rand")

    def randint(
        self,
        low: int,
        high: Any,
        size: object = None,
        *,
        dtype: GivenDtype = None,
        device: Device = None,
        name: str = "",
    ) -> Tensor:
        """Random integers in ``[low, high)``, or ``[0, low)`` as ``randint(low, size)``, from the rank's own generator."""
        if size is None:
            low, high, size = 0, low, high
        shape, kind = _size((size,)), as_dtype(dtype, torch.int64)
        return self._draw(lambda **how: torch.randint(low, high, shape, dtype=kind, **how), name, False, "randint")

    def tensor(
        self,
        data: object,
        *,
        dtype: GivenDtype = None,
        device: Device = None,
        requires_grad: bool = False,
        name: str = "",
    ) -> Tensor:
        """A tensor that holds a copy of ``data``."""
        kind = None if dtype is None else as_dtype(dtype)
        return self._make(lambda where: torch.tensor(data, dtype=kind, device=where), name, requires_grad, given=True)

    def from_numpy(self, array: np.ndarray[Any, Any], *, name: str = "") -> Tensor:
        """A tensor that shares memory with a numpy array."""
        if not isinstance(array, np.ndarray):
            raise ConfigError(f"from_numpy expects a numpy array, found {type(array).__name__}")
        shared = torch.from_numpy(array)
        return self._make(lambda where: shared if where == "cpu" else shared.to("meta"), name, False, given=True)

    def zeros_like(self, tensor: torch.Tensor, *, dtype: GivenDtype = None, name: str = "") -> Tensor:
        """Zeros of the same shape, and dtype unless given."""
        return self.zeros(tuple(tensor.shape), dtype=dtype or tensor.dtype, name=name)

    def ones_like(self, tensor: torch.Tensor, *, dtype: GivenDtype = None, name: str = "") -> Tensor:
        """Ones of the same shape, and dtype unless given."""
        return self.ones(tuple(tensor.shape), dtype=dtype or tensor.dtype, name=name)

    def empty_like(self, tensor: torch.Tensor, *, dtype: GivenDtype = None, name: str = "") -> Tensor:
        """Poisoned memory of the same shape, and dtype unless given."""
        return self.empty(tuple(tensor.shape), dtype=dtype or tensor.dtype, name=name)
