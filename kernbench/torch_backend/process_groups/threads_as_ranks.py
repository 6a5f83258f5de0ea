"""torch's own groups of threads, which a program may install: its threads are ranks of one process, without a model of time."""

from __future__ import annotations

import sys

from torch.distributed import distributed_c10d as c10d

from kernbench.torch_backend.relies_on import Reliance

_MODULE = "torch.testing._internal.distributed.multi_threaded_pg"

RELIES_ON = (
    Reliance(f"{_MODULE}.ThreadLocalWorld", "it is torch's world where threads are ranks"),
    Reliance("torch.distributed.distributed_c10d._world", "the world of groups, which a program may replace"),
)


def are_installed() -> bool:
    """Whether the groups that are made now are torch's own, of threads."""
    module = sys.modules.get(_MODULE)
    return module is not None and isinstance(c10d._world, module.ThreadLocalWorld)
