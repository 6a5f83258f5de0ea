"""DTensor's rules for operators over lists (``torch._foreach_*``, fused optimizers), without time that grows with its square.

For each tensor of a list, torch asks all of the call's tensors whether any of them is sharded in strides, so that the first
step of an optimizer over hundreds of parameters takes seconds, in each rank. The answer is the same for the whole call: it is
asked for once.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch.distributed.tensor._sharding_prop"

_NAME = "_propagate_use_strided_shard_flag"
_ANSWER = "kernbench_strided"  # attribute of a call's schema

RELIES_ON = (
    Reliance(
        f"{MODULE}.{_NAME}", "it does nothing unless a tensor of the call is sharded in strides, and reads the flag alone of "
        "its placements", parameters=("op_strategy", "op_schema"),
    ),
    Reliance(f"{MODULE}._StridedShard", "a placement in strides"),
    Reliance("torch.distributed.tensor._op_schema.OpSchema", "a call, whose tensors are its `args_spec`", has=("args_spec",)),
)  # fmt: skip


def install(patches: Patches, module: ModuleType) -> None:
    """Ask once per call."""
    stock, strided = getattr(module, _NAME), module._StridedShard

    def propagate(op_strategy: object, op_schema: Any) -> None:
        answer = getattr(op_schema, _ANSWER, None)
        if answer is None:
            answer = any(isinstance(each, strided) for spec in op_schema.args_spec for each in spec.placements)
            setattr(op_schema, _ANSWER, answer)
        if answer:
            stock(op_strategy, op_schema)

    patches.set(module, _NAME, propagate)
