"""The smallest kernels, what calls take of the host, and copies between the two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kernbench.programs.gpu_cases.inputs import BF16, Call, Case, random
from kernbench.programs.gpu_cases.lists import with_gradients

_CHAIN = 100
_WIDTH = 4096


class Token(NamedTuple):
    """What is computed with one: its vector, another, a matrix, its number, a table of vectors."""

    x: Tensor
    vector: Tensor
    weight: Tensor
    number: Tensor
    table: Tensor


ONE_TOKEN: dict[str, Callable[[Token], Any]] = {
    "rms norm": lambda of: F.rms_norm(of.x, (_WIDTH,), of.vector),
    "layer norm": lambda of: F.layer_norm(of.x, (_WIDTH,), of.vector),
    "silu": lambda of: F.silu(of.x),
    "mul": lambda of: of.x * of.vector,
    "softmax": lambda of: of.x.softmax(-1),
    "linear 4096": lambda of: F.linear(of.x, of.weight),
    "embedding": lambda of: F.embedding(of.number, of.table),
    "argmax": lambda of: of.x.argmax(-1),
    "cat": lambda of: torch.cat([of.x, of.x], -1),
    "copy": lambda of: of.x.clone(),
    "sum": lambda of: of.x.sum(),
    "to fp32": lambda of: of.x.float(),
    "cumsum": lambda of: of.x.cumsum(-1),
    "topk": lambda of: of.x.topk(50),
    "sort": lambda of: of.x.sort(-1),
}


def floors() -> Iterator[Case]:
    """What a node of a graph takes at least."""
    for elements in (1, 4096, 65536, 262144):
        yield f"chain of {_CHAIN}", f"add_ of {elements}", partial(_chain, elements)
    for name, function in ONE_TOKEN.items():
        yield "one token", f"{name} of 1x{_WIDTH}", partial(_of_token, function)


def _chain(elements: int) -> Call:
    x = torch.zeros(elements, device="cuda")

    def call() -> None:
        for _ in range(_CHAIN):
            x.add_(1.0)

    return call


def _of_token(function: Callable[[Token], Any]) -> Call:
    number = torch.zeros(1, dtype=torch.long, device="cuda")
    of = Token(random(1, _WIDTH), random(_WIDTH), random(_WIDTH, _WIDTH), number, random(1000, _WIDTH))
    return lambda: function(of)


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
    }


def copies() -> Iterator[Case]:
    """Copies over the host's link: each timed by itself, waited for."""
    for mib in (1, 16, 256):
        for there in ("to device", "to host"):
            for pinned in (True, False):
                title = f"{there} {'pinned' if pinned else 'pageable'} {mib} MiB"
                yield "copy", title, partial(_copy, mib, there == "to device", pinned)


def _copy(mib: int, to_device: bool, pinned: bool) -> Call:
    on_device = torch.ones(mib << 20, dtype=torch.uint8, device="cuda")
    on_host = torch.ones(mib << 20, dtype=torch.uint8, pin_memory=pinned)
    source, target = (on_host, on_device) if to_device else (on_device, on_host)
    return lambda: target.copy_(source, non_blocking=True)
