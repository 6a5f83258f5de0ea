"""DeepSpeed's optimizer of one kernel, ``deepspeed.ops.adam.fused_adam_op``.

DeepSpeed builds its kernels when a program first wants them, unless it was installed with them (``DS_BUILD_FUSED_ADAM=1``):
``deepspeed.git_version_info`` says which those are. With the stand-in it says so of this one. Its definition is apex's.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from kernbench.compiled_operators.transformer_engine.kernels import operators
from kernbench.compiled_operators.transformer_engine.multi_tensor import multi_tensor_adam

__all__ = ["NAMES", "operators"]

NAMES = {"multi_tensor_adam": multi_tensor_adam}


class _Releases(dict[str, str]):
    """With which releases it was built: those that run."""

    def __missing__(self, key: str) -> str:
        whole = {"version": torch.__version__, "cuda_version": torch.version.cuda, "hip_version": torch.version.hip}
        return ".".join((whole.get(key) or "0.0").split(".")[:2])


def built(module: ModuleType) -> None:
    """``deepspeed.git_version_info`` has been imported."""
    info: Any = module
    info.installed_ops = {**info.installed_ops, "fused_adam": True}
    info.torch_info = _Releases()
    info.accelerator_name = "cuda"
