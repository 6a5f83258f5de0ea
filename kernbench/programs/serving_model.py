"""A Llama over ranks, as a serving engine runs it: packed sequences, keys and values in pages, next tokens by greedy decoding.

Each rank has its share of the heads, of the MLP and of the vocabulary (Shoeybi et al. 2019, arXiv:1909.08053).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from flash_attn import flash_attn_varlen_func
from torch import Tensor, nn
from torch.nn import functional as F

from kernbench.programs.model_shape import ModelShape


class Shard(nn.Linear):
    """This rank's share of a linear layer whose output (``along=0``) or input (1) is cut into as many parts as there are ranks.

    ``parts``: sizes of the outputs that lie one behind the other, and into how many each is cut.
    """

    def __init__(self, parts: Sequence[tuple[int, int]], width: int, along: int, world: int) -> None:
        self.whole, self.width, self.along = parts, width, along
        out = sum(size // cuts for size, cuts in parts) if along == 0 else parts[0][0]
        super().__init__(width if along == 0 else width // world, out, bias=False)

    def draw(self, generator: torch.Generator, rank: int, world: int) -> None:
        """Have the values that every layer of this place has, whatever the number of ranks."""
        mine = []
        for size, cuts in self.whole:
            whole = torch.randn(size, self.width, generator=generator) * self.width**-0.5
            mine.append(
                whole.chunk(cuts if self.along == 0 else world, self.along)[
                    rank * cuts // world if self.along == 0 else rank
                ]
            )
        self.weight.copy_(torch.cat(mine))


@dataclass
class BatchInputs:
    """What a step is given besides tokens, for ``n`` tokens of ``s`` sequences.

    Attributes:
        positions, slots: ``[n]``, of each token in its sequence, and in the cache.
        last: ``[s]``, places of the tokens after which one is generated.
        ends, lengths: ``[s + 1]``, where the sequences' tokens end, and where their keys would if they lay side by side.
        table: ``[s, pages]``, the pages of each sequence.
        longest: most tokens of a sequence in this step, and most keys.
    """

    positions: Tensor
    slots: Tensor
    last: Tensor
    ends: Tensor
    lengths: Tensor
    table: Tensor
    longest: tuple[int, int]


class ServedLayer(nn.Module):
    """A decoder layer."""

    def __init__(self, shape: ModelShape, world: int) -> None:
        super().__init__()
        self.eps, self.width, self.world = shape.rms_norm_eps, shape.head_dim, world
        self.heads, cuts = shape.num_attention_heads // world, min(world, shape.num_key_value_heads)
        self.kv_heads = shape.num_key_value_heads // cuts
        dim, keys = shape.hidden_size, (shape.num_key_value_heads * self.width, cuts)
        self.qkv = Shard([(shape.num_attention_heads * self.width, world), keys, keys], dim, 0, world)
        self.out = Shard([(dim, 1)], shape.num_attention_heads * self.width, 1, world)
        self.gate_up = Shard([(shape.intermediate_size, world)] * 2, dim, 0, world)
        self.down = Shard([(dim, 1)], shape.intermediate_size, 1, world)
        self.before_attention, self.before_mlp = (nn.Parameter(torch.ones(dim)) for _ in range(2))

    def forward(self, x: Tensor, step: BatchInputs, turns: Tensor, cache: Tensor) -> Tensor:
        """``x [n, dim]``, ``turns [n, 1, width / 2]``, ``cache [2, pages, page, heads, width]``."""
        heads = self.qkv(F.rms_norm(x, x.shape[-1:], self.before_attention, self.eps)).view(len(x), -1, self.width)
        turned, values = heads.split((self.heads + self.kv_heads, self.kv_heads), dim=1)
        pairs = torch.view_as_complex(turned.float().unflatten(-1, (-1, 2)))
        turned = torch.view_as_real(pairs * turns).flatten(-2).type_as(x)
        queries, keys = turned.split((self.heads, self.kv_heads), dim=1)
        for kept, fresh in zip(cache, (keys, values), strict=True):
            kept.flatten(0, 1).index_copy_(0, step.slots, fresh)
        mixed = flash_attn_varlen_func(
            queries, cache[0], cache[1], step.ends, step.lengths, *step.longest, causal=True, block_table=step.table
        )
        x = x + self.summed(self.out(mixed.flatten(1)))
        gate, up = self.gate_up(F.rms_norm(x, x.shape[-1:], self.before_mlp, self.eps)).chunk(2, -1)
        return x + self.summed(self.down(F.silu(gate) * up))

    def summed(self, x: Tensor) -> Tensor:
        """Over all ranks."""
        if self.world > 1:
            dist.all_reduce(x)
        return x


class ServedLlama(nn.Module):
    """From tokens to tokens."""

    turns: Tensor

    def __init__(self, shape: ModelShape, rank: int, world: int) -> None:
        super().__init__()
        self.shape, self.rank, self.world = shape, rank, world
        self.embedding = nn.Parameter(torch.empty(shape.vocab_size // world, shape.hidden_size))
        self.layers = nn.ModuleList(ServedLayer(shape, world) for _ in range(shape.num_hidden_layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden_size))
        self.head = Shard([(shape.vocab_size, world)], shape.hidden_size, 0, world)
        angles = 1.0 / shape.rope_theta ** (torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angles = torch.outer(torch.arange(shape.max_position_embeddings).float(), angles)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles)[:, None])

    def draw(self, seed: int) -> None:
        """Have made-up weights, the same whole for any number of ranks."""
        generator = torch.Generator("cpu").manual_seed(seed)
        whole = torch.randn(self.shape.vocab_size, self.shape.hidden_size, generator=generator)
        self.embedding.copy_(whole.chunk(self.world)[self.rank])
        for each in self.modules():
            if isinstance(each, Shard):
                each.draw(generator, self.rank, self.world)

    def forward(self, tokens: Tensor, step: BatchInputs, cache: Sequence[Tensor]) -> Tensor:
        """The next tokens ``[s]`` of ``tokens [n]``: the likeliest."""
        size = len(self.embedding)
        here = tokens - self.rank * size
        x = F.embedding(here.clamp(0, size - 1), self.embedding)
        if self.world > 1:
            x = x * ((here >= 0) & (here < size))[:, None]
            dist.all_reduce(x)
        turns = self.turns[step.positions]
        for layer, part in zip(self.layers, cache, strict=True):
            x = layer(x, step, turns, part)
        scores = self.head(F.rms_norm(x[step.last], x.shape[-1:], self.norm, self.shape.rms_norm_eps)).float()
        best, found = scores.max(-1)
        if self.world == 1:
            return found
        everywhere = best.new_empty(self.world, *best.shape), found.new_empty(self.world, *found.shape)
        for into, mine in zip(everywhere, (best, found + self.rank * size), strict=True):
            dist.all_gather_into_tensor(into, mine)
        return everywhere[1].gather(0, everywhere[0].argmax(0, keepdim=True))[0]
