"""Linear-attention operators of ``flash-linear-attention`` against the package's own step-by-step references.

Runs where the package is installed (``pip install --no-deps flash-linear-attention fla-core``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.packages.device_shim import cuda_questions_answered

pytest.importorskip("fla")

B, T, H, K, V = 2, 75, 2, 32, 32


@pytest.fixture(scope="module", autouse=True)
def _device():
    with cuda_questions_answered():
        yield


def unit(*shape: int) -> torch.Tensor:
    return F.normalize(torch.randn(*shape), dim=-1)


ARGUMENTS: dict[str, Callable[[], torch.Tensor]] = {
    "q": lambda: torch.randn(B, T, H, K) * 0.5,
    "r": lambda: torch.randn(B, T, H, K) * 0.5,
    "k": lambda: unit(B, T, H, K),
    "p": lambda: unit(B, T, H, K),
    "v": lambda: torch.randn(B, T, H, V),
    "w": lambda: F.logsigmoid(torch.randn(B, T, H, K)),
    "wk": lambda: unit(B, T, H, K),
    "u": lambda: torch.randn(H, K),
    "s": lambda: torch.randn(B, T, H, 32),
    "x": lambda: torch.randn(B, T, 64),
    "gate": lambda: F.logsigmoid(torch.randn(B, T, H)),
    "vector gate": lambda: F.logsigmoid(torch.randn(B, T, H, K)),
    "slot gate": lambda: F.logsigmoid(torch.randn(B, T, H, 32)),
    "hgrn gate": lambda: F.logsigmoid(torch.randn(B, T, 64)),
    "beta": lambda: torch.rand(B, T, H).sigmoid(),
}


@dataclass(frozen=True)
class Pair:
    """Two functions of one operator: ``{parameter: kind of argument}``, each called by keyword."""

    operator: str
    reference: str
    arguments: dict[str, str]
    renamed: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    reference_options: dict[str, Any] = field(default_factory=dict)
    differentiable: bool = True
    heads_first: bool = False
    """The reference wants ``[batch, heads, time, ...]``."""
    dtype: torch.dtype = torch.float32

    def __str__(self) -> str:
        return self.operator.rsplit(".", 1)[1]


def same(*names: str, **kinds: str) -> dict[str, str]:
    return {name: name for name in names} | kinds


QKV = same("q", "k", "v")
DELTA = QKV | {"beta": "beta"}
PAIRS = [
    Pair("fla.ops.chunk_gla", "fla.ops.gla.naive.naive_recurrent_gla", QKV | {"g": "vector gate"}, {"g": "gk"}),
    Pair("fla.ops.fused_recurrent_gla", "fla.ops.gla.naive.naive_recurrent_gla", QKV | {"gk": "vector gate"}),
    Pair("fla.ops.chunk_simple_gla", "fla.ops.simple_gla.naive.naive_recurrent_simple_gla", QKV | {"g": "gate"}),
    Pair("fla.ops.fused_chunk_simple_gla", "fla.ops.simple_gla.naive.naive_recurrent_simple_gla", QKV | {"g": "gate"}),
    Pair("fla.ops.fused_recurrent_simple_gla", "fla.ops.simple_gla.naive.naive_recurrent_simple_gla", QKV | {"g": "gate"}),
    Pair("fla.ops.parallel_simple_gla", "fla.ops.simple_gla.naive.naive_recurrent_simple_gla", QKV | {"g": "gate"}),
    Pair("fla.ops.chunk_delta_rule", "fla.ops.delta_rule.naive.delta_rule_recurrence", DELTA, heads_first=True,
         dtype=torch.bfloat16),
    Pair("fla.ops.fused_recurrent_delta_rule", "fla.ops.delta_rule.naive.delta_rule_recurrence", DELTA, heads_first=True),
    Pair("fla.ops.chunk_gated_delta_rule", "fla.ops.gated_delta_rule.naive.naive_recurrent_gated_delta_rule",
         DELTA | {"g": "gate"}),
    Pair("fla.ops.fused_recurrent_gated_delta_rule", "fla.ops.gated_delta_rule.naive.naive_recurrent_gated_delta_rule",
         DELTA | {"g": "gate"}, differentiable=False),
    Pair("fla.ops.chunk_kda", "fla.ops.kda.naive.naive_recurrent_kda", DELTA | {"g": "vector gate"}),
    Pair("fla.ops.fused_recurrent_kda", "fla.ops.kda.naive.naive_recurrent_kda", DELTA | {"g": "vector gate"},
         differentiable=False),
    Pair("fla.ops.chunk_iplr_delta_rule", "fla.ops.generalized_delta_rule.iplr.naive.iplr_recurrence",
         QKV | {"a": "wk", "b": "p"}, {"a": "alpha", "b": "beta"}, differentiable=False, heads_first=True),
    Pair("fla.ops.chunk_dplr_delta_rule", "fla.ops.generalized_delta_rule.dplr.naive.dplr_recurrence",
         QKV | {"a": "wk", "b": "p", "gk": "vector gate"}, {"a": "alpha", "b": "beta"}, heads_first=True),
    Pair("fla.ops.fused_recurrent_dplr_delta_rule", "fla.ops.generalized_delta_rule.dplr.naive.dplr_recurrence",
         QKV | {"a": "wk", "b": "p", "gk": "vector gate"}, {"a": "alpha", "b": "beta"}, differentiable=False, heads_first=True),
    Pair("fla.ops.chunk_linear_attn", "fla.ops.linear_attn.naive.naive_recurrent_linear_attn", QKV,
         options={"normalize": False}, reference_options={"normalize": False}),
    Pair("fla.ops.fused_chunk_linear_attn", "fla.ops.linear_attn.naive.naive_recurrent_linear_attn", QKV,
         options={"normalize": False}, reference_options={"normalize": False}),
    Pair("fla.ops.fused_recurrent_linear_attn", "fla.ops.linear_attn.naive.naive_recurrent_linear_attn", QKV,
         options={"normalize": False}, reference_options={"normalize": False}),
    Pair("fla.ops.chunk_retention", "fla.ops.fused_recurrent_retention", QKV),
    Pair("fla.ops.parallel_retention", "fla.ops.fused_recurrent_retention", QKV),
    Pair("fla.ops.fused_chunk_retention", "fla.ops.fused_recurrent_retention", QKV),
    Pair("fla.ops.chunk_gsa", "fla.ops.gsa.naive.naive_recurrent_gsa", QKV | {"s": "s", "g": "slot gate"}),
    Pair("fla.ops.fused_recurrent_gsa", "fla.ops.gsa.naive.naive_recurrent_gsa", QKV | {"s": "s", "g": "slot gate"}),
    Pair("fla.ops.chunk_abc", "fla.ops.abc.naive.naive_cumsum_abc", QKV | {"s": "s"}, heads_first=True),
    Pair("fla.ops.chunk_rwkv6", "fla.ops.fused_recurrent_rwkv6", same("r", "k", "v", "w", "u")),
    Pair("fla.ops.chunk_rwkv7", "fla.ops.generalized_delta_rule.dplr.naive.dplr_recurrence",
         same("r", "w", "k", "v", a="wk", b="p"), {"r": "q", "w": "gk", "a": "alpha", "b": "beta"}, {"scale": K**-0.5},
         heads_first=True),
    Pair("fla.ops.fused_recurrent_hgrn", "fla.ops.hgrn.naive.naive_recurrent_hgrn", {"x": "x", "g": "hgrn gate"}),
    Pair("fla.ops.parallel_attn", "fla.ops.attn.naive.naive_parallel_attn", QKV),
    Pair("fla.ops.parallel_based", "fla.ops.based.naive.naive_parallel_based", QKV, heads_first=True),
    Pair("fla.ops.parallel_forgetting_attn", "fla.ops.forgetting_attn.naive.naive_forgetting_attn", QKV | {"g": "gate"}),
    Pair("fla.ops.parallel_path_attn", "fla.ops.path_attn.naive.naive_path_attn", DELTA | {"w": "wk", "g": "gate"},
         reference_options={"scale": K**-0.5}),
    Pair("fla.ops.parallel_stickbreaking_attn", "fla.ops.stickbreaking_attn.naive.naive_stickbreaking_attn", QKV),
    # not naive_recurrent_comba, which lets p read the state after the gate; the kernels and this one let it read before
    Pair("fla.ops.chunk_comba", "fla.ops.comba.naive.naive_chunk_comba", DELTA | {"p": "p", "g": "gate"}, differentiable=False),
]  # fmt: skip


def resolve(name: str) -> Callable[..., Any]:
    module, function = name.rsplit(".", 1)
    return getattr(import_module(module), function)


def first(result: Any) -> torch.Tensor:
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_operator_against_its_reference(pair: Pair):
    grad = pair.differentiable
    values = {name: ARGUMENTS[kind]().to(pair.dtype) for name, kind in pair.arguments.items()}
    ours = {name: value.clone().requires_grad_(grad) for name, value in values.items()}
    theirs = {name: value.float().requires_grad_(grad) for name, value in values.items()}
    by_head = {n: v.transpose(1, 2) for n, v in theirs.items()} if pair.heads_first else theirs
    out = first(resolve(pair.operator)(**ours, **pair.options))
    expected = first(
        resolve(pair.reference)(**{pair.renamed.get(n, n): v for n, v in by_head.items()}, **pair.reference_options)
    )
    if pair.heads_first:
        expected = expected.transpose(1, 2)
    tolerance = 2e-3 if pair.dtype == torch.float32 else 2e-2
    torch.testing.assert_close(out.float(), expected.float(), rtol=tolerance, atol=tolerance)
    if not grad:
        return
    gradient = torch.randn_like(out)
    got = torch.autograd.grad(out, list(ours.values()), gradient, allow_unused=True)
    want = torch.autograd.grad(expected, list(theirs.values()), gradient.to(expected.dtype), allow_unused=True)
    for name, g, w in zip(values, got, want, strict=True):
        if w is not None:
            bound = 2.5 * tolerance * max(1.0, w.abs().max().item())
            torch.testing.assert_close(
                g.float(), w, rtol=2.5 * tolerance, atol=bound, msg=lambda m, n=name: f"d{n}: {m}"
            )
