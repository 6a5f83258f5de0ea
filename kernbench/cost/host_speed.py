"""How quick a machine's CPU is at what a program's host does: a few classes of operators, timed once (ADR 0200).

They are timed on CPU tensors of a few elements, so that what is measured is the interpreter, torch's binding, dispatcher and
autograd, and hardly a kernel. Operators of many kinds follow each other, as in a layer of a decoder: one alone in a loop is
two to three times as quick, and says less of a program.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
import yaml
from torch import Tensor, nn
from torch.nn import functional as F

REFERENCE: Mapping[str, float] = {
    "operator": 2.1e-6,
    "operator, caches emptied": 7.5e-6,
    "view": 1.3e-6,
    "module": 0.82e-6,
    "autograd": 0.5e-6,
    "backward": 3.3e-6,
}
"""Seconds of each class on the machine whose factor is 1: a virtual machine on a Xeon with 2 MiB of cache per core, Python
3.11, torch 2.13. That an H100's server is as quick is UNVERIFIED: what issue 187862 of pytorch/pytorch times there (calls of
``OpOverload``, 177 ns) took 211 ns on it, what pull request 166371 times on a Skylake (``detach`` of a DTensor, 24 to 26 us)
20.5 us."""

_PASSES = 1000
"""Of which the quickest counts: whatever else runs on the machine only makes passes longer."""

_COLD_PASSES = 100
_EMPTIES = 16 << 20
"""Bytes that are copied before a pass whose code and objects no cache of a core is to hold."""


@dataclass(frozen=True)
class HostSpeed:
    """What a machine's host takes.

    Attributes:
        cpu: its name.
        seconds: of an operator of each class of :data:`REFERENCE`.
    """

    cpu: str
    seconds: Mapping[str, float]

    @property
    def ratios(self) -> dict[str, float]:
        """How many times as long as on the reference machine, by class."""
        return {name: self.seconds[name] / reference for name, reference in REFERENCE.items()}

    @property
    def factor(self) -> float:
        """Their median: ``host.factor`` of a system with such CPUs."""
        return float(torch.tensor(list(self.ratios.values()), dtype=torch.float64).quantile(0.5))

    def document(self, base: str, name: str) -> str:
        """A system file that extends ``base`` by it."""
        classes = ", ".join(f"{each} {1e6 * seconds:.2f} us" for each, seconds in self.seconds.items())
        factor = float(f"{self.factor:.3g}")
        body = {"name": name, "description": f"{base}, its host measured", "host": {"cpu": self.cpu, "factor": factor}}
        header = f"# Measured by `kernbench calibrate host`, Python {platform.python_version()}, torch {torch.__version__}:\n"
        return f"{header}# {classes}\n" + yaml.safe_dump({"extends": base, "system": body}, sort_keys=False)


def measure_host(passes: int = _PASSES, cold_passes: int = _COLD_PASSES) -> HostSpeed:
    """Time this machine. Takes a second or two of the wall clock; the more passes, the less another load of it matters."""
    with one_intra_op_thread():
        work = _Work()
        with torch.no_grad():
            seconds = {
                "operator": _quickest(work.operators, passes) / work.operators.count,
                "operator, caches emptied": _cold(work.operators, cold_passes) / work.operators.count,
                "view": _quickest(work.views, passes) / work.views.count,
                "module": _quickest(work.modules, passes) / work.modules.count,
            }
        recorded = _quickest(work.recorded, passes)
        with torch.no_grad():
            unrecorded = _quickest(work.recorded, passes)
        both = _quickest(work.forward_and_backward, passes)
    seconds["autograd"] = max(recorded - unrecorded, 0.0) / work.recorded.count
    seconds["backward"] = max(both - recorded, 0.0) / work.recorded.count
    return HostSpeed(_cpu(), seconds)


class _Timed:
    """What is timed: a function, and how many operators of the class it calls."""

    def __init__(self, body: Callable[[], object], count: int) -> None:
        self.body = body
        self.count = count

    def __call__(self) -> object:
        return self.body()


class _Work:
    """The parts of a layer, on tensors of a few elements."""

    def __init__(self) -> None:
        x = torch.ones(1, 4, 4)
        weight = torch.ones(4, 4)
        parameter = torch.ones(4, 4, requires_grad=True)
        cache = torch.zeros(1, 4, 4)
        layers = nn.ModuleList(_Same() for _ in range(10))

        def operators() -> Tensor:
            squares = x * x
            norm = x * torch.rsqrt(squares.mean(-1, keepdim=True) + 1e-5)
            scores = torch.softmax(torch.bmm(norm, norm) / 2.0, -1)
            pair = torch.cat([scores, -scores], -1)
            both = torch.stack([norm, squares], -1)
            gate = F.silu(norm) * torch.tanh(squares)
            chosen = torch.where(gate > 0, gate, squares)
            torch.argmax(pair, -1)
            cache.copy_(chosen)
            return torch.maximum(chosen, both.sum(-1)).exp() - F.gelu(gate)

        def views() -> Tensor:
            rows = x.view(4, 4)
            turned = rows.transpose(0, 1).unsqueeze(0)
            turned[0][1:3].expand(2, 4)
            x.permute(0, 2, 1).squeeze(0).narrow(1, 0, 2)
            x.split(2, -1)
            x.unbind(1)
            return x.reshape(2, 8).flatten().detach()

        def modules() -> Tensor:
            here = x
            for layer in layers:
                here = layer(here)
            return here

        def recorded() -> Tensor:
            here = parameter
            for _ in range(4):
                here = torch.tanh(here * weight) + weight
                here = here.exp() - weight
            return here

        def forward_and_backward() -> None:
            recorded().backward(weight)

        self.operators = _Timed(operators, 23)
        self.views = _Timed(views, 14)
        self.modules = _Timed(modules, 10)
        self.recorded = _Timed(recorded, 20)
        self.forward_and_backward = _Timed(forward_and_backward, 20)


class _Same(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


def _seconds(body: Callable[[], object]) -> float:
    begin = perf_counter()
    body()
    return perf_counter() - begin


def _quickest(body: Callable[[], object], passes: int) -> float:
    return min(_seconds(body) for _ in range(max(passes, 2)))


def _cold(body: Callable[[], object], passes: int) -> float:
    """The quickest quarter's longest: there is no quickest state of caches that were emptied."""
    junk = bytearray(_EMPTIES)
    found = []
    for _ in range(passes):
        bytes(junk)
        found.append(_seconds(body))
    return sorted(found)[len(found) // 4]


@contextmanager
def one_intra_op_thread() -> Iterator[None]:
    """For the length of a block torch computes with one thread, as in a rank."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _cpu() -> str:
    """What the machine calls its CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return next(filter(None, named), platform.processor() or platform.machine() or os.name)
