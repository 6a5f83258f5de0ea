"""Device meshes of ranks that share a process are not equal.

DTensor keeps for the process what a redistribution or an operation on a mesh comes to, by meshes that compare equal. With
uneven shards that depends on the rank's place in the mesh. torch tells the ranks of its own threaded group apart by the
thread's number in the mesh; here it is the number of the rank that runs.

Relies on: ``DeviceMesh._thread_id`` being part of a mesh's hash and equality, and None unless the backend is torch's threaded
one.
"""

from __future__ import annotations

from typing import Any

from kernbench.torch_backend.gpu.devices import current_rank
from kernbench.torch_backend.patches import Patches

MODULE = "torch.distributed.device_mesh"


def install(patches: Patches, module: Any) -> None:
    """Let a mesh know the rank that looks at it."""
    patches.set(module.DeviceMesh, "_thread_id", property(lambda mesh: current_rank(), lambda mesh, value: None))
