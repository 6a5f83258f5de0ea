"""The stand-in for ``flash_attn``: values against the definition in double precision, and how it is asked for."""

from __future__ import annotations

import importlib
import importlib.metadata
import math
import os
import subprocess
import sys
from typing import Any

import pytest
import torch

import kernbench
from kernbench.errors import ConfigError
from kernbench.runtime_api.joining import ADDRESS
from kernbench.runtime_api.node_variables import variables_of
from kernbench.stand_ins import AUTO, TOLD, standing_in
from kernbench.torch_backend.gpu.device.visible_devices import NodeGpus


@pytest.fixture
def flash_attn():
    with standing_in(["flash_attn"]):
        import flash_attn

        yield flash_attn


def _defined(q, k, v, *, causal=False, window=(-1, -1), softcap=0.0, alibi=None, scale=None):
    """``[batch, length, heads, size]``, one score after the other."""
    batch, queries, heads, size = q.shape
    keys, of_keys = k.shape[1], k.shape[2]
    out = torch.zeros(batch, queries, heads, size, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                at = i + keys - queries
                left = 0 if window[0] < 0 else max(0, at - window[0])
                right = keys if window[1] < 0 else min(keys, at + window[1] + 1)
                seen = range(left, min(right, at + 1) if causal else right)
                scores = [(q[b, i, h].double() @ k[b, j, h * of_keys // heads].double()).item() for j in seen]
                scores = [s * (size**-0.5 if scale is None else scale) for s in scores]
                scores = [softcap * math.tanh(s / softcap) if softcap else s for s in scores]
                if alibi is not None:
                    slope = alibi[h].item()
                    scores = [s - slope * abs(j - at) for s, j in zip(scores, seen, strict=True)]
                powers = [math.exp(s) for s in scores]
                for power, j in zip(powers, seen, strict=True):
                    out[b, i, h] += power / sum(powers) * v[b, j, h * of_keys // heads].double()
    return out


def _operands(queries=5, keys=7, heads=4, of_keys=2, batch=2, size=8):
    generator = torch.Generator().manual_seed(1)
    shapes = ((batch, queries, heads, size), (batch, keys, of_keys, size), (batch, keys, of_keys, size))
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("given", [
    {}, {"causal": True}, {"window": (2, 0)}, {"window": (1, 2)}, {"causal": True, "window": (3, -1)}, {"softcap": 2.0},
    {"causal": True, "softcap": 1.5}, {"alibi": torch.tensor([0.5, 0.25, 0.1, 0.0])},
    {"causal": True, "alibi": torch.tensor([0.5, 0.25, 0.1, 0.0])}, {"causal": True, "scale": 0.3},
], ids=str)  # fmt: skip
@pytest.mark.parametrize(("queries", "keys"), [(5, 7), (6, 6), (7, 4), (1, 6), (2, 1)])
def test_it_is_attention_as_defined(flash_attn, given, queries, keys):
    q, k, v = _operands(queries, keys)
    names = {"window": "window_size", "alibi": "alibi_slopes", "scale": "softmax_scale"}
    found = flash_attn.flash_attn_func(q, k, v, **{names.get(name, name): value for name, value in given.items()})
    torch.testing.assert_close(found.double(), _defined(q, k, v, **given), rtol=1e-4, atol=1e-5)


def test_statistics_are_the_scores_log_sums(flash_attn):
    q, k, v = _operands(6, 6, of_keys=4)
    out, sums, _ = flash_attn.flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * 8**-0.5
    scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -math.inf)
    torch.testing.assert_close(sums, torch.logsumexp(scores, -1))
    torch.testing.assert_close(out, flash_attn.flash_attn_func(q, k, v, causal=True))


def test_sequences_one_after_the_other_and_packed(flash_attn):
    q, k, v = _operands(9, 9, of_keys=4)
    ends = torch.tensor([0, 2, 9], dtype=torch.int32)
    found = flash_attn.flash_attn_varlen_func(q[0], k[0], v[0], ends, ends, 7, 7, causal=True)
    wanted = [
        flash_attn.flash_attn_func(q[:1, a:b], k[:1, a:b], v[:1, a:b], causal=True)[0] for a, b in ((0, 2), (2, 9))
    ]
    torch.testing.assert_close(found, torch.cat(wanted))
    packed = torch.stack((q, k, v), dim=2)
    torch.testing.assert_close(
        flash_attn.flash_attn_qkvpacked_func(packed, causal=True), flash_attn.flash_attn_func(q, k, v, causal=True)
    )
    torch.testing.assert_close(flash_attn.flash_attn_varlen_qkvpacked_func(packed[0], ends, 7, causal=True), found)


def test_a_cache_grows_in_place(flash_attn):
    q, k, v = _operands(1, 7)
    k_cache, v_cache = (torch.zeros(2, 10, 2, 8) for _ in range(2))
    k_cache[:, :6], v_cache[:, :6] = k[:, :6], v[:, :6]
    found = flash_attn.flash_attn_with_kvcache(
        q, k_cache, v_cache, k[:, 6:], v[:, 6:], cache_seqlens=torch.tensor([6, 6]), causal=True
    )
    torch.testing.assert_close(found, flash_attn.flash_attn_func(q, k, v, causal=True))
    assert torch.equal(k_cache[:, 6], k[:, 6])
    with pytest.raises(NotImplementedError, match="cache_leftpad"):
        flash_attn.flash_attn_with_kvcache(q, k_cache, v_cache, cache_leftpad=torch.zeros(1))


PAGES = torch.tensor([[3, 0, -1], [1, 4, 2]], dtype=torch.int32)
"""Of two sequences in a cache of five pages of four keys each."""


def paged(keys: torch.Tensor, lengths: tuple[int, ...]) -> torch.Tensor:
    """A cache that has the first of ``keys`` in their pages, and elsewhere what may not be read."""
    cache = torch.full((5, 4, *keys.shape[2:]), 1e4)
    for sequence, length in enumerate(lengths):
        for at in range(length):
            cache[PAGES[sequence, at // 4], at % 4] = keys[sequence, at]
    return cache


@pytest.mark.parametrize(
    "given",
    [
        {}, {"causal": True}, {"softcap": 2.0, "causal": True}, {"window_size": (3, 0)}, {"slopes": 0.5},
        {"slopes": 0.5, "captured": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_cache_in_pages(flash_attn, given, monkeypatch):
    q, k, v = _operands(2, 12)
    given = dict(given)
    if given.pop("captured", False):  # what a captured graph would do: nothing is read, and all sequences are one call
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        monkeypatch.setattr(torch.Tensor, "tolist", None)
    if "slopes" in given:
        given["alibi_slopes"] = torch.full((q.shape[2],), given.pop("slopes"))
    k_cache, v_cache = paged(k, (5, 9)), paged(v, (5, 9))
    found = flash_attn.flash_attn_with_kvcache(
        q, k_cache, v_cache, k[:, 10:], v[:, 10:], cache_seqlens=torch.tensor([5, 9], dtype=torch.int32),
        block_table=PAGES, **given,
    )  # fmt: skip
    monkeypatch.undo()
    for sequence, length in enumerate((5, 9)):
        keys, values = (torch.cat((each[:, :length], each[:, 10:]), dim=1)[sequence, None] for each in (k, v))
        wanted = flash_attn.flash_attn_func(q[sequence, None], keys, values, **given)
        torch.testing.assert_close(found[sequence, None], wanted)
        assert torch.equal(k_cache[PAGES[sequence, length // 4], length % 4], k[sequence, 10])


def decoded(lengths: list[int], *, graph: bool, data: bool) -> tuple[float, torch.Tensor]:
    """Seconds that decoding two sequences of these lengths takes, and its result; in a replay, captured at lengths of 0."""
    found: list[Any] = []

    def worker(rank: int) -> None:
        import flash_attn

        generator = torch.Generator().manual_seed(1)
        cache = torch.randn(64, 256, 2, 64, generator=generator).half().cuda()
        q = torch.randn(2, 1, 4, 64, generator=generator).half().cuda()
        live, pages = (
            torch.zeros(2, dtype=torch.int32, device="cuda"),
            torch.arange(64, device="cuda").view(2, 32).int(),
        )
        now = torch.tensor(lengths, dtype=torch.int32).cuda()

        def step() -> torch.Tensor:
            return flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=live, block_table=pages)

        captured = torch.cuda.CUDAGraph()
        torch.set_default_device("cuda")  # a function mode, as engines have one when they capture
        if graph:
            with torch.cuda.graph(captured):
                out = step()
        live.copy_(now)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        if graph:
            captured.replay()
        else:
            out = step()
        end.record()
        end.synchronize()
        found.append((begin.elapsed_time(end) * 1e-3, out.cpu() if data else None))

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    return found[0]


def test_decoding_takes_time_by_its_live_lengths_also_in_a_graph(flash_attn):
    took = {}
    for graph in (False, True):
        for lengths in ([256, 256], [8192, 8192], [8192, 1]):
            took[graph, sum(lengths)], values = decoded(lengths, graph=graph, data=True)
            seconds, _ = decoded(lengths, graph=graph, data=False)
            assert seconds == took[graph, sum(lengths)]
            torch.testing.assert_close(values, decoded(lengths, graph=not graph, data=True)[1])
        read = 2 * 2 * 64 * 2  # bytes of a key and its value
        more = took[graph, 16384] - took[graph, 8193]
        assert more == pytest.approx(8191 * read / 2.6e12, rel=0.35)  # about the copy bandwidth of an H100
        assert took[graph, 512] < took[graph, 8193]


def test_sequences_in_pages_one_after_the_other(flash_attn):
    q, k, v = _operands(3, 12)
    found = flash_attn.flash_attn_varlen_func(
        q.flatten(0, 1)[:5], paged(k, (5, 9)), paged(v, (5, 9)), torch.tensor([0, 3, 5]), torch.tensor([0, 5, 14]), 3, 9,
        causal=True, block_table=PAGES,
    )  # fmt: skip
    wanted = [
        flash_attn.flash_attn_func(q[at, None, :queries], k[at, None, :length], v[at, None, :length], causal=True)[0]
        for at, (queries, length) in enumerate(((3, 5), (2, 9)))
    ]
    torch.testing.assert_close(found, torch.cat(wanted))


def test_padding_goes_and_comes_back(flash_attn):
    from flash_attn.bert_padding import pad_input, unpad_input

    x = torch.arange(24.0).view(2, 4, 3)
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]])
    rows, indices, ends, longest, lengths = unpad_input(x, mask)
    assert (ends.tolist(), longest, lengths.tolist()) == ([0, 2, 5], 3, [2, 3])
    assert torch.equal(pad_input(rows, indices, 2, 4), x * mask[..., None])


def test_it_is_found_as_a_release_and_gone_afterwards():
    with standing_in(["flash_attn"]):
        assert importlib.metadata.version("flash_attn") == importlib.metadata.version("flash-attn") == "2.8.3"
        assert "flash_attn" in importlib.metadata.packages_distributions()
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("flash_attn")
    with pytest.raises(ModuleNotFoundError):
        import flash_attn  # noqa: F401
    with pytest.raises(ConfigError, match="there is none"), standing_in(["cuda_thing"]):
        pass
    with pytest.raises(ConfigError, match="it is installed"), standing_in(["flash_attn"]), standing_in(["flash_attn"]):
        pass


def test_processes_of_a_command_find_it():
    with standing_in(["flash_attn"]):
        environ = {**os.environ, **variables_of(NodeGpus(8), os.environ), ADDRESS: "nobody"}
        look = "from importlib import metadata, util; print(util.find_spec('flash_attn').name, metadata.version('flash-attn'))"
        found = subprocess.run([sys.executable, "-c", look], env=environ, capture_output=True, text=True, check=True)
    assert found.stdout == "flash_attn 2.8.3\n"
    assert TOLD not in os.environ


@pytest.mark.long
def test_a_program_is_told_of_it_and_runs_with_it(tmp_path):
    script = tmp_path / "attends.py"
    script.write_text(
        "import torch\nfrom flash_attn import flash_attn_func\n"
        "x = torch.ones(1, 64, 2, 32, device='cuda', dtype=torch.bfloat16)\n"
        "print(flash_attn_func(x, x, x, causal=True).sum())\n"
    )
    run = [sys.executable, "-m", "kernbench", "run", "--system", "dgx_h100"]
    failed = subprocess.run([*run, str(script)], capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "flash_attn is not installed: kernbench run --stand-in flash_attn has its public functions" in failed.stderr
    done = subprocess.run([*run, "--stand-in", "flash_attn", str(script)], capture_output=True, text=True, check=True)
    assert "tensor(4096., device='cuda:0', dtype=torch.bfloat16)" in done.stdout


@pytest.mark.parametrize("name", ["flash_attn_3", "flash_attn_interface", AUTO])
def test_both_names_of_the_third_release_are_found_by_either(name):
    with standing_in([name]):
        assert importlib.import_module("flash_attn_3.flash_attn_interface").flash_attn_func
        assert importlib.import_module("flash_attn_interface").flash_attn_varlen_func
        assert importlib.metadata.version("flash-attn-3") == "3.0.0"
