"""Every layout of the Megatron-shaped program trains the same model: losses and gradients are those of one rank."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product

import pytest
import torch

import kernbench
from kernbench.programs.megatron_kernels import ACTIVATIONS, activation, loss_gradient, loss_statistics, rope
from kernbench.runtime_api.launcher import RankProgram, run_ranks

SMALL = "--seq 32 --global-batch 4 --dtype float32 --steps 2"
Found = list[tuple[float, float]]


@pytest.fixture(scope="module")
def trained() -> Callable[[str, int], Found]:
    """Losses and norms of gradients of each step, of a run with so many ranks."""

    def run(arguments: str, ranks: int) -> Found:
        nodes = max(ranks // 8, 1)
        lines: list[str] = []
        with pytest.MonkeyPatch.context() as patch, kernbench.simulate("dgx_b200", nodes=nodes) as ctx:
            patch.setattr("builtins.print", lambda text, *_, **__: lines.append(str(text)))
            program = RankProgram.module("kernbench.programs.megatron", [*SMALL.split(), *arguments.split()])
            run_ranks(ctx, program, nproc_per_node=min(ranks, 8), nnodes=nodes)
        found = re.findall(r"loss ([\d.]+), gradient ([\d.]+)", "\n".join(lines))
        return [(float(loss), float(norm)) for loss, norm in found]

    return run


@pytest.fixture(scope="module")
def alone(trained: Callable[[str, int], Found]) -> dict[str, Found]:
    """What one rank comes to."""
    return {model: trained(f"--model {model}", 1) for model in ("debug", "debug-experts")}


def layout(tp: int, pp: int, cp: int, ep: int) -> str:
    return f"--tp {tp} --pp {pp} --cp {cp} --ep {ep}"


QUICK = [
    ("debug-experts", layout(2, 2, 2, 2) + " --parts 2", 16),
    ("debug", layout(2, 1, 1, 1) + " --overlap-grad-reduce --overlap-param-gather --bucket 1000", 4),
    ("debug", layout(1, 2, 1, 1) + " --micro-batch 2 --recompute selective", 2),
]
EVERY = [
    ("debug-experts", layout(1, 1, 2, 2) + " --recompute full", 2),
    *(
        (model, layout(tp, pp, cp, ep) + more, tp * pp * cp * dp)
        for model, tp, pp, cp, dp, ep in product(("debug", "debug-experts"), (1, 2), (1, 2), (1, 2), (1, 2), (1, 2))
        if ep == 1 or (model == "debug-experts" and tp * cp * dp > 1)
        for more in ([""] if pp == 1 else ["", " --parts 2"])
    ),
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("model", "arguments", "ranks"),
    [*QUICK, *(pytest.param(*each, marks=pytest.mark.long) for each in EVERY)],
    ids=lambda value: str(value).replace("--", "").replace(" ", "_"),
)
def test_a_layout_trains_what_one_rank_does(
    model: str, arguments: str, ranks: int, trained: Callable[[str, int], Found], alone: dict[str, Found]
) -> None:
    found = trained(f"--model {model} {arguments}", ranks)
    assert len(found) == 2
    for (loss, norm), (expected, expected_norm) in zip(found, alone[model], strict=True):
        assert loss == pytest.approx(expected, abs=2e-5)
        assert norm == pytest.approx(expected_norm, rel=1e-4)
    assert found[0] != found[1]


def gated(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, -1)
    return gate * torch.sigmoid(gate) * up


FORMULAS = {
    "swiglu": gated,
    "squared_relu": lambda x: torch.relu(x) ** 2,
    "gelu": lambda x: x / 2 * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_a_fused_activation_has_the_gradient_of_its_formula(kind: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 8, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    results = activation(x, kind), FORMULAS[kind](y)
    torch.testing.assert_close(*results)
    for found, own in zip(results, (x, y), strict=True):
        (found * torch.arange(found.shape[-1])).sum().backward()
        assert own.grad is not None
    torch.testing.assert_close(x.grad, y.grad)


def test_rotary_positions_keep_lengths_and_turn_back() -> None:
    torch.manual_seed(0)
    x, angles = torch.randn(4, 1, 2, 8, requires_grad=True), torch.rand(4, 4)
    turned = rope(x, angles)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    (turned * turned.detach()).sum().backward()
    torch.testing.assert_close(x.grad, x.detach())


def test_a_loss_over_parts_of_a_vocabulary_is_that_over_all_of_it() -> None:
    torch.manual_seed(0)
    logits, labels = torch.randn(5, 12), torch.tensor([0, 5, 6, 11, 3])
    whole = logits.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(whole, labels, reduction="none")
    expected.sum().backward()
    parts = [part.contiguous() for part in logits.chunk(2, 1)]
    statistics = torch.stack([loss_statistics(part, labels, 6 * at) for at, part in enumerate(parts)])
    for at, part in enumerate(parts):
        torch.testing.assert_close(loss_gradient(part, statistics, labels, 6 * at), expected.detach())
    torch.testing.assert_close(torch.cat(parts, 1), whole.grad)
