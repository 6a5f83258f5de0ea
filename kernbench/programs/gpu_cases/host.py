"""What calls take of the host: operators, modules, gradients, steps of optimizers, libraries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from kernbench.programs.gpu_cases.inputs import BF16, Call, Case, random
from kernbench.programs.gpu_cases.lists import with_gradients


def host() -> Iterator[Case]:
    """What a call takes of the host, kernels being shorter: operators, modules, gradients, steps of optimizers."""
    for name, call in _calls().items():
        yield "host", name, partial(_given, call)


def _given(call: Call) -> Call:
    return call


def _calls() -> dict[str, Call]:
    x, y, weight = random(8, 64), random(8, 64), random(64, 64)
    linear, layer_norm = nn.Linear(64, 64, device="cuda", dtype=BF16), nn.LayerNorm(64, device="cuda", dtype=BF16)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8))).to("cuda", BF16)
    fine = random(8, 64, grad=True)
    event, side = torch.cuda.Event(), torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for _ in range(10):
            x.add_(0.0)
    query = random(1, 4, 16, 64)
    small = [random(16, 16) for _ in range(100)]
    fused = with_gradients(partial(torch.optim.AdamW, fused=True), small)
    foreach = with_gradients(partial(torch.optim.AdamW, foreach=True), small)
    table, ids = random(100, 64), torch.arange(8, device="cuda")
    on_host, pinned = torch.ones(8, 64), torch.ones(8, 64).pin_memory()

    def trained() -> None:
        net(x).sum().backward()

    def on_side() -> None:
        with torch.cuda.stream(side):
            pass

    return {
        "add": lambda: x + y,
        "add_": lambda: x.add_(0.0),
        "view": lambda: x.view(64, 8),
        "transpose": lambda: x.t(),
        "x[0]": lambda: x[0],
        "slice": lambda: x[:, 2:5],
        "mm": lambda: x @ weight,
        "F.linear": lambda: F.linear(x, weight),
        "nn.Linear": lambda: linear(x),
        "nn.LayerNorm": lambda: layer_norm(x),
        "F.gelu": lambda: F.gelu(x),
        "add with gradient": lambda: fine + y,
        "sum": lambda: x.sum(),
        "softmax": lambda: x.softmax(-1),
        "cat": lambda: torch.cat([x, y]),
        "to fp32": lambda: x.float(),
        "empty": lambda: torch.empty(8, 64, device="cuda"),
        "zeros": lambda: torch.zeros(8, 64, device="cuda"),
        "sdpa": lambda: F.scaled_dot_product_attention(query, query, query),
        "16 layers forward": lambda: net(x),
        "16 layers, both": trained,
        "AdamW fused of 100": fused.step,
        "AdamW foreach of 100": foreach.step,
        "graph of 10": graph.replay,
        "event record": lambda: event.record(),
        "stream context": on_side,
        "item": lambda: x.sum().item(),
        "synchronize": torch.cuda.synchronize,
        "index by tensor": lambda: table[ids],
        "copy to host": lambda: x.cpu(),
        "from host": lambda: on_host.to("cuda"),
        "from pinned": lambda: pinned.to("cuda", non_blocking=True),
        "tensor from list": lambda: torch.tensor([1, 2, 3], device="cuda"),
        "arange": lambda: torch.arange(64, device="cuda"),
        "rand": lambda: torch.rand(8, 64, device="cuda"),
        **_of_modules(),
        **_of_gradients(),
        **_of_optimizers(),
        **_of_libraries(),
    }


def _of_modules() -> dict[str, Call]:
    x, y = random(8, 64), random(8, 64)
    identity, ten = nn.Identity(), nn.Sequential(*(nn.Identity() for _ in range(10)))
    hooked = nn.Identity()
    hooked.register_forward_hook(lambda module, given, made: made)
    linear, dropout, table = nn.Linear(64, 64, device="cuda"), nn.Dropout(0.1), nn.Embedding(100, 64, device="cuda")
    norm = nn.BatchNorm1d(64, device="cuda")
    ids, wide = torch.arange(8, device="cuda"), x.float()

    def mixed() -> Tensor:
        with torch.autocast("cuda", dtype=BF16):
            return linear(wide)

    def mixed_ten_times() -> None:
        with torch.autocast("cuda", dtype=BF16):
            for _ in range(10):
                linear(wide)

    return {
        "nn.Identity": lambda: identity(x),
        "10 nn.Identity in nn.Sequential": lambda: ten(x),
        "nn.Identity with a hook": lambda: hooked(x),
        "nn.Dropout": lambda: dropout(x),
        "nn.Embedding": lambda: table(ids),
        "nn.BatchNorm1d": lambda: norm(wide),
        "nn.Linear under autocast": mixed,
        "10 nn.Linear under autocast": mixed_ten_times,
        "F.cross_entropy": lambda: F.cross_entropy(wide, ids),
        "F.mse_loss": lambda: F.mse_loss(x, y),
        "x * 2": lambda: x * 2,
        "clone": lambda: x.clone(),
        "to the same": lambda: x.to("cuda"),
        "where": lambda: torch.where(x > 0, x, y),
        "nonzero": lambda: torch.nonzero(x > 0),
        "topk": lambda: x.topk(4),
        "index_add": lambda: x.index_add(0, ids, y),
        "chunk": lambda: x.chunk(2, dim=-1),
        "permute, reshape": lambda: x.view(2, 4, 64).permute(1, 0, 2).reshape(8, 64),
        "x.shape, x.dtype, x.device": lambda: (x.shape, x.dtype, x.device),
    }


def _backward(make: Callable[[Tensor], Tensor], count: int) -> Call:
    """The gradient of ``count`` in a row, whose graph is kept."""
    x = random(8, 64, grad=True)
    y = x
    for _ in range(count):
        y = make(y)
    seed = torch.ones_like(y)

    def call() -> None:
        y.backward(seed, retain_graph=True)
        x.grad = None

    return call


def _of_gradients() -> dict[str, Call]:
    fine, other = random(8, 64, grad=True), random(8, 64)
    linear, norm = nn.Linear(64, 64, device="cuda", dtype=BF16), nn.LayerNorm(64, device="cuda", dtype=BF16)

    def checkpointed() -> Tensor:
        return checkpoint(F.gelu, fine, use_reentrant=False)

    return {
        "F.linear with gradients": lambda: F.linear(fine, linear.weight, linear.bias),
        "gelu with gradient": lambda: F.gelu(fine),
        "view with gradient": lambda: fine.view(64, 8),
        "checkpoint of gelu": checkpointed,
        "backward of 20 gelu": _backward(F.gelu, 20),
        "backward of 20 adds": _backward(lambda y: y + other, 20),
        "backward of 20 products": _backward(lambda y: y * other, 20),
        "backward of 20 linear": _backward(linear, 20),
        "backward of 20 norms": _backward(norm, 20),
        "backward of 20 views": _backward(lambda y: y.view(64, 8).view(8, 64), 10),
        "backward of 1 gelu": _backward(F.gelu, 1),
    }


def _of_optimizers() -> dict[str, Call]:
    calls: dict[str, Call] = {}
    for count in (1, 10, 100):
        small = [random(16, 16) for _ in range(count)]
        for name, make in (("SGD", torch.optim.SGD), ("Adam", torch.optim.Adam), ("AdamW", torch.optim.AdamW)):
            for how in ("loops", "foreach", "fused"):
                options: dict[str, Any] = {
                    "loops": {"foreach": False},
                    "foreach": {"foreach": True},
                    "fused": {"fused": True},
                }[how]
                if (name == "AdamW" and how != "loops") or (count == 10 and how == "loops"):
                    continue
                calls[f"{name} {how} of {count}"] = with_gradients(partial(make, lr=1e-3, **options), small).step
        clipped = with_gradients(partial(torch.optim.SGD, lr=0.0), small).param_groups[0]["params"]
        calls[f"clip_grad_norm_ of {count}"] = partial(nn.utils.clip_grad_norm_, clipped, 1e9)
    none = torch.optim.SGD([nn.Parameter(random(16, 16)) for _ in range(100)], lr=0.0)
    calls["zero_grad of 100"] = none.zero_grad
    scaler, one = torch.amp.GradScaler("cuda"), [torch.zeros(16, 16, device="cuda")]
    scaled = with_gradients(partial(torch.optim.SGD, lr=0.0), one)
    scaler.scale(torch.zeros(1, device="cuda"))

    def step() -> None:
        scaler.step(scaled)
        scaler.update()

    calls["GradScaler's step and update"] = step
    return calls


def _of_libraries() -> dict[str, Call]:
    image, filters, places = (
        torch.randn(1, 16, 8, 8, device="cuda"),
        nn.Conv2d(16, 16, 3, device="cuda"),
        nn.BatchNorm2d(16),
    )
    places = places.to("cuda").eval()
    cell, state = nn.GRUCell(64, 64, device="cuda"), torch.randn(8, 64, device="cuda")
    layers, sequence = nn.LSTM(64, 64, 2, device="cuda"), torch.randn(4, 8, 64, device="cuda")
    return {
        "nn.Conv2d": lambda: filters(image),
        "nn.BatchNorm2d in eval": lambda: places(image),
        "max_pool2d": lambda: F.max_pool2d(image, 2),
        "nn.GRUCell": lambda: cell(state, state),
        "nn.LSTM of 2 layers": lambda: layers(sequence),
        "bmm": lambda: torch.bmm(sequence, sequence.transpose(1, 2)),
        "einsum": lambda: torch.einsum("sbd,tbd->bst", sequence, sequence),
    }
