"""What the schemas of torch's operators do not say, by name: the one list of such names beside the table of costs.

A name is one without namespace and overload, as :attr:`~kernbench.torch_backend.operations.operators.TorchOperator.name` of
torch's own operators is.
"""

from __future__ import annotations

WRITES_ALL = frozenset({"zero_", "fill_", "copy_", "normal_", "uniform_", "random_"})
"""In place: nothing of what the target was is left."""

WRITES_UNREAD = WRITES_ALL | frozenset((
    "bernoulli_", "exponential_", "geometric_", "log_normal_", "cauchy_", "set_", "resize_", "resize_as_", "masked_fill_",
    "masked_scatter_", "scatter_", "index_copy_", "index_fill_", "index_put_", "_index_put_impl_", "put_", "fill_diagonal_",
    "squeeze_", "unsqueeze_", "transpose_", "t_", "as_strided_", "detach_", "swapaxes_", "swapdims_",
))  # fmt: skip
"""In place: what is written, all of the target or a part, does not depend on what was there."""

CHOOSES = frozenset(
    ("where", "masked_fill", "masked_scatter", "scatter", "index_put", "index_copy", "lerp", "cat", "stack")
)
"""The result need not have anything of each tensor that is given: undefined values of one do not make it undefined."""

COPIES = frozenset(("clone", "copy_", "_to_copy"))
"""One tensor is copied: what it costs depends on whether rows become columns."""

INNER = frozenset(("t", "_unsafe_view", "_reshape_alias"))
"""Views that operators of torch take (``linear``, ``matmul``, ``reshape``) and programs hardly do."""

FLAGS = {"is_causal": True, "causal": True, "use_fast_accum": False}
"""Arguments of matrix operations that change what they cost, with the value that does: an attention is causal, a product in
eight bits keeps its sums in 32 bits."""

EVALUATES = {"train": False, "training": False}
"""The same of a norm over the batch, which then takes no statistics."""

MAKES_NESTED = frozenset({
    "_nested_tensor_from_tensor_list", "_nested_from_padded", "_nested_tensor_from_mask", "_nested_view_from_buffer",
    "_nested_view_from_buffer_copy",
})  # fmt: skip
"""C++ keeps the shapes of what they give with its values."""

WRITES_UNSAID = {"native_batch_norm": (5, ((3, "running_mean"), (4, "running_var")))}
"""Arguments that are written although the schema does not say so, by place and name, if the argument at the first place is
true: a norm's running statistics, in training."""

ON_HOST = {"_pack_padded_sequence": 1}
"""The result, by its place, that is the host's whatever the operands are: how many sequences go on at each step."""

RESIZES = frozenset(("resize_", "resize_as_", "resize"))
"""They give a tensor's storage another size; what writes `out` does so, too, where that is too small."""

GIVES_MEMORY = frozenset(("numpy", "__array__"))
"""Looks of the host by which it may write, too."""


def takes_shapes_only(name: str) -> bool:
    """Whether of the tensors that it is given an operator takes shape and dtype alone."""
    return name.endswith("_like") or name.startswith("new_")
