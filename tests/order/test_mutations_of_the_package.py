"""Each line that orders something in the benches' kernels and the package's parallel layers is taken out or weakened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import kernbench
import kernbench.tp
from tests.order.mutated_modules import said_of

ROOT = Path(__file__).parents[2]
WORLD = 2


class PackageMutation(NamedTuple):
    """A change of a file.

    Attributes:
        file: in the repository.
        old, new: text that is there, and what takes its place.
        at: which of the places with this text, from 0.
        reason: why it is not noticed; None: it is noticed.
    """

    file: str
    old: str
    new: str
    at: int = 0
    reason: str | None = None

    def applied(self, source: str) -> str:
        """The source with the change."""
        parts = source.split(self.old)
        assert len(parts) > self.at + 1, f"{self.file}: {self.old!r} is there {len(parts) - 1} times"
        return self.old.join(parts[: self.at + 1]) + self.new + self.old.join(parts[self.at + 1 :])


def all_reduces(module: Any) -> None:
    """Both kernels, whose ranks are programs of one launch, twice."""
    with torch.device("cuda"):
        reduction = module.AllReduce(4, 512, 64)
        for two_shot in (False, True, True):
            for buffer in reduction.inputs:
                buffer.fill_(1)
            for output in reduction.run(two_shot):
                output.sum().item()


def normalises(module: Any) -> None:
    """Forwards and backwards, with two locks for eight rows."""
    x, weight, bias = (torch.ones(shape, device="cuda", requires_grad=True) for shape in ((8, 64), (64,), (64,)))
    module.LayerNorm.apply(x, weight, bias, 1e-5, 64, 2).sum().backward()
    weight.grad.sum().item()


def multiplies(module: Any) -> None:
    """A linear layer over parts of a sequence, and one over all of it."""
    kernbench.tp.initialize_model_parallel(WORLD)
    for options in ({"sequence_parallel": True}, {"allreduce_dgrad": True}):
        x = torch.ones(4, 64, device="cuda", requires_grad=True)
        weight = torch.ones(64, 64, device="cuda", requires_grad=True)
        y = module.linear_with_async_communication(x * 2, weight, **options)
        y.backward(torch.ones_like(y))
        x.grad.sum().item()
        weight.grad.sum().item()


def averages(module: Any) -> None:
    """Gradients of a layer, reduced while others are computed."""
    kernbench.tp.initialize_model_parallel(1)
    model = module.DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), bucket_size=16)
    model(torch.ones(4, 64, device="cuda")).sum().backward()
    model.finish_grad_sync()
    sum(parameter.grad.sum() for parameter in model.parameters()).item()


REDUCE, NORM, LINEAR, GRADIENTS = (
    "kernbench/benches/kernels/all_reduce.py", "kernbench/benches/kernels/layer_norm.py",
    "kernbench/tp/linear.py", "kernbench/tp/gradients.py",
)  # fmt: skip
PROGRAMS: dict[str, Callable[[Any], None]] = {
    REDUCE: all_reduces, NORM: normalises, LINEAR: multiplies, GRADIENTS: averages,
}  # fmt: skip

ONE_GPU = "its ranks are programs of one launch, on one GPU"
MUTATIONS = (
    PackageMutation(REDUCE, 'sem="release"', 'sem="relaxed"'),
    PackageMutation(REDUCE, 'sem="acquire"', 'sem="relaxed"'),
    PackageMutation(REDUCE, 'sem="release", scope="sys"', 'sem="release", scope="gpu"', reason=ONE_GPU),
    PackageMutation(REDUCE, 'sem="acquire", scope="sys"', 'sem="acquire", scope="gpu"', reason=ONE_GPU),
    PackageMutation(REDUCE, 'sem="release", scope="sys"', 'sem="release", scope="cta"'),
    PackageMutation(REDUCE, 'sem="acquire", scope="sys"', 'sem="acquire", scope="cta"'),
    PackageMutation(REDUCE, "    _barrier(flag_table, rank, block, tl.num_programs(1), round_number, WORLD)\n", "",
                    reason=f"what is read has been written before the launch: {ONE_GPU}"),
    PackageMutation(REDUCE, "    _barrier(flag_table, rank, block, blocks, round_number, WORLD)\n", "",
                    reason=f"what is read has been written before the launch: {ONE_GPU}"),
    PackageMutation(REDUCE, "    _barrier(flag_table, rank, block, blocks, round_number + 1, WORLD)\n", ""),
    PackageMutation(REDUCE, "    tl.debug_barrier()\n", ""),
    PackageMutation(NORM, "    while tl.atomic_cas(lock, 0, 1) == 1:\n        pass\n", ""),
    PackageMutation(NORM, "tl.atomic_cas(lock, 0, 1)", 'tl.atomic_cas(lock, 0, 1, sem="relaxed")'),
    PackageMutation(NORM, "tl.atomic_xchg(lock, 0)", 'tl.atomic_xchg(lock, 0, sem="relaxed")'),
    PackageMutation(NORM, "tl.atomic_xchg(written, 1)", "tl.store(written, 1)", reason="it is written under the lock"),
    PackageMutation(NORM, "    tl.debug_barrier()\n", ""),
    PackageMutation(LINEAR, "            gathering.wait()\n", "            pass\n"),
    PackageMutation(LINEAR, "            reducing.wait()\n", "            pass\n"),
    PackageMutation(GRADIENTS, "                bucket.work.wait()\n", "                pass\n"),
)  # fmt: skip


@pytest.mark.parametrize("file", PROGRAMS)
def test_what_is_there_is_correct(file: str, tmp_path: Path) -> None:
    assert said_of((ROOT / file).read_text(), tmp_path / "whole.py", PROGRAMS[file], WORLD) == []


@pytest.mark.long
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda each: f"{Path(each.file).stem}-{each.old.strip()[:40]}")
def test_what_is_missing_is_noticed(mutation: PackageMutation, tmp_path: Path) -> None:
    source = mutation.applied((ROOT / mutation.file).read_text())
    said = said_of(source, tmp_path / "mutated.py", PROGRAMS[mutation.file], WORLD)
    if mutation.reason is None:
        assert any(each.startswith("race: ") for each in said), said or "nobody misses it"
    else:
        assert said == [], "it is not harmless"
