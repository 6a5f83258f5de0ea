"""Programs that no figure of the models came from: read once on a GPU, to judge by."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernbench.programs.gpu_steps.program import Step, TimedProgram, graphed, inference, training

BF16 = torch.bfloat16


def translation(batch: int, length: int) -> Step:
    """Encoder and decoder with a bias by distance, RMS norms and Adafactor."""
    width, heads, buckets = 768, 12, 32

    class BiasedAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))

        def forward(self, x: Tensor, others: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
            q, k, v = (
                layer(y).unflatten(-1, (heads, -1)).transpose(1, 2)
                for layer, y in ((self.q, x), (self.k, others), (self.v, others))
            )
            scores = q @ k.transpose(-1, -2)
            if bias is not None:
                scores = scores + bias
            if causal:
                later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
                scores = scores.masked_fill(later, float("-inf"))
            weights = F.dropout(scores.float().softmax(-1).type_as(scores), 0.1)
            return self.o((weights @ v).transpose(1, 2).flatten(2))

    class CrossedLayer(nn.Module):
        def __init__(self, crossed: bool) -> None:
            super().__init__()
            self.own, self.crossed = BiasedAttention(), BiasedAttention() if crossed else None
            self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(3))
            self.up, self.gate, self.down = nn.Linear(width, 2048), nn.Linear(width, 2048), nn.Linear(2048, width)

        def forward(self, x: Tensor, bias: Tensor, source: Tensor | None) -> Tensor:
            y = self.norms[0](x)
            x = x + self.own(y, y, bias, source is not None)
            if self.crossed is not None and source is not None:
                x = x + self.crossed(self.norms[1](x), source, None, False)
            y = self.norms[2](x)
            return x + self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y))

    with torch.device("cuda"):
        tokens, bias = nn.Embedding(32128, width), nn.Embedding(buckets, heads)
        encoder, decoder = (nn.ModuleList(CrossedLayer(crossed) for _ in range(6)) for crossed in (False, True))
        given, wanted = torch.randint(32128, (batch, length)), torch.randint(32128, (batch, length))
        places = torch.arange(length)
    model = nn.ModuleList([tokens, bias, encoder, decoder])

    def loss() -> Tensor:
        apart = (places[None] - places[:, None]).abs().clamp(min=1)
        by_distance = bias((apart.float().log2() * 3).long().clamp(max=buckets - 1)).permute(2, 0, 1)[None]
        source = tokens(given)
        for layer in encoder:
            source = layer(source, by_distance, None)
        x = tokens(wanted)
        for layer in decoder:
            x = layer(x, by_distance, source)
        return F.cross_entropy((x * width**-0.5 @ tokens.weight.T).flatten(0, 1), wanted.flatten())

    return training(model, loss, torch.optim.Adafactor(model.parameters(), lr=1e-3), dtype=BF16)


def scan(batch: int, length: int) -> Step:
    """A state-space layer whose recurrence is a cumulative sum in blocks."""
    width, states, block = 1024, 16, 64
    with torch.device("cuda"):
        into, out = nn.Linear(512, 2 * width), nn.Linear(width, 512)
        conv, steps = nn.Conv1d(width, width, 4, padding=3, groups=width), nn.Linear(width, width)
        selective, rates = nn.Linear(width, 2 * states), nn.Parameter(torch.rand(width, states))
        x = torch.randn(batch, length, 512)
    model = nn.ModuleList([into, out, conv, steps, selective])

    def loss() -> Tensor:
        y, gate = into(x).chunk(2, -1)
        y = F.silu(conv(y.transpose(1, 2))[..., :length].transpose(1, 2))
        delta = F.softplus(steps(y))
        b, c = selective(y).chunk(2, -1)
        decay = (-delta[..., None] * rates.exp()).unflatten(1, (-1, block)).cumsum(2)
        given = (delta * y)[..., None].unflatten(1, (-1, block)) * b[..., None, :].unflatten(1, (-1, block))
        state = decay.exp() * (given * (-decay).clamp(max=30).exp()).cumsum(2)
        mixed = (state * c[..., None, :].unflatten(1, (-1, block))).sum(-1).flatten(1, 2)
        return (out(mixed * F.silu(gate)) - x).pow(2).mean()

    return training(model, loss, torch.optim.AdamW([*model.parameters(), rates], lr=1e-3))


class _ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 7, padding=3, groups=width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


def convnext(batch: int) -> Step:
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, stride=4)]
    with torch.device("cuda"):
        for width, depth in ((96, 3), (192, 3), (384, 9), (768, 3)):
            if width > 96:
                layers += [nn.GroupNorm(1, width // 2), nn.Conv2d(width // 2, width, 2, stride=2)]
            layers += [_ConvNextBlock(width) for _ in range(depth)]
        model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(768, 1000)).to("cuda")
        images, classes = torch.randn(batch, 3, 224, 224), torch.randint(1000, (batch,))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return training(model, lambda: F.cross_entropy(model(images), classes), optimizer, dtype=BF16)


class _DiffusionBlock(nn.Module):
    """A transformer's block whose norms are shifted and scaled by a condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.qkv, self.out, self.condition = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            nn.Linear(width, 6 * width),
        )
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        a, b, c, d, e, f = self.condition(F.silu(condition))[:, None].chunk(6, dim=-1)
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in self.qkv(self.norm_1(x) * (1 + b) + a).chunk(3, -1)
        )
        x = x + c * self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + f * self.down(F.gelu(self.up(self.norm_2(x) * (1 + e) + d), approximate="tanh"))


def diffusion(batch: int, train: bool) -> Step:
    width = 1152
    with torch.device("cuda"):
        blocks = nn.ModuleList(_DiffusionBlock(width, 16) for _ in range(14))
        into, out, times = nn.Linear(16, width), nn.Linear(width, 16), nn.Linear(256, width)
        patches, noise, at = torch.randn(batch, 256, 16), torch.randn(batch, 256, 16), torch.rand(batch)
        frequencies = torch.exp(-math.log(10000) * torch.arange(128) / 128)
    model = nn.ModuleList([blocks, into, out, times])

    def denoised() -> Tensor:
        angles = at[:, None] * frequencies * 1000
        condition = times(torch.cat((angles.cos(), angles.sin()), -1).to(into.weight.dtype))
        x = into(torch.lerp(noise, patches, at[:, None, None]).to(into.weight.dtype))
        for block in blocks:
            x = block(x, condition)
        return out(x)

    if not train:
        model.to(BF16)
        return inference(denoised)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return training(model, lambda: F.mse_loss(denoised(), noise - patches), optimizer, dtype=BF16, clip=1.0)


def windows(batch: int) -> Step:
    """Attention in windows that are shifted by rolls, with a bias that is gathered."""
    width, heads, side, window = 192, 6, 56, 7
    with torch.device("cuda"):
        layers = [
            nn.ModuleDict({
                "norm": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width), "out": nn.Linear(width, width),
                "norm_2": nn.LayerNorm(width), "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width),
                "bias": nn.Embedding((2 * window - 1) ** 2, heads),
            })
            for _ in range(6)
        ]  # fmt: skip
        images, index = (
            torch.randn(batch, side, side, width),
            torch.randint((2 * window - 1) ** 2, (window**2, window**2)),
        )

    def loss() -> Tensor:
        x = images
        for n, layer in enumerate(layers):
            y = layer["norm"](x)
            if n % 2:
                y = y.roll((-3, -3), (1, 2))
            y = y.view(batch, side // window, window, side // window, window, width).transpose(2, 3)
            y = y.reshape(-1, window**2, width)
            q, k, v = (each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in layer["qkv"](y).chunk(3, -1))
            bias = layer["bias"](index).permute(2, 0, 1)
            y = (
                (F.softmax(q * (width // heads) ** -0.5 @ k.transpose(-1, -2) + bias, dim=-1) @ v)
                .transpose(1, 2)
                .flatten(2)
            )
            y = layer["out"](y).view(batch, side // window, side // window, window, window, width).transpose(2, 3)
            y = y.reshape(batch, side, side, width)
            x = x + (y.roll((3, 3), (1, 2)) if n % 2 else y)
            x = x + layer["down"](F.gelu(layer["up"](layer["norm_2"](x))))
        return x.float().pow(2).mean()

    model = nn.ModuleList(layers)
    return training(model, loss, torch.optim.AdamW(model.parameters(), lr=1e-4), dtype=BF16)


def growing_cache(batch: int, length: int) -> Step:
    """Decoding as a library does it, eagerly: each layer's keys and values grow by concatenation."""
    width, heads, kv, layers = 2048, 16, 4, 12
    with torch.device("cuda"):
        blocks = [
            nn.ModuleDict({
                "norm": nn.RMSNorm(width), "q": nn.Linear(width, width, bias=False), "k": nn.Linear(width, 512, bias=False),
                "v": nn.Linear(width, 512, bias=False), "o": nn.Linear(width, width, bias=False), "norm_2": nn.RMSNorm(width),
                "gate": nn.Linear(width, 5632, bias=False), "up": nn.Linear(width, 5632, bias=False),
                "down": nn.Linear(5632, width, bias=False),
            }).to(BF16)
            for _ in range(layers)
        ]  # fmt: skip
        tokens, head = nn.Embedding(32000, width, dtype=BF16), nn.Linear(width, 32000, bias=False, dtype=BF16)
        cached = [torch.randn(2, batch, kv, length, 128, dtype=BF16) for _ in range(layers)]
        last = torch.randint(32000, (batch, 1))

    def run() -> Tensor:
        x = tokens(last)
        for block, (keys, values) in zip(blocks, cached, strict=True):
            y = block["norm"](x)
            q = block["q"](y).unflatten(-1, (heads, -1)).transpose(1, 2)
            k = torch.cat((keys, block["k"](y).unflatten(-1, (kv, -1)).transpose(1, 2)), dim=2)
            v = torch.cat((values, block["v"](y).unflatten(-1, (kv, -1)).transpose(1, 2)), dim=2)
            k, v = (each.repeat_interleave(heads // kv, dim=1) for each in (k, v))
            x = x + block["o"](F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            y = block["norm_2"](x)
            x = x + block["down"](F.silu(block["gate"](y)) * block["up"](y))
        return head(x[:, -1]).argmax(-1)

    return inference(run)


def sampled(batch: int, vocabulary: int) -> Step:
    """Tokens drawn from the largest probabilities that make up 0.9."""
    scores = torch.randn(batch, vocabulary, device="cuda")

    def run() -> Tensor:
        ordered, places = (scores / 0.7).sort(dim=-1, descending=True)
        probabilities = ordered.softmax(-1)
        probabilities[probabilities.cumsum(-1) - probabilities > 0.9] = 0.0
        return places.gather(1, torch.multinomial(probabilities / probabilities.sum(-1, keepdim=True), 1))

    return inference(run)


def orthogonal() -> Step:
    """An optimizer alone: momentum made orthogonal by products of 16-bit floats, for 12 layers of 768."""
    with torch.device("cuda"):
        shapes = [shape for _ in range(12) for shape in ((2304, 768), (768, 768), (3072, 768), (768, 3072))]
        weights, gradients, momenta = ([torch.randn(shape) for shape in shapes] for _ in range(3))

    def run() -> None:
        for weight, gradient, momentum in zip(weights, gradients, momenta, strict=True):
            momentum.lerp_(gradient, 0.05)
            x = gradient.lerp(momentum, 0.95).to(BF16)
            if turned := x.size(0) > x.size(1):
                x = x.T
            x = x / (x.norm() + 1e-7)
            for a, b, c in [(3.4445, -4.7750, 2.0315)] * 5:
                square = x @ x.T
                x = a * x + (b * square + c * square @ square) @ x
            weight.add_(x.T if turned else x, alpha=-0.02)

    return inference(run)


def rays(count: int) -> Step:
    """Colours along rays: sines of places, a network of eight layers, products along the ray."""
    with torch.device("cuda"):
        layers = [layer for n in range(8) for layer in (nn.Linear(63 if n == 0 else 256, 256), nn.ReLU())]
        model = nn.Sequential(*layers, nn.Linear(256, 4))
        begin, along, colours = torch.randn(count, 3), torch.randn(count, 3), torch.rand(count, 3)
        octaves = 2.0 ** torch.arange(10)

    def loss() -> Tensor:
        far, _ = torch.rand(count, 64, device="cuda").sort(-1)
        places = begin[:, None] + far[..., None] * along[:, None]
        angles = (places[..., None] * octaves).flatten(-2)
        found = model(torch.cat((places, angles.sin(), angles.cos()), -1))
        opaque = 1 - torch.exp(-F.relu(found[..., 3]) * far.diff(dim=-1, append=torch.ones_like(far[:, :1])))
        clear = torch.cumprod(torch.cat((torch.ones_like(far[:, :1]), 1 - opaque + 1e-10), -1), -1)[:, :-1]
        return F.mse_loss(((opaque * clear)[..., None] * torch.sigmoid(found[..., :3])).sum(1), colours)

    return training(model, loss, torch.optim.Adam(model.parameters(), lr=5e-4))


def triangles(length: int) -> Step:
    """Pairs of places updated through third ones, by products over them."""
    width = 128
    with torch.device("cuda"):
        norm, norm_out = nn.LayerNorm(width), nn.LayerNorm(width)
        left, right, gate, out = (
            nn.Linear(width, 2 * width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
            nn.Linear(width, width),
        )
        pairs = torch.randn(1, length, length, width)
    model = nn.ModuleList([norm, norm_out, left, right, gate, out])

    def loss() -> Tensor:
        x = pairs
        for _ in range(4):
            y = norm(x)
            a, b = (F.glu(layer(y), dim=-1) for layer in (left, right))
            x = x + torch.sigmoid(gate(y)) * out(norm_out(torch.einsum("bikc,bjkc->bijc", a, b)))
        return x.float().pow(2).mean()

    return training(model, loss, torch.optim.Adam(model.parameters(), lr=1e-3), dtype=BF16)


def neighbours(batch: int, points: int) -> Step:
    """Layers over the twenty nearest points of each."""
    with torch.device("cuda"):
        first, second, head = nn.Conv2d(6, 64, 1), nn.Conv2d(128, 128, 1), nn.Linear(128, 40)
        norm, norm_2 = nn.BatchNorm2d(64), nn.BatchNorm2d(128)
        cloud, classes = torch.randn(batch, 3, points), torch.randint(40, (batch,))
    model = nn.ModuleList([first, second, head, norm, norm_2])

    def edges(x: Tensor) -> Tensor:
        y = x.transpose(1, 2)
        nearest = torch.cdist(y, y).topk(20, dim=-1, largest=False).indices
        around = y[torch.arange(batch, device="cuda")[:, None, None], nearest]
        return torch.cat((around - y[:, :, None], y[:, :, None].expand_as(around)), -1).permute(0, 3, 1, 2)

    def loss() -> Tensor:
        x = F.leaky_relu(norm(first(edges(cloud))), 0.2).max(-1).values
        x = F.leaky_relu(norm_2(second(edges(x))), 0.2).max(-1).values
        return F.cross_entropy(head(x.max(-1).values), classes)

    return training(model, loss, torch.optim.Adam(model.parameters(), lr=1e-3))


def autoencoder(batch: int) -> Step:
    with torch.device("cuda"):
        down = [layer for a, b in ((3, 64), (64, 128), (128, 256)) for layer in (nn.Conv2d(a, b, 4, 2, 1), nn.SiLU())]
        up = [layer for a, b in ((256, 128), (128, 64)) for layer in (nn.ConvTranspose2d(a, b, 4, 2, 1), nn.SiLU())]
        model = nn.Sequential(*down, nn.Conv2d(256, 256, 3, padding=1), *up, nn.ConvTranspose2d(64, 3, 4, 2, 1))
        images = torch.rand(batch, 3, 128, 128)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    return training(model, lambda: F.l1_loss(model(images), images), optimizer)


def both_ways(batch: int, length: int) -> Step:
    with torch.device("cuda"):
        layers, head = nn.LSTM(80, 512, 3, bidirectional=True, batch_first=True), nn.Linear(1024, 64)
        x, targets = torch.randn(batch, length, 80), torch.randint(64, (batch, length))
    model = nn.ModuleList([layers, head])
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return training(model, lambda: F.cross_entropy(head(layers(x)[0]).flatten(0, 1), targets.flatten()), optimizer)


def frequencies(batch: int) -> Step:
    """A layer that mixes places by their Fourier transform."""
    with torch.device("cuda"):
        weight = nn.Parameter(torch.randn(32, 32, 32, 32, dtype=torch.complex64) * 0.02)
        into, out, x = nn.Conv2d(3, 32, 1), nn.Conv2d(32, 1, 1), torch.randn(batch, 3, 128, 128)
    model = nn.ModuleList([into, out])

    def loss() -> Tensor:
        y = into(x)
        for _ in range(4):
            low = torch.einsum("bixy,ioxy->boxy", torch.fft.rfft2(y)[:, :, :32, :32], weight)
            y = F.gelu(torch.fft.irfft2(low, s=(128, 128)) + y)
        return out(y).pow(2).mean()

    return training(model, loss, torch.optim.Adam([*model.parameters(), weight], lr=1e-3))


def table(rows: int) -> Step:
    """Rows sorted, counted and summed by their key."""
    with torch.device("cuda"):
        keys, values = torch.randint(10_000, (rows,)), torch.rand(rows)

    def run() -> Tensor:
        ordered, places = keys.sort(stable=True)
        found, inverse, count = torch.unique(ordered, return_inverse=True, return_counts=True)
        sums = torch.zeros(found.numel(), device="cuda").scatter_add_(0, inverse, values[places])
        most = torch.zeros_like(sums).scatter_reduce_(0, inverse, values[places], "amax")
        return torch.stack((sums / count, most)).topk(100).values

    return inference(run)


def matrices(batch: int, width: int) -> Step:
    """Gaussian processes: factors and solutions of many matrices."""
    with torch.device("cuda"):
        x, y = torch.randn(batch, width, 4), torch.randn(batch, width, 1)
        diagonal = torch.eye(width)

    def run() -> Tensor:
        covariance = torch.exp(-torch.cdist(x, x).square() / 2) + 0.1 * diagonal
        factor = torch.linalg.cholesky(covariance)
        return (y * torch.cholesky_solve(y, factor)).sum((1, 2)) + 2 * factor.diagonal(dim1=1, dim2=2).log().sum(1)

    return inference(run)


def low_precision(rows: int, dtype: torch.dtype) -> Step:
    """Products of 8-bit weights with rows that are quantised on the way, four layers in a CUDA graph."""
    width = 4096
    with torch.device("cuda"):
        weights = [(torch.randn(width, width) * 10).to(dtype) for _ in range(4)]
        x, scale = torch.randn(rows, width, dtype=BF16), torch.ones(())

    def run() -> Tensor:
        y = x
        for weight in weights:
            most = y.abs().amax(-1, keepdim=True).float().clamp(min=1e-4)
            if dtype is torch.int8:
                small = (y.float() * (127 / most)).round().to(torch.int8)
                y = (torch._int_mm(small, weight.T).float() * most * 1e-3).to(BF16)
            else:
                small = (y.float() * (448 / most)).to(dtype)
                y = torch._scaled_mm(small, weight.T, scale, scale, out_dtype=BF16, use_fast_accum=True)
        return y

    return graphed(run)


def rows_of_bags(batch: int) -> Step:
    """Tables of embeddings with sparse gradients."""
    with torch.device("cuda"):
        tables = nn.ModuleList(nn.Embedding(500_000, 32, sparse=True) for _ in range(8))
        head, given = nn.Linear(256, 1), torch.randint(500_000, (8, batch))
        targets = torch.rand(batch).round()
    optimizers = torch.optim.SparseAdam(list(tables.parameters())), torch.optim.Adam(head.parameters())

    def step() -> None:
        y = torch.cat([each(places) for each, places in zip(tables, given, strict=True)], dim=1)
        F.binary_cross_entropy_with_logits(head(y).squeeze(1), targets).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def _each() -> Iterator[tuple[str, str, Callable[[], Step]]]:
    yield "training", "translation bf16, 8 x 512", partial(translation, 8, 512)
    yield "training", "scan fp32, 4 x 1024", partial(scan, 4, 1024)
    yield "training", "convnext bf16, 64", partial(convnext, 64)
    yield "training", "diffusion bf16, 32", partial(diffusion, 32, True)
    yield "inference", "diffusion bf16, 2", partial(diffusion, 2, False)
    yield "training", "windows bf16, 32", partial(windows, 32)
    yield "inference", "growing cache bf16, 16 of 1024", partial(growing_cache, 16, 1024)
    yield "inference", "sampled 64 of 128256", partial(sampled, 64, 128_256)
    yield "other", "orthogonal optimizer", orthogonal
    yield "training", "rays fp32, 4096 x 64", partial(rays, 4096)
    yield "training", "triangles bf16, 256", partial(triangles, 256)
    yield "training", "neighbours fp32, 16 x 1024", partial(neighbours, 16, 1024)
    yield "training", "autoencoder fp32, 32", partial(autoencoder, 32)
    yield "training", "lstm both ways fp32, 32 x 400", partial(both_ways, 32, 400)
    yield "training", "frequencies fp32, 16", partial(frequencies, 16)
    yield "other", "table of 10 million rows", partial(table, 10_000_000)
    yield "other", "matrices 64 x 512", partial(matrices, 64, 512)
    yield "inference", "int8 in a graph, 256", partial(low_precision, 256, torch.int8)
    yield "inference", "fp8 in a graph, 256", partial(low_precision, 256, torch.float8_e4m3fn)
    yield "training", "rows of bags fp32, 8192", partial(rows_of_bags, 8192)


def programs() -> Iterator[TimedProgram]:
    for group, name, make in _each():
        yield TimedProgram(f"judges: {group}", name, make)
