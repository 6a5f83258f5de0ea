"""Decoding one token after the other is bound by the host, and a CUDA graph is what helps."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

import kernbench
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.launcher import RankProgram, run_ranks
from kernbench.trace import Timeline
from kernbench.trace.report import report_of

SMALL = "--layers 1 --dim 16 --heads 2 --hidden 32 --vocab 64 --limit 8 --tokens 2"
EAGER, GRAPH = 25.5, 107.0  # tokens/s, published: kernbench/programs/decode.py


@pytest.fixture
def decode(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[float, RuntimeContext]]:
    def run(arguments: str, *, data: bool = False) -> tuple[float, RuntimeContext]:
        with kernbench.simulate("dgx_a100", devices=[0], enable_data=data) as ctx:
            run_ranks(ctx, RankProgram.module("kernbench.programs.decode", arguments.split()), nproc_per_node=1)
        took = re.search(r"([\d.]+) ms per token", capfd.readouterr().out)
        assert took is not None
        return float(took[1]) * 1e-3, ctx

    return run


@pytest.mark.parametrize("mode", ["", "--graph"])
def test_it_runs_with_its_data(decode: Callable[..., tuple[float, RuntimeContext]], mode: str) -> None:
    assert decode(f"{SMALL} {mode}", data=True)[0] > 0


def test_a_cached_decoder_gives_what_attention_over_all_tokens_gives() -> None:
    """The second token's attention, against a softmax over both by hand."""
    from argparse import Namespace

    from kernbench.programs.decode import Layer, rotated

    torch.manual_seed(0)
    layer = Layer(Namespace(heads=2, dim=8, hidden=16, limit=4))
    angles = torch.rand(4, 2, 2)
    tokens = torch.rand(2, 1, 1, 8)
    with torch.no_grad():
        for at in range(2):
            where = torch.tensor([at])
            got = layer(tokens[at], where, torch.ones(4, 4, dtype=torch.bool).tril()[None, None, where], angles[where])
        normed = layer.before_attention(tokens.view(1, 2, 8))
        query, key, value = (part.view(1, 2, 2, 4) for part in layer.qkv(normed).chunk(3, -1))
        query, key = rotated(query, angles[:2]), rotated(key, angles[:2])
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        scores = query[:, :, 1:] @ key.mT / 2
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(1, 1, 8)
        x = tokens[1] + layer.out(mixed)
        here = layer.before_mlp(x)
        expected = x + layer.down(torch.nn.functional.silu(layer.gate(here)) * layer.up(here))
    torch.testing.assert_close(got, expected)


def test_what_a_graph_gives_has_the_published_sign_and_size(
    decode: Callable[..., tuple[float, RuntimeContext]],
) -> None:
    """Llama-2 7B on an A100, from one and two of its layers."""
    rates = {}
    for mode in ("", "--graph"):
        one, _ = decode(f"--layers 1 --tokens 2 {mode}")
        two, ctx = decode(f"--layers 2 --tokens 2 {mode}")
        rates[mode] = 1 / (one + 31 * (two - one))
        shares = report_of(Timeline.of(ctx).spans).path_shares
        if not mode:
            assert shares["host"] > shares["compute"]  # which is that of drawing the weights
    assert rates[""] == pytest.approx(EAGER, rel=0.3)
    assert rates["--graph"] == pytest.approx(GRAPH, rel=0.3)
    # what was published with graphs is compiled, too: fewer kernels than the program's, each of which takes 2.5 us at least
    assert GRAPH / EAGER / 2 < rates["--graph"] / rates[""] < GRAPH / EAGER
