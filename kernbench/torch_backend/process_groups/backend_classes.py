"""``ProcessGroupGloo`` and ``ProcessGroupNCCL`` inside a simulated rank.

A program that makes a backend's object itself, ``ProcessGroupGloo(store, rank, size, timeout)``, gets a group of simulated
ranks; those that it asks for with ``isinstance`` are the groups and backends of that name. Outside ranks there is only what
modules look up when they are imported: options and constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from kernbench.errors import KernbenchError
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.process_groups.backend_options import BackendOptions, BackendStandIn, NcclConfig

Make = Callable[..., Any]
"""Makes this rank's object of a group: ``(backend, store, rank, size, timeout)``."""


class _Gloo(BackendStandIn):
    """What ``ProcessGroupGloo`` has besides its objects."""

    class Options:
        """Options of a group of gloo's: only the timeout means something."""

        def __init__(self) -> None:
            self._timeout = timedelta(minutes=30)
            self._devices: list[Any] = []
            self._threads = 2
            self.global_ranks_in_group: list[int] = []
            self.group_name = ""

    _Options = Options

    class Device:
        """A network interface: simulated links need none."""

    @classmethod
    def create_device(cls, hostname: str = "", interface: str = "", lazy_init: bool | None = None) -> object:
        return cls.Device()

    @classmethod
    def create_default_device(cls, lazy_init: bool | None = None) -> object:
        return cls.Device()


class _Nccl(BackendStandIn):
    """What ``ProcessGroupNCCL`` has besides its objects."""

    Options = BackendOptions
    NCCLConfig = NcclConfig
    NCCL_CTA_POLICY_DEFAULT, NCCL_CTA_POLICY_EFFICIENCY, NCCL_CTA_POLICY_ZERO = 0, 1, 2


class _BackendKind(type):
    """A class whose objects are groups that its ``make`` makes, and the backends of that name that groups have."""

    backend: str
    make: Make

    def __call__(cls, store: object, rank: int, size: int, *args: object, **options: object) -> Any:
        given = [*args, *options.values()]
        timeout = next((value for value in given if isinstance(value, timedelta)), None)
        for value in given:
            timeout = timeout or getattr(value, "_timeout", None)
        if timeout is not None and not isinstance(timeout, timedelta):
            timeout = timedelta(seconds=timeout)
        return cls.make(cls.backend, store, rank, size, timeout)

    def __instancecheck__(cls, instance: Any) -> bool:
        if getattr(instance, "made_directly", False):
            return bool(instance.name() == cls.backend)
        return super().__instancecheck__(instance)

    def of(cls, group: object) -> Any:
        """The backend of a group."""
        return type.__call__(cls, group, cls.backend)


class _WrapperKind(type):
    """The class of ``_ProcessGroupWrapper``, by which torch makes groups that check calls (its debug level ``DETAIL``)."""

    def __call__(cls, group: Any, helper: object) -> Any:
        return group.checking_at_once()


WRAPPER = _WrapperKind("_ProcessGroupWrapper", (), {"__module__": "torch._C._distributed_c10d"})
"""Nothing is an instance of it: a simulated group checks itself. Programs ask whether one is before they look into it."""


_CLASSES: dict[str, tuple[str, type]] = {"gloo": ("ProcessGroupGloo", _Gloo), "nccl": ("ProcessGroupNCCL", _Nccl)}


def backend_of(group: object, backend: str) -> BackendStandIn:
    """An object of the class that ``torch.distributed`` has for a backend's name, if it has one."""
    name, _ = _CLASSES.get(backend, ("", None))
    cls = getattr(dist.distributed_c10d, name, None)
    return cls.of(group) if isinstance(cls, _BackendKind) else BackendStandIn(group, backend)


def _only_in_ranks(backend: str, *args: object) -> Any:
    raise KernbenchError(f"a {backend} process group can be made inside simulated ranks only")


def install(patches: Patches, make: Make = _only_in_ranks, backends: Iterable[str] = _CLASSES) -> None:
    """Put a class in the place of each backend's, which torch may have been built without."""
    for backend in backends:
        name, parts = _CLASSES[backend]
        cls = _BackendKind(name, (parts,), {"backend": backend, "make": staticmethod(make)})
        for module in (dist, dist.distributed_c10d):
            patches.add(module, name, cls)
