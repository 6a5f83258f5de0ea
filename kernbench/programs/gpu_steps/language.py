"""Transformers: training, prefill and decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from kernbench.programs.gpu_steps.program import Step, TimedProgram, graphed, inference, training

BF16, FP16 = torch.bfloat16, torch.float16


@dataclass(frozen=True)
class DecoderSizes:
    """Of a decoder: layers, width, heads of queries and of keys, width of the feed-forward layer, vocabulary."""

    layers: int
    width: int
    heads: int
    kv: int
    hidden: int
    vocabulary: int


SMALL = DecoderSizes(6, 384, 6, 6, 1536, 65)
GPT2 = DecoderSizes(12, 768, 12, 12, 3072, 50304)
LLAMA_1B = DecoderSizes(16, 2048, 32, 8, 8192, 32000)


class LearnedBlock(nn.Module):
    """Layer norms, attention and a GELU layer, with biases."""

    def __init__(self, sizes: DecoderSizes, by_hand: bool) -> None:
        super().__init__()
        self.sizes, self.by_hand = sizes, by_hand
        width = sizes.width
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, sizes.hidden), nn.Linear(sizes.hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).split(width, dim=2)
        q, k, v = (each.view(batch, length, self.sizes.heads, -1).transpose(1, 2) for each in parts)
        if self.by_hand:
            scores = (q @ k.transpose(-2, -1)) * k.shape[-1] ** -0.5
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            y = F.dropout(scores.masked_fill(~mask, float("-inf")).softmax(-1), 0.1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class Learned(nn.Module):
    """A decoder with learned positions."""

    def __init__(self, sizes: DecoderSizes, length: int, by_hand: bool = False) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(sizes.vocabulary, sizes.width), nn.Embedding(length, sizes.width)
        self.blocks = nn.ModuleList(LearnedBlock(sizes, by_hand) for _ in range(sizes.layers))
        self.norm, self.head = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class PlainRmsNorm(nn.Module):
    """As Rotated's programs write it, in plain operators."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class RotatedBlock(nn.Module):
    """RMS norms, rotated and grouped heads, a gated layer; with a cache of keys and values where one is given."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.sizes, self.each = sizes, sizes.width // sizes.heads
        self.norm_1, self.norm_2 = PlainRmsNorm(sizes.width), PlainRmsNorm(sizes.width)
        linear = partial(nn.Linear, bias=False)
        self.q, self.o = linear(sizes.width, sizes.width), linear(sizes.width, sizes.width)
        self.k, self.v = linear(sizes.width, sizes.kv * self.each), linear(sizes.width, sizes.kv * self.each)
        self.gate, self.up, self.down = (
            linear(sizes.width, sizes.hidden), linear(sizes.width, sizes.hidden), linear(sizes.hidden, sizes.width),
        )  # fmt: skip

    def rotated(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        cos, sin = angles
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin

    def forward(
        self, x: Tensor, angles: tuple[Tensor, Tensor], cache: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    ) -> Tensor:
        batch, length, width = x.shape
        h = self.norm_1(x)
        q = self.q(h).view(batch, length, -1, self.each).transpose(1, 2)
        k = self.k(h).view(batch, length, -1, self.each).transpose(1, 2)
        v = self.v(h).view(batch, length, -1, self.each).transpose(1, 2)
        q, k = self.rotated(q, angles), self.rotated(k, angles)
        if cache is None:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            keys, values, place, mask = cache
            keys.index_copy_(2, place, k)
            values.index_copy_(2, place, v)
            groups = self.sizes.heads // self.sizes.kv
            y = F.scaled_dot_product_attention(
                q, keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1), attn_mask=mask
            )
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, width))
        h = self.norm_2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Rotated(nn.Module):
    """A decoder with rotated positions."""

    def __init__(self, sizes: DecoderSizes, checkpointed: bool = False) -> None:
        super().__init__()
        self.sizes, self.checkpointed = sizes, checkpointed
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(RotatedBlock(sizes) for _ in range(sizes.layers))
        self.norm, self.head = PlainRmsNorm(sizes.width), nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def angles(self, places: Tensor) -> tuple[Tensor, Tensor]:
        each = self.sizes.width // self.sizes.heads
        pace = 10000.0 ** (-torch.arange(0, each, 2, device=places.device) / each)
        turned = torch.outer(places.float(), pace).repeat(1, 2)
        dtype = self.head.weight.dtype
        return turned.cos().to(dtype), turned.sin().to(dtype)

    def forward(
        self, tokens: Tensor, places: Tensor, caches: list[tuple[Tensor, Tensor, Tensor, Tensor]] | None = None
    ) -> Tensor:
        x, angles = self.tokens(tokens), self.angles(places)
        for number, block in enumerate(self.blocks):
            if self.checkpointed:
                x = checkpoint(block, x, angles, use_reentrant=False)
            else:
                x = block(x, angles, None if caches is None else caches[number])
        return self.head(self.norm(x))


def drawn(vocabulary: int, *shape: int) -> Tensor:
    return torch.randint(vocabulary, shape, device="cuda")


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def gpt(
    sizes: DecoderSizes,
    batch: int,
    length: int,
    dtype: torch.dtype | None,
    by_hand: bool = False,
    compiled: bool = False,
    **adamw: Any,
) -> Step:
    with torch.device("cuda"):
        model = Learned(sizes, length, by_hand)
    run: Callable[[Tensor], Tensor] = torch.compile(model) if compiled else model
    tokens = drawn(sizes.vocabulary, batch, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, **adamw)
    return training(model, lambda: cross_entropy(run(tokens), tokens), optimizer, dtype=dtype, clip=1.0)


def llama(batch: int, length: int, checkpointed: bool = False, sizes: DecoderSizes = LLAMA_1B) -> Step:
    with torch.device("cuda"):
        model = Rotated(sizes, checkpointed).to(BF16)
    tokens, places = drawn(sizes.vocabulary, batch, length), torch.arange(length, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    return training(model, lambda: cross_entropy(model(tokens, places).float(), tokens), optimizer)


def prefill(batch: int, length: int) -> Step:
    with torch.device("cuda"):
        model = Rotated(LLAMA_1B).to(BF16)
    tokens, places = drawn(LLAMA_1B.vocabulary, batch, length), torch.arange(length, device="cuda")
    return inference(lambda: model(tokens, places)[:, -1].argmax(-1))


def decode(batch: int, length: int, in_graph: bool) -> Step:
    """A token for each sequence, beside a static cache."""
    sizes = LLAMA_1B
    with torch.device("cuda"), torch.no_grad():
        model = Rotated(sizes).to(BF16)
        tokens, place = torch.zeros(batch, 1, dtype=torch.long), torch.tensor([length // 2])
        mask = (torch.arange(length) <= place).view(1, 1, 1, length)
        shape = (batch, sizes.kv, length, sizes.width // sizes.heads)
        caches = [(torch.zeros(shape, dtype=BF16), torch.zeros(shape, dtype=BF16), place, mask) for _ in model.blocks]

    def run() -> None:
        with torch.no_grad():
            tokens.copy_(model(tokens, place, caches)[:, -1:].argmax(-1))

    return graphed(run) if in_graph else run


def encoder(batch: int, length: int, dtype: torch.dtype | None, evaluated: bool = False) -> Step:
    """BERT's base as ``nn.TransformerEncoder``."""
    with torch.device("cuda"):
        layer = nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
        model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
        x = torch.randn(batch, length, 768)
    if evaluated:
        model.eval()
        return inference(lambda: model(x), dtype)
    return training(
        model, lambda: model(x).float().pow(2).mean(), torch.optim.Adam(model.parameters(), lr=1e-5), dtype=dtype
    )


class RoutedExperts(nn.Module):
    """A layer of experts in plain operators: each is called with its tokens, whose number the host reads."""

    def __init__(self, width: int, hidden: int, count: int, chosen: int) -> None:
        super().__init__()
        self.chosen = chosen
        self.gate = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.SiLU(), nn.Linear(hidden, width)) for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        weights, which = self.gate(x).softmax(-1).topk(self.chosen, dim=-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows, slot = torch.where(which == number)
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, slot, None])
        return out


def experts(tokens: int) -> Step:
    with torch.device("cuda"):
        model = nn.Sequential(*(RoutedExperts(1024, 4096, 8, 2) for _ in range(4))).to(BF16)
        x = torch.randn(tokens, 1024, dtype=BF16)
    return training(model, lambda: model(x).float().pow(2).mean(), torch.optim.SGD(model.parameters(), lr=1e-3))


def lora(batch: int, length: int) -> Step:
    """Weights that are frozen, beside small ones that are trained."""
    with torch.device("cuda"):
        model = Rotated(LLAMA_1B).to(BF16).requires_grad_(False)
    trained = []
    for block in model.blocks:
        for name in ("q", "v"):
            linear: nn.Linear = getattr(block, name)
            down = nn.Parameter(torch.randn(16, linear.in_features, device="cuda", dtype=BF16))
            up = nn.Parameter(torch.zeros(linear.out_features, 16, device="cuda", dtype=BF16))
            trained += [down, up]
            linear.register_forward_hook(
                lambda module, given, out, down=down, up=up: out + F.linear(F.linear(given[0], down), up) * 2.0
            )
    tokens, places = drawn(LLAMA_1B.vocabulary, batch, length), torch.arange(length, device="cuda")
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    return training(model, lambda: cross_entropy(model(tokens, places).float(), tokens), optimizer)


def programs() -> Iterator[TimedProgram]:
    yield TimedProgram("training", "gpt small fp32, 64 x 256", partial(gpt, SMALL, 64, 256, None))
    yield TimedProgram("training", "gpt 124M bf16, 8 x 1024", partial(gpt, GPT2, 8, 1024, BF16, fused=True))
    yield TimedProgram("training", "gpt 124M bf16, 2 x 256, foreach", partial(gpt, GPT2, 2, 256, BF16, foreach=True))
    yield TimedProgram("training", "gpt 124M bf16, 2 x 256, loops", partial(gpt, GPT2, 2, 256, BF16, foreach=False))
    yield TimedProgram("training", "gpt 124M by hand fp16, 4 x 1024", partial(gpt, GPT2, 4, 1024, FP16, by_hand=True))
    yield TimedProgram("training", "gpt 124M tf32, 4 x 1024", partial(_tf32, partial(gpt, GPT2, 4, 1024, None)))
    yield TimedProgram("training", "llama 1B bf16, 1 x 4096", partial(llama, 1, 4096))
    yield TimedProgram("training", "llama 1B bf16 checkpointed, 2 x 4096", partial(llama, 2, 4096, checkpointed=True))
    yield TimedProgram("training", "llama 1B lora, 4 x 1024", partial(lora, 4, 1024))
    yield TimedProgram("training", "experts 4096 tokens", partial(experts, 4096))
    yield TimedProgram("training", "encoder fp16, 32 x 512", partial(encoder, 32, 512, FP16))
    yield TimedProgram("inference", "encoder fp32, 8 x 128", partial(encoder, 8, 128, None, evaluated=True))
    yield TimedProgram("inference", "llama 1B prefill, 1 x 2048", partial(prefill, 1, 2048))
    yield TimedProgram("inference", "llama 1B prefill, 1 x 128", partial(prefill, 1, 128))
    yield TimedProgram("inference", "llama 1B decode, 1 of 2048", partial(decode, 1, 2048, in_graph=False))
    yield TimedProgram("inference", "llama 1B decode in a graph, 1 of 2048", partial(decode, 1, 2048, in_graph=True))
    yield TimedProgram("inference", "llama 1B decode in a graph, 32 of 2048", partial(decode, 32, 2048, in_graph=True))


def compiled_programs() -> Iterator[TimedProgram]:
    yield TimedProgram(
        "compiled", "gpt 124M bf16, 8 x 1024", partial(gpt, GPT2, 8, 1024, BF16, compiled=True, fused=True)
    )
    yield TimedProgram(
        "compiled", "gpt small fp32, 64 x 256", partial(gpt, SMALL, 64, 256, None, compiled=True, fused=True)
    )


def _tf32(make: Callable[[], Step]) -> Step:
    step = make()

    def in_tf32() -> None:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            step()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    return in_tf32
