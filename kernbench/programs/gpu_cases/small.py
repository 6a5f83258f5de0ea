"""The smallest kernels, and copies between host and GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from kernbench.programs.gpu_cases.inputs import Call, Case, random

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


def _of_token(function: Callable[[Token], object]) -> Call:
    number = torch.zeros(1, dtype=torch.long, device="cuda")
    of = Token(random(1, _WIDTH), random(_WIDTH), random(_WIDTH, _WIDTH), number, random(1000, _WIDTH))
    return lambda: function(of)


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
