"""A GPT from the parallel layers: what the benches run and train, and a pattern for a model of one's own.

Activations are ``[sequence, batch, hidden]`` as in Megatron-Core. With sequence parallelism they are split over the tensor
parallel ranks along the sequence wherever the layers are not parallel themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from kernbench.tp import comm, parallel_state
from kernbench.tp.cross_entropy import vocab_parallel_cross_entropy
from kernbench.tp.errors import PartitionError
from kernbench.tp.initialize import (
    init_method_normal,
    mark_sequence_parallel,
    partition_parameter,
    scaled_init_method_normal,
)
from kernbench.tp.kernels.attention import flash_attention
from kernbench.tp.layers import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
from kernbench.tp.linear import linear_with_async_communication
from kernbench.tp.random import get_rng_tracker
from kernbench.tp.utils import divide, whoami


@dataclass(frozen=True)
class TransformerConfig:
    """Sizes of a model.

    Attributes:
        hidden_size: features of the residual stream.
        num_attention_heads: query heads.
        num_layers: blocks.
        num_query_groups: key and value heads; None: as many as query heads.
        ffn_hidden_size: features inside the MLP; None: 4 x hidden_size.
        vocab_size: words.
        max_sequence_length: positions.
        activation: of the MLP.
        hidden_dropout: share of the residual branches' outputs that is dropped in training.
        init_method_std: standard deviation of the weights.
        sequence_parallel: split activations along the sequence between the parallel layers.
        dtype: of parameters and activations; None: torch's default.
    """

    hidden_size: int
    num_attention_heads: int
    num_layers: int = 1
    num_query_groups: int | None = None
    ffn_hidden_size: int | None = None
    vocab_size: int = 0
    max_sequence_length: int = 0
    activation: str = "gelu"
    hidden_dropout: float = 0.0
    init_method_std: float = 0.02
    sequence_parallel: bool = False
    dtype: torch.dtype | None = None

    @property
    def query_groups(self) -> int:
        """Key and value heads; as many as heads unless fewer are asked for."""
        return self.num_query_groups or self.num_attention_heads

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return divide(self.hidden_size, self.num_attention_heads, "hidden_size by num_attention_heads:")

    @property
    def ffn_size(self) -> int:
        """Width between the two layers of the MLP; four times the hidden size unless given."""
        return self.ffn_hidden_size or 4 * self.hidden_size


class ParallelLayerNorm(nn.LayerNorm):
    """A layer norm that every rank has whole; its gradients are partial sums under sequence parallelism."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config.hidden_size, dtype=config.dtype)
        for param in self.parameters():
            param.requires_grad_(comm.can_differentiate())
            mark_sequence_parallel(param, config.sequence_parallel)


class ParallelMLP(nn.Module):
    """``W2 act(W1 x + b1) + b2``: column-parallel, then row-parallel; one all-reduce each way."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.linear_fc1 = ColumnParallelLinear(
            config.hidden_size, config.ffn_size, gather_output=False, activation=config.activation, name="linear_fc1",
            init_method=init_method_normal(config.init_method_std), sequence_parallel=config.sequence_parallel,
            dtype=config.dtype,
        )  # fmt: skip
        self.linear_fc2 = RowParallelLinear(
            config.ffn_size, config.hidden_size, input_is_parallel=True, name="linear_fc2",
            init_method=scaled_init_method_normal(config.init_method_std, config.num_layers),
            sequence_parallel=config.sequence_parallel, dtype=config.dtype,
        )  # fmt: skip

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """What is added to the residual stream; of the shape of ``hidden``."""
        return self.linear_fc2(self.linear_fc1(hidden)[0])[0]


class SelfAttention(nn.Module):
    """Causal attention whose heads are split over the ranks.

    The fused projection's outputs are laid out per query group, ``[queries of the group, key, value]``, as in Megatron-Core,
    so that a part of the rows is a part of the groups.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        size = parallel_state.get_tensor_model_parallel_world_size()
        self.groups = divide(config.query_groups, size, "num_query_groups", "SelfAttention")
        self.queries_per_group = divide(
            config.num_attention_heads, config.query_groups, "num_attention_heads", "SelfAttention"
        )
        self.linear_qkv = ColumnParallelLinear(
            config.hidden_size, config.query_groups * (self.queries_per_group + 2) * config.head_dim, gather_output=False,
            name="linear_qkv", init_method=init_method_normal(config.init_method_std),
            sequence_parallel=config.sequence_parallel, dtype=config.dtype,
        )  # fmt: skip
        self.linear_proj = RowParallelLinear(
            config.hidden_size, config.hidden_size, input_is_parallel=True, name="linear_proj",
            init_method=scaled_init_method_normal(config.init_method_std, config.num_layers),
            sequence_parallel=config.sequence_parallel, dtype=config.dtype,
        )  # fmt: skip

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """What is added to the residual stream; of the shape of ``hidden``."""
        """``[s, b, h] -> [s, b, h]``; with sequence parallelism ``s`` is this rank's part outside, whole inside."""
        mixed, _ = self.linear_qkv(hidden)
        length, batch = mixed.shape[:2]
        head_dim, queries = self.config.head_dim, self.queries_per_group
        mixed = mixed.view(length, batch, self.groups, queries + 2, head_dim)
        q = mixed[..., :queries, :].reshape(length, batch, self.groups * queries, head_dim).permute(1, 2, 0, 3)
        k = mixed[..., queries, :].permute(1, 2, 0, 3)
        v = mixed[..., queries + 1, :].permute(1, 2, 0, 3)
        context = flash_attention(q, k, v, causal=True)  # [b, heads / tp, s, d], sequence first in memory
        context = context.permute(2, 0, 1, 3).reshape(length, batch, self.groups * queries * head_dim)
        return self.linear_proj(context)[0]


class TransformerLayer(nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.input_layernorm = ParallelLayerNorm(config)
        self.self_attention = SelfAttention(config)
        self.pre_mlp_layernorm = ParallelLayerNorm(config)
        self.mlp = ParallelMLP(config)

    def _drop(self, hidden: torch.Tensor) -> torch.Tensor:
        """Dropout: ranks draw alike for a whole activation, apart for parts of one."""
        share = self.config.hidden_dropout
        if not share or not self.training:
            return hidden
        if not self.config.sequence_parallel:
            return nn.functional.dropout(hidden, share)
        with get_rng_tracker().fork():
            return nn.functional.dropout(hidden, share)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The residual stream behind both blocks; of the shape of ``hidden``."""
        hidden = hidden + self._drop(self.self_attention(self.input_layernorm(hidden)))
        return hidden + self._drop(self.mlp(self.pre_mlp_layernorm(hidden)))


class GPTModel(nn.Module):
    """Word and position embeddings, blocks, a last norm, and logits by the word embedding's own weight."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        init = init_method_normal(config.init_method_std)
        self.word_embeddings = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, init_method=init, dtype=config.dtype, name="word_embeddings",
            reduce_scatter_embeddings=config.sequence_parallel,
        )  # fmt: skip
        self.position_embeddings = partition_parameter(
            (config.max_sequence_length, config.hidden_size), None, rank=0, world_size=1, init_method=init,
            dtype=config.dtype,
        )  # fmt: skip
        mark_sequence_parallel(self.position_embeddings, config.sequence_parallel)
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.num_layers))
        self.final_layernorm = ParallelLayerNorm(config)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Word numbers ``[b, s]`` -> losses ``[b, s]``; without ``labels`` this rank's logits ``[s, b, vocabulary / tp]``."""
        length = tokens.size(1)
        if length > self.config.max_sequence_length:
            raise PartitionError(
                f"{whoami('GPTModel')}: sequence of {length}, max_sequence_length is {self.config.max_sequence_length}"
            )
        hidden = self._embed(tokens, length)
        for layer in self.layers:
            hidden = layer(hidden)
        hidden = self.final_layernorm(hidden)
        logits = linear_with_async_communication(
            hidden, self.word_embeddings.weight, allreduce_dgrad=not self.config.sequence_parallel,
            sequence_parallel=self.config.sequence_parallel,
        )  # fmt: skip
        if labels is None:
            return logits
        return vocab_parallel_cross_entropy(logits, labels.transpose(0, 1).contiguous()).transpose(0, 1)

    def _embed(self, tokens: torch.Tensor, length: int) -> torch.Tensor:
        """``[b, s] -> [s, b, h]``, this rank's part of the sequence under sequence parallelism."""
        words = self.word_embeddings(tokens)
        positions = self.position_embeddings[:length]
        if self.config.sequence_parallel:
            part = divide(length, parallel_state.get_tensor_model_parallel_world_size(), "sequence length", "GPTModel")
            positions = positions.narrow(0, parallel_state.get_tensor_model_parallel_rank() * part, part)
        else:
            words = words.transpose(0, 1)
        return words + positions.unsqueeze(1)
