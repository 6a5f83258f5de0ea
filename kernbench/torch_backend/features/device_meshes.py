"""Device meshes of ranks that share a process are not equal.

DTensor keeps for the process what a redistribution or an operation on a mesh comes to, by meshes that compare equal. With
uneven shards that depends on the rank's place in the mesh. torch tells the ranks of its own threaded group apart by the
thread's number in the mesh; here it is the number of the rank that runs.
"""

from __future__ import annotations

from types import ModuleType

from kernbench.torch_backend.gpu.device.devices import current_rank
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch.distributed.device_mesh"

RELIES_ON = (
    Reliance(
        "torch.distributed.device_mesh.DeviceMesh", "its attribute `_thread_id` is part of a mesh's hash and equality",
        holds=lambda mesh: all("_thread_id" in method.__code__.co_names for method in (mesh.__eq__, mesh._hash_key)),
    ),
)  # fmt: skip


def install(patches: Patches, module: ModuleType) -> None:
    """Let a mesh know the rank that looks at it."""
    patches.add(module.DeviceMesh, "_thread_id", property(lambda mesh: current_rank(), lambda mesh, value: None))
