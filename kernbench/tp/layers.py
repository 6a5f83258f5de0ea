"""Linear layers and embeddings whose weights are split over the tensor parallel ranks.

A column-parallel layer holds rows of ``W`` (columns of ``W^T``) and makes its part of the output from the whole input; a
row-parallel one holds columns of ``W`` and makes a partial sum of the whole output from its part of the input. One after the
other they need a single all-reduce forward and one backward (Shoeybi et al., arXiv 1909.08053, section 3).
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from kernbench.errors import ConfigError
from kernbench.tp.errors import PartitionError
from kernbench.tp.initialize import InitMethod, mark_sequence_parallel, partition_parameter
from kernbench.tp.kernels.activations import check_activation
from kernbench.tp.linear import linear_with_async_communication
from kernbench.tp.mappings import (
    gather_from_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
    scatter_to_tensor_model_parallel_region,
)
from kernbench.tp.parallel_state import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from kernbench.tp.utils import VocabUtility, divide, whoami

LayerOutput = tuple[torch.Tensor, nn.Parameter | None]


class _ParallelLayer(nn.Module):
    """What the layers share: place in the tensor group, and errors that name rank, layer and sizes."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.label = f"{type(self).__name__}{f' {name!r}' if name else ''}"
        self.tp_size = get_tensor_model_parallel_world_size()
        self.tp_rank = get_tensor_model_parallel_rank()

    def _divide(self, size: int, what: str) -> int:
        return divide(size, self.tp_size, what, self._place)

    @property
    def _place(self) -> str:
        return f"{self.label} with tensor_model_parallel_size {self.tp_size}"

    def _check_input(self, inputs: torch.Tensor, features: int, weight: torch.Tensor) -> None:
        if inputs.dim() < 1 or inputs.size(-1) != features:
            raise PartitionError(
                f"{whoami(self._place)}: expected input [..., {features}], found {tuple(inputs.shape)}; "
                f"weight is {tuple(weight.shape)}"
            )
        if inputs.dtype != weight.dtype:
            raise PartitionError(f"{whoami(self._place)}: input is {inputs.dtype}, weight is {weight.dtype}")


class ColumnParallelLinear(_ParallelLayer):
    """``Y = act(X W^T + b)`` with ``W`` split by rows: every rank makes ``output_size / tp`` of the outputs.

    Args:
        input_size: features of the input.
        output_size: features of the whole output.
        bias: add one, split as the output is; it starts at zero.
        gather_output: every rank returns the whole output; else its own part.
        skip_bias_add: return the bias instead of adding it, for a fused kernel further on.
        init_method: fills the whole weight; default ``xavier_normal_``.
        sequence_parallel: the input is split over the ranks along its first dimension.
        dtype: of the parameters; default: torch's.
        activation: epilogue of the gemm: ``"relu"``, ``"gelu"``, ``"gelu_tanh"`` or ``"silu"``.
        device: of the parameters; default: torch's.
        name: for messages.

    Attributes:
        weight: ``[output_size / tp, input_size]``.
        bias: ``[output_size / tp]`` or None.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        bias: bool = True,
        gather_output: bool = True,
        skip_bias_add: bool = False,
        init_method: InitMethod | None = None,
        sequence_parallel: bool = False,
        dtype: torch.dtype | None = None,
        activation: str | None = None,
        device: torch.device | str | None = None,
        name: str = "",
    ) -> None:
        super().__init__(name)
        check_activation(activation)
        if activation and skip_bias_add:
            raise ConfigError(f"{whoami(self._place)}: an activation in the epilogue needs the bias added before it")
        if gather_output and sequence_parallel and self.tp_size > 1:
            raise ConfigError(
                f"{whoami(self._place)}: gather_output=True and sequence_parallel=True exclude each other"
            )
        self.input_size = input_size
        self.output_size = output_size
        self.output_size_per_partition = self._divide(output_size, "output_size")
        self.gather_output = gather_output
        self.skip_bias_add = skip_bias_add
        self.sequence_parallel = sequence_parallel
        self.activation = activation
        split = partial(partition_parameter, rank=self.tp_rank, world_size=self.tp_size, dtype=dtype, device=device)
        self.weight = split((output_size, input_size), 0, init_method=init_method or nn.init.xavier_normal_)
        self.bias = split((output_size,), 0, init_method=None) if bias else None

    def forward(self, input_: torch.Tensor) -> LayerOutput:
        """``[..., input_size]`` -> ``[..., output_size]`` (or ``output_size / tp``), and the bias if it was skipped."""
        self._check_input(input_, self.input_size, self.weight)
        output = linear_with_async_communication(
            input_, self.weight, None if self.skip_bias_add else self.bias,
            activation=self.activation, allreduce_dgrad=not self.sequence_parallel, sequence_parallel=self.sequence_parallel,
        )  # fmt: skip
        if self.gather_output:
            output = gather_from_tensor_model_parallel_region(output)
        return output, self.bias if self.skip_bias_add else None

    def extra_repr(self) -> str:
        """What torch shows of it: sizes and the group's size."""
        return (
            f"{self.input_size}, {self.output_size}, tp={self.tp_size}, bias={self.bias is not None}, "
            f"gather_output={self.gather_output}, sequence_parallel={self.sequence_parallel}"
        )


class RowParallelLinear(_ParallelLayer):
    """``Y = X W^T + b`` with ``W`` split by columns: every rank has ``input_size / tp`` of the inputs.

    Args:
        input_size: features of the whole input.
        output_size: features of the output.
        bias: add one, whole on every rank, after the sum over ranks; it starts at zero.
        input_is_parallel: the input is this rank's part already, as a column-parallel layer leaves it; else it is split.
        skip_bias_add: return the bias instead of adding it.
        init_method: fills the whole weight; default ``xavier_normal_``.
        sequence_parallel: every rank returns its part of the output along the first dimension. The bias' gradient is
            then a partial sum, completed by :func:`kernbench.tp.finalize_model_grads`.
        dtype: of the parameters; default: torch's.
        device: of the parameters; default: torch's.
        name: for messages.

    Attributes:
        weight: ``[output_size, input_size / tp]``.
        bias: ``[output_size]`` or None.
    """

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        bias: bool = True,
        input_is_parallel: bool = False,
        skip_bias_add: bool = False,
        init_method: InitMethod | None = None,
        sequence_parallel: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        name: str = "",
    ) -> None:
        super().__init__(name)
        if sequence_parallel and not input_is_parallel:
            raise ConfigError(f"{whoami(self._place)}: sequence_parallel=True needs input_is_parallel=True")
        self.input_size = input_size
        self.output_size = output_size
        self.input_size_per_partition = self._divide(input_size, "input_size")
        self.input_is_parallel = input_is_parallel
        self.skip_bias_add = skip_bias_add
        self.sequence_parallel = sequence_parallel
        split = partial(partition_parameter, rank=self.tp_rank, world_size=self.tp_size, dtype=dtype, device=device)
        self.weight = split((output_size, input_size), 1, init_method=init_method or nn.init.xavier_normal_)
        self.bias = split((output_size,), None, init_method=None) if bias else None
        if self.bias is not None:
            mark_sequence_parallel(self.bias, sequence_parallel)

    def forward(self, input_: torch.Tensor) -> LayerOutput:
        """``[..., input_size]`` (or ``input_size / tp``) -> ``[..., output_size]``, and the bias if it was skipped."""
        if self.input_is_parallel:
            self._check_input(input_, self.input_size_per_partition, self.weight)
        else:
            self._check_input(input_, self.input_size, self.weight)
            input_ = scatter_to_tensor_model_parallel_region(input_)
        alone = self.tp_size == 1
        fused_bias = self.bias if alone and not self.skip_bias_add else None
        output = linear_with_async_communication(
            input_, self.weight, fused_bias, reduce_output=not self.sequence_parallel
        )
        if self.sequence_parallel:
            output = reduce_scatter_to_sequence_parallel_region(output)
        if self.skip_bias_add:
            return output, self.bias
        if self.bias is not None and not alone:
            output = output + self.bias
        return output, None

    def extra_repr(self) -> str:
        """What torch shows of it: sizes and the group's size."""
        return (
            f"{self.input_size}, {self.output_size}, tp={self.tp_size}, bias={self.bias is not None}, "
            f"input_is_parallel={self.input_is_parallel}, sequence_parallel={self.sequence_parallel}"
        )


class VocabParallelEmbedding(_ParallelLayer):
    """An embedding whose words are split over the ranks.

    Args:
        num_embeddings: words of the vocabulary.
        embedding_dim: features of a word.
        init_method: fills the whole weight; default ``xavier_normal_``.
        reduce_scatter_embeddings: return ``[s / tp, b, h]``, for sequence parallelism, instead of ``[b, s, h]``.
        dtype: of the parameters; default: torch's.
        device: of the parameters; default: torch's.
        name: for messages.

    Attributes:
        weight: ``[num_embeddings / tp, embedding_dim]``.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        init_method: InitMethod | None = None,
        reduce_scatter_embeddings: bool = False,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        name: str = "",
    ) -> None:
        super().__init__(name)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.reduce_scatter_embeddings = reduce_scatter_embeddings
        self.num_embeddings_per_partition = self._divide(num_embeddings, "num_embeddings")
        self.vocab_start_index, self.vocab_end_index = VocabUtility.vocab_range_from_per_partition_vocab_size(
            self.num_embeddings_per_partition, self.tp_rank, self.tp_size
        )
        self.weight = partition_parameter(
            (num_embeddings, embedding_dim), 0, rank=self.tp_rank, world_size=self.tp_size,
            init_method=init_method or nn.init.xavier_normal_, dtype=dtype, device=device,
        )  # fmt: skip

    def forward(self, input_: torch.Tensor) -> torch.Tensor:
        """Word numbers ``[b, s]`` -> ``[b, s, h]``, or ``[s / tp, b, h]`` with ``reduce_scatter_embeddings``."""
        if self.tp_size == 1:
            output = nn.functional.embedding(input_, self.weight)
        else:
            elsewhere = (input_ < self.vocab_start_index) | (input_ >= self.vocab_end_index)
            local = (input_ - self.vocab_start_index).masked_fill(elsewhere, 0)
            output = nn.functional.embedding(local, self.weight).masked_fill(elsewhere.unsqueeze(-1), 0.0)
        if self.reduce_scatter_embeddings:
            return reduce_scatter_to_sequence_parallel_region(output.transpose(0, 1).contiguous())
        return reduce_from_tensor_model_parallel_region(output)

    def extra_repr(self) -> str:
        """What torch shows of it: sizes and the group's size."""
        return f"{self.num_embeddings}, {self.embedding_dim}, tp={self.tp_size}"
