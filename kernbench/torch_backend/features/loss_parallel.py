"""``loss_parallel`` for ranks that share a process.

It adds handlers to DTensor's one dispatcher when a block is entered, and removes them when it is left: the first rank to leave
would take them from the others. Here the last one does.
"""

from __future__ import annotations

from types import ModuleType

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch.distributed.tensor.parallel.loss"


RELIES_ON = (
    Reliance(f"{MODULE}._enable_custom_loss_ops", "entering a block calls it", looked_up_by=(f"{MODULE}.loss_parallel",)),
    Reliance(f"{MODULE}._disable_custom_loss_ops", "leaving a block calls it", looked_up_by=(f"{MODULE}.loss_parallel",)),
)  # fmt: skip


def install(patches: Patches, module: ModuleType) -> None:
    """Count the contexts that are entered."""
    stock_enable, stock_disable = module._enable_custom_loss_ops, module._disable_custom_loss_ops
    inside = 0

    def enable() -> None:
        nonlocal inside
        if inside == 0:
            stock_enable()
        inside += 1

    def disable() -> None:
        nonlocal inside
        inside -= 1
        if inside == 0:
            stock_disable()

    patches.set(module, "_enable_custom_loss_ops", enable)
    patches.set(module, "_disable_custom_loss_ops", disable)
