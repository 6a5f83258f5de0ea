"""A decoder as Megatron-Core builds it on Transformer Engine: what a rank has of it, spread by :class:`Mesh`."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from kernbench.programs.megatron_kernels import (
    activation,
    loss_gradient,
    loss_statistics,
    permuted,
    rope,
    scale_rows_,
    unpermuted,
    weighted_activation,
)
from kernbench.programs.megatron_parallel import (
    Mesh,
    column_product,
    exchanged,
    gathered,
    grouped_product,
    row_product,
    split_sum,
)

Tensor = torch.Tensor


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a decoder.

    Attributes:
        layers, hidden, ffn, heads, kv_heads, vocab: as in the papers; ``vocab`` padded so that eight ranks can split it.
        activation: ``swiglu``, ``squared_relu`` or ``gelu``.
        width: of a head; None: ``hidden / heads``.
        experts, chosen: of a mixture of experts, and how many of them see a token; 0: none. ``ffn`` is then an expert's.
        norm: ``rms`` or ``layer``.
    """

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    activation: str = "swiglu"
    width: int | None = None
    experts: int = 0
    chosen: int = 0
    norm: str = "rms"

    @property
    def head_width(self) -> int:
        """Of a head."""
        return self.width or self.hidden // self.heads


SHAPES = {
    "debug": DecoderShape(4, 64, 96, 8, 4, 128),
    "debug-experts": DecoderShape(4, 64, 32, 8, 4, 128, experts=4, chosen=2),
    "llama2-7b": DecoderShape(32, 4096, 11008, 32, 32, 32000),
    "llama3-8b": DecoderShape(32, 4096, 14336, 32, 8, 128256),
    "llama3-70b": DecoderShape(80, 8192, 28672, 64, 8, 128256),
    "llama3-405b": DecoderShape(
        126, 16384, 53248, 128, 16, 128256
    ),  # groups as the launcher of the rows that run it has
    "nemotron4-15b": DecoderShape(32, 6144, 24576, 48, 8, 256000, "squared_relu", norm="layer"),
    "nemotron4-340b": DecoderShape(96, 18432, 73728, 96, 8, 256000, "squared_relu", norm="layer"),
    "gpt3-175b": DecoderShape(96, 12288, 49152, 96, 96, 51200, "gelu", norm="layer"),
    "qwen3-30b-a3b": DecoderShape(48, 2048, 768, 32, 4, 151936, width=128, experts=128, chosen=8),
}
"""arXiv:2307.09288, 2407.21783, 2402.16819 (15B), 2406.11704 (340B), 2005.14165, 2505.09388; ``debug`` for tests."""


@dataclass(frozen=True)
class Layout:
    """How a model runs.

    Attributes:
        mesh: groups of ranks.
        seq: tokens of a sequence.
        recompute: ``none``, ``selective`` (attention) or ``full`` (layers).
        seed: of the initial weights.
        dtype: of weights and activations.
    """

    mesh: Mesh
    seq: int
    recompute: str
    seed: int
    dtype: torch.dtype

    @property
    def positions(self) -> list[int]:
        """Of this rank's tokens: two of ``2 cp`` chunks, the first ones and their mirror, so that causal work is even."""
        cp, place = self.mesh.size("cp"), self.mesh.place("cp")
        chunk = self.seq // (2 * cp)
        if cp == 1:
            return list(range(self.seq))
        return [first * chunk + each for first in (place, 2 * cp - 1 - place) for each in range(chunk)]


class _Dealer:
    """Hands out initial weights: every layout has the same, whatever part of them a rank has."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def weight(
        self, name: str, shape: tuple[int, ...], split: int | None = None, over: str = "tp", ones: bool = False
    ) -> nn.Parameter:
        """This rank's part of a weight of ``shape``, split along a dimension; which of the optimizer's buffers it is in."""
        mesh, dtype = self._layout.mesh, self._layout.dtype
        device = torch.device("cuda", torch.cuda.current_device())
        whole = torch.ones(shape, device=device, dtype=dtype)
        if not ones:
            drawn = torch.Generator(device).manual_seed(self._layout.seed + zlib.crc32(name.encode()))
            whole.normal_(std=0.02, generator=drawn)
        if split is not None and mesh.size(over) > 1:
            whole = whole.chunk(mesh.size(over), split)[mesh.place(over)].contiguous()
        parameter = nn.Parameter(whole)
        parameter.kept_in = "replicated" if split is None else "experts" if over == "ep" else "split"  # type: ignore[attr-defined]
        return parameter


class MegatronNorm(nn.Module):
    """RMSNorm, or a layer norm without bias, in one kernel."""

    def __init__(self, shape: DecoderShape, deal: _Dealer, name: str) -> None:
        super().__init__()
        self.weight = deal.weight(name, (shape.hidden,), ones=True)
        self.kind = shape.norm

    def forward(self, x: Tensor) -> Tensor:
        """``x [..., hidden]``."""
        kernel = F.rms_norm if self.kind == "rms" else F.layer_norm
        return kernel(x, x.shape[-1:], self.weight, eps=1e-5)


class _Heads(torch.autograd.Function):
    """Queries, keys and values ``[sequence / cp, batch, heads, width]``: from parts of the sequence to parts of the heads.

    Each goes on its way as soon as it is in the order of its receivers; what has come is put into the order of the sequence.
    """

    @staticmethod
    def forward(ctx: Any, mesh: Mesh, *parts: Tensor) -> Any:
        ctx.mesh = mesh
        return _by_heads(mesh, parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, *_by_sequence(ctx.mesh, gradients)


class _Sequence(torch.autograd.Function):
    """The way back, of attention's result."""

    @staticmethod
    def forward(ctx: Any, mesh: Mesh, *parts: Tensor) -> Any:
        ctx.mesh = mesh
        return _by_sequence(mesh, parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return None, *_by_heads(ctx.mesh, gradients)


def _chunks(mesh: Mesh, back: bool) -> Tensor:
    """Where the chunks of the sequence are in what ranks send one after the other, or the other way round."""
    cp = mesh.size("cp")
    order = [chunk for place in range(cp) for chunk in (place, 2 * cp - 1 - place)]
    wanted = order if back else [order.index(chunk) for chunk in range(2 * cp)]
    return torch.tensor(wanted, device="cuda")


def _sent(mesh: Mesh, ready: list[Tensor]) -> list[Tensor]:
    found, works = [], []
    for each in ready:
        found.append(torch.empty_like(each))
        works.append(dist.all_to_all_single(found[-1], each, group=mesh.group("cp"), async_op=True))
    for work in works:
        work.wait()
    return found


def _by_heads(mesh: Mesh, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    cp, order = mesh.size("cp"), _chunks(mesh, back=False)
    ready = [each.unflatten(2, (cp, -1)).movedim(2, 0).contiguous() for each in parts]
    return tuple(
        each.flatten(0, 1).unflatten(0, (2 * cp, -1)).index_select(0, order).flatten(0, 1)
        for each in _sent(mesh, ready)
    )


def _by_sequence(mesh: Mesh, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    cp, order = mesh.size("cp"), _chunks(mesh, back=True)
    ready = [
        each.unflatten(0, (2 * cp, -1)).index_select(0, order).flatten(0, 1).unflatten(0, (cp, -1)) for each in parts
    ]
    return tuple(each.movedim(0, 2).flatten(2, 3) for each in _sent(mesh, ready))


class MegatronAttention(nn.Module):
    """Causal self-attention; queries share keys and values in groups."""

    def __init__(self, shape: DecoderShape, layout: Layout, deal: _Dealer, name: str) -> None:
        super().__init__()
        self.shape, self.layout = shape, layout
        width, repeats = shape.head_width, shape.heads // shape.kv_heads
        self.qkv = deal.weight(f"{name}.qkv", (shape.kv_heads * (repeats + 2) * width, shape.hidden), 0)
        self.out = deal.weight(f"{name}.out", (shape.hidden, shape.heads * width), 1)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """``x [sequence / (cp tp), batch, hidden]``."""
        shape, mesh, width = self.shape, self.layout.mesh, self.shape.head_width
        repeats = shape.heads // shape.kv_heads
        mixed = column_product(x, self.qkv, mesh)
        query, key, value = mixed.unflatten(-1, (-1, (repeats + 2) * width)).split((repeats * width, width, width), -1)
        query = query.reshape(*query.shape[:2], -1, width)
        query, key, value = rope(query, angles), rope(key, angles), value.contiguous()
        attend = self._attend
        if self.layout.recompute == "selective":
            found = checkpoint(attend, query, key, value, use_reentrant=False)
        else:
            found = attend(query, key, value)
        return row_product(found.flatten(2), self.out, mesh)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mesh, spread = self.layout.mesh, self.layout.mesh.size("cp") > 1
        if spread:
            query, key, value = _Heads.apply(mesh, query, key, value)
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]):  # the latter in 32 bits
            query, key, value = (each.permute(1, 2, 0, 3) for each in (query, key, value))
            found = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            found = found.permute(2, 0, 1, 3)
        if spread:
            (found,) = _Sequence.apply(mesh, found)
        return found


class MegatronFeedForward(nn.Module):
    """Two products and what is between them."""

    def __init__(self, shape: DecoderShape, layout: Layout, deal: _Dealer, name: str) -> None:
        super().__init__()
        self.kind, self.mesh = shape.activation, layout.mesh
        parts = 2 if shape.activation == "swiglu" else 1
        up = deal.weight(f"{name}.up", (parts, shape.ffn, shape.hidden), 1)
        up.data = up.data.flatten(0, 1)
        self.up = up
        self.down = deal.weight(f"{name}.down", (shape.hidden, shape.ffn), 1)

    def forward(self, x: Tensor) -> Tensor:
        """``x [sequence / (cp tp), batch, hidden]``."""
        return row_product(activation(column_product(x, self.up, self.mesh), self.kind), self.down, self.mesh)


class Experts(nn.Module):
    """A mixture of experts without tensor parallelism inside one; each is fed as much as any other.

    *Routing is balanced by decree*, as benchmarks force it: token ``p`` of a sequence goes to experts ``chosen * p`` and the
    next ones, around. What the router says weighs them.
    """

    def __init__(self, shape: DecoderShape, layout: Layout, deal: _Dealer, name: str) -> None:
        super().__init__()
        self.shape, self.layout = shape, layout
        self.router = deal.weight(f"{name}.router", (shape.experts, shape.hidden))
        self.up = deal.weight(f"{name}.up", (shape.experts, 2 * shape.ffn, shape.hidden), 0, over="ep")
        self.down = deal.weight(f"{name}.down", (shape.experts, shape.hidden, shape.ffn), 0, over="ep")
        self.routes: dict[int, tuple[Tensor, Tensor]] = {}

    def _routes(self, batch: int) -> tuple[Tensor, Tensor]:
        """For ``batch`` sequences the chosen experts of a token, ``[tokens, chosen]``, and slots in the order of experts."""
        if batch not in self.routes:
            shape, mesh = self.shape, self.layout.mesh
            positions = self.layout.positions
            share = len(positions) // mesh.size("tp")
            own = positions[mesh.place("tp") * share :][:share]
            chosen = [
                [(shape.chosen * position + slot) % shape.experts for slot in range(shape.chosen)]
                for position in own
                for _ in range(batch)
            ]
            slots = sorted((expert, at) for at, expert in enumerate(each for row in chosen for each in row))
            even = len(slots) // shape.experts
            if [expert for expert, _ in slots] != [expert for expert in range(shape.experts) for _ in range(even)]:
                raise SystemExit(
                    f"{share} x {batch} tokens of a rank do not spread evenly over {shape.experts} experts"
                )
            self.routes[batch] = (torch.tensor(chosen).cuda(), torch.tensor([at for _, at in slots]).cuda())
        return self.routes[batch]

    def forward(self, x: Tensor) -> Tensor:
        """``x [sequence / (cp tp), batch, hidden]``."""
        shape, mesh = self.shape, self.layout.mesh
        chosen, slots = self._routes(x.shape[1])
        flat = x.flatten(0, 1)
        shares = (flat @ self.router.t()).float().gather(1, chosen).softmax(-1)
        places = slots // shape.chosen
        sent = exchanged(permuted(flat, places), mesh, "ep")
        weights = exchanged(shares.flatten()[slots], mesh, "ep")
        ep = mesh.size("ep")
        own = shape.experts // ep
        sent = sent.unflatten(0, (ep, own, -1)).transpose(0, 1).flatten(0, 2)
        weights = weights.unflatten(0, (ep, own, -1)).transpose(0, 1).flatten()
        inner = weighted_activation(grouped_product(sent, self.up, mesh), weights, shape.activation)
        found = grouped_product(inner, self.down, mesh)
        found = exchanged(found.unflatten(0, (own, ep, -1)).transpose(0, 1).flatten(0, 2), mesh, "ep")
        return unpermuted(found, places, flat.shape[0]).view_as(x)


class MegatronLayer(nn.Module):
    """One layer."""

    def __init__(self, shape: DecoderShape, layout: Layout, deal: _Dealer, name: str) -> None:
        super().__init__()
        self.attention_norm = MegatronNorm(shape, deal, f"{name}.attention_norm")
        self.attention = MegatronAttention(shape, layout, deal, f"{name}.attention")
        self.ffn_norm = MegatronNorm(shape, deal, f"{name}.ffn_norm")
        inner = Experts if shape.experts else MegatronFeedForward
        self.ffn = inner(shape, layout, deal, f"{name}.ffn")

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        """``x [sequence / (cp tp), batch, hidden]``."""
        x = x + self.attention(self.attention_norm(x), angles)
        found: Tensor = x + self.ffn(self.ffn_norm(x))
        return found


class _Loss(torch.autograd.Function):
    """Cross entropy over a vocabulary that ranks share; the logits become their own gradient (TE's ``cross_entropy``)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, mesh: Mesh) -> Tensor:
        first = mesh.place("tp") * logits.shape[1]
        own = loss_statistics(logits, labels, first)[None]
        every = gathered(own, mesh)[0] if mesh.size("tp") > 1 else own
        losses = loss_gradient(logits, every, labels, first)
        ctx.save_for_backward(logits)
        return losses

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (logits,) = ctx.saved_tensors
        scale_rows_(logits, gradients[0])
        return logits, None, None


class MegatronPart(nn.Module):
    """Layers ``first`` to ``last`` of a decoder; the first part has the embedding, the last one norm and output."""

    def __init__(self, shape: DecoderShape, layout: Layout, first: int, last: int) -> None:
        super().__init__()
        self.shape, self.layout = shape, layout
        deal = _Dealer(layout)
        self.embedding = deal.weight("embedding", (shape.vocab, shape.hidden), 0) if first == 0 else None
        self.layers = nn.ModuleList(MegatronLayer(shape, layout, deal, f"{each}") for each in range(first, last))
        ends = last == shape.layers
        self.norm = MegatronNorm(shape, deal, "norm") if ends else None
        self.output = deal.weight("output", (shape.vocab, shape.hidden), 0) if ends else None
        turns = 500000.0 ** -(torch.arange(0, shape.head_width, 2) / shape.head_width)
        self.angles = torch.outer(torch.tensor(layout.positions).float(), turns).cuda()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Tensor:
        """``x [sequence / cp, batch]`` tokens or ``[sequence / (cp tp), batch, hidden]``; the mean loss with ``labels``."""
        mesh = self.layout.mesh
        if self.embedding is not None:
            x = self._embedded(x)
        for layer in self.layers:
            if self.layout.recompute == "full":
                x = checkpoint(layer, x, self.angles, use_reentrant=True)
            else:
                x = layer(x, self.angles)
        if self.norm is None or self.output is None or labels is None:
            return x
        logits = column_product(self.norm(x), self.output, mesh)
        losses: Tensor = _Loss.apply(logits.flatten(0, 1), labels.flatten(), mesh)
        return losses.mean()

    def _embedded(self, tokens: Tensor) -> Tensor:
        """Each rank looks up what its part of the vocabulary has."""
        mesh, table = self.layout.mesh, self.embedding
        assert table is not None
        if mesh.size("tp") == 1:
            return F.embedding(tokens, table)
        first = mesh.place("tp") * table.shape[0]
        elsewhere = (tokens < first) | (tokens >= first + table.shape[0])
        own = F.embedding((tokens - first).masked_fill(elsewhere, 0), table)
        return split_sum(own.masked_fill(elsewhere[..., None], 0.0), mesh)
