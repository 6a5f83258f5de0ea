"""``amp_C``: functions over lists of tensors."""

from __future__ import annotations

from kernbench.compiled_operators.transformer_engine import multi_tensor
from kernbench.compiled_operators.transformer_engine.kernels import operators

__all__ = ["NAMES", "operators"]

_TAKEN = (
    "multi_tensor_scale", "multi_tensor_l2norm", "multi_tensor_unscale_l2norm", "multi_tensor_adam",
    "multi_tensor_adam_capturable", "multi_tensor_adam_capturable_master", "multi_tensor_sgd",
)  # fmt: skip


def missing(name: str) -> object:
    """Raises AttributeError, with what there is."""
    raise AttributeError(f"the stand-in for amp_C has no {name}; what it has is {', '.join(_TAKEN)}", name=name)


NAMES = {**{name: getattr(multi_tensor, name) for name in _TAKEN}, "__getattr__": missing}
