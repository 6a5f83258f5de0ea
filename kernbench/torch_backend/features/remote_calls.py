"""``torch.distributed.rpc`` is not simulated: its agents are threads in C++ that wait for each other outside the simulation."""

from __future__ import annotations

from typing import Any

from kernbench.errors import KernbenchError
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch.distributed.rpc"

RELIES_ON = (Reliance(f"{MODULE}.init_rpc", "every use of it begins with this"),)


def _init_rpc(name: Any = None, *args: Any, **kwargs: Any) -> None:
    raise KernbenchError(
        f"torch.distributed.rpc.init_rpc({name!r}): remote procedure calls are not simulated. Use messages and collectives of "
        "torch.distributed (send, recv, all_gather_object), or its stores, between ranks"
    )


def install(patches: Patches, module: Any) -> None:
    """Refuse in words."""
    if hasattr(module, "init_rpc"):  # a torch that was built without has none
        patches.set(module, "init_rpc", _init_rpc)
