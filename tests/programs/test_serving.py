"""The small serving engine: its tokens against a model without a cache, for any number of ranks; its times, and what fits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner

import kernbench
from kernbench.cli import app
from kernbench.commands import run_program
from kernbench.html_report import page_of, source_of_run
from kernbench.html_report.page import read_page, write_page
from kernbench.programs.requests import ServedRequest, limited, requests_of
from kernbench.runtime_api.launcher import RankProgram, run_ranks
from kernbench.stand_ins import standing_in
from kernbench.topology import resolve_topology
from kernbench.trace.run_result import result_of
from kernbench.trace.serving_figures import ServingResult, serving_result

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "vocab_size": 256, "rope_theta": 10000.0, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}  # fmt: skip
STREAM = "poisson:4000/s,in=5-40,out=3-9,n=8"
TIGHT = "--page 16 --budget 24 --sequences 6"

Serve = Callable[..., tuple[dict[str, list[int]], ServingResult]]


@pytest.fixture(autouse=True)
def flash_attn() -> Iterator[None]:
    with standing_in(["flash_attn"]):
        yield


@pytest.fixture
def serve(tmp_path: Path) -> Serve:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")

    def run(
        options: str, *, tp: int = 1, data: bool = True, requests: str = STREAM, weights: str = "drawn"
    ) -> Any:  # fmt: skip
        answers = tmp_path / "answers.json"
        arguments = f"--model {config} --weights {weights} --requests {requests} --answers {answers}"
        with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
            program = RankProgram.module("kernbench.programs.serving", [*arguments.split(), *options.split()])
            run_ranks(ctx, program, nproc_per_node=tp)
            result = serving_result(ctx.simulation.requests, tp)
        return json.loads(answers.read_text(encoding="utf-8")), result

    return run


def alone(request: ServedRequest) -> list[int]:
    """What a model of the same weights answers, computed whole for every token, with no cache and a softmax by hand."""
    from kernbench.programs.serving_model import ModelShape, ServedLayer, ServedLlama

    shape = ModelShape.of(CONFIG, 1)
    model = ServedLlama(shape, 0, 1)
    tokens = list(request.prompt)
    with torch.no_grad():
        model.draw(0)
        for _ in range(request.wanted):
            x = model.embedding[torch.tensor(tokens)]
            mask = torch.full((len(tokens), len(tokens)), -torch.inf).triu(1)
            for layer in model.layers:
                assert isinstance(layer, ServedLayer)
                heads = layer.qkv(normed(x, layer.before_attention)).view(len(tokens), 8, 16)
                q, k, v = heads.split((4, 2, 2), dim=1)
                angles = torch.arange(len(tokens))[:, None] / 10000.0 ** (torch.arange(0, 16, 2) / 16)
                q, k = rotated(q, angles), rotated(k, angles)
                k, v = (each.repeat_interleave(2, dim=1) for each in (k, v))
                scores = torch.einsum("ihd,jhd->hij", q, k) / 4.0 + mask
                x = x + layer.out(torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).flatten(1))
                gate, up = layer.gate_up(normed(x, layer.before_mlp)).chunk(2, -1)
                x = x + layer.down(gate * torch.sigmoid(gate) * up)
            tokens.append(int(model.head(normed(x[-1], model.norm)).argmax()))
    return tokens[len(request.prompt) :]


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight


def rotated(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    even, odd = x[..., ::2], x[..., 1::2]
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)


@pytest.fixture(scope="module")
def wanted() -> dict[str, list[int]]:
    with standing_in(["flash_attn"]):
        return {each.name: alone(each) for each in limited(requests_of(STREAM, 256), 128)}


@pytest.mark.parametrize(
    ("options", "tp"), [("--pages 40", 1), ("--pages 9 --eager", 1), ("--pages 9", 2), ("--pages 40", 4)]
)
def test_tokens_are_those_of_each_request_alone(serve: Serve, wanted: Any, options: str, tp: int) -> None:
    """Batched, in chunks, in pages, from graphs, over ranks (four of which share two heads of keys), and computed again."""
    answers, result = serve(f"{TIGHT} {options}", tp=tp)
    assert answers == wanted
    assert result.ended == len(wanted)
    assert result.generated_tokens == sum(map(len, wanted.values()))
    assert (result.preemptions > 0) == ("--pages 9" in options)
    assert result.most_blocks_used <= result.blocks
    # every token of a prompt is computed once, and again where its sequence was preempted; the first answer needs no other step
    computed = sum(step.prefill_tokens for step in result.of_steps), sum(step.decode_tokens for step in result.of_steps)
    assert computed[0] >= result.prompt_tokens
    if not result.preemptions:
        assert computed == (result.prompt_tokens, result.generated_tokens - result.ended)
    assert all(step.prefill_tokens + step.decode_tokens <= 24 for step in result.of_steps)


def test_times_without_data_are_those_with_it(serve: Serve) -> None:
    with_data, without = (serve(f"{TIGHT} --pages 9", data=data, weights="empty")[1] for data in (True, False))
    assert without == with_data


def test_the_same_requests_give_the_same_report(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(CONFIG), encoding="utf-8")
    arguments = ["--model", str(config), "--requests", "poisson:2000/s,in=9,out=3,n=4", "--pages", "9", "--page", "16"]
    pages = []
    for _ in range(2):
        with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
            program = RankProgram.module("kernbench.programs.serving", [*arguments, "--sequences", "4"])
            run_ranks(ctx, program, nproc_per_node=1)
            result = result_of(ctx.simulation, program="serving", limits={"ttft": 0.001})
            pages.append(page_of(source_of_run(ctx, result)))
    assert pages[0] == pages[1]
    written = tmp_path / "report.html"
    write_page(written, pages[0])
    header, _ = read_page(written)
    assert header["serving"]["requests"] == 4
    assert next(name for rank, name, _ in header["rows"] if rank is None) == "requests"


def test_serve_runs_the_engines_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr(run_program, "run", lambda *values: given.append(values))
    asked = [
        "--model",
        str(tmp_path),
        "--tp",
        "8",
        "--nodes",
        "2",
        "--requests",
        "burst:n=3",
        "--goodput",
        "ttft=1s",
        "--budget",
        "9",
    ]
    (tmp_path / "config.json").write_text(
        json.dumps({**CONFIG, "num_attention_heads": 8, "num_key_value_heads": 8}), encoding="utf-8"
    )
    for engine, ranks, stand_ins in (("kernbench", "0", ("flash_attn",)), ("vllm", "all", ("auto",))):
        done = CliRunner().invoke(app, ["serve", "--engine", engine, *asked])
        assert done.exit_code == 0, done.output
        options, program, arguments, _ = given.pop()
        assert (options.nproc_per_node, options.nodes, options.ranks, options.enable_data) == (4, 2, ranks, False)
        assert (options.stand_ins, options.module, options.goodput) == (stand_ins, True, {"ttft": 1.0})
        assert program.startswith("kernbench.programs.serving")
        assert arguments == ("--model", str(tmp_path), "--requests", "burst:n=3", "--budget", "9")


def test_ranks_that_are_not_run_change_little(tmp_path: Path) -> None:
    """Others get rank 0's clock some microseconds after it, which the first all-reduce of a step waits for."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**CONFIG, "hidden_size": 1024, "num_key_value_heads": 4}), encoding="utf-8")
    program = RankProgram.module("kernbench.programs.serving", [
        "--model", str(config), "--requests", "burst:in=30,out=4,n=3", "--pages", "20", "--page", "16", "--sequences", "4",
    ])  # fmt: skip
    found = []
    for ranks in ("0", "all"):
        with kernbench.simulate("dgx_h100", enable_data=False, ranks=ranks) as ctx:
            run_ranks(ctx, program, nproc_per_node=4)
            found.append(serving_result(ctx.simulation.requests, 4))
    latencies = [result.latency.mean for result in found if result is not None and result.latency is not None]
    assert latencies[0] < latencies[1] < 1.03 * latencies[0]
    counts = [[step.model_dump(exclude={"at"}) for step in result.of_steps] for result in found if result is not None]
    assert counts[0] == counts[1]


def test_the_cache_takes_what_is_left(serve: Serve, capfd: pytest.CaptureFixture[str]) -> None:
    """Half of the device's memory holds half as much as all of it, but for what weights and a step take from both."""
    pages = {}
    for share in (0.25, 0.5):
        serve(f"--page 256 --utilization {share} --budget 128", data=False, requests="none", weights="empty")
        found = re.search(r"cache ([\d,]+)", capfd.readouterr().out)
        assert found is not None
        pages[share] = int(found[1].replace(",", ""))
    total = resolve_topology("dgx_h100").topology_obj.device.hbm.size
    page = 2 * CONFIG["num_hidden_layers"] * 256 * 2 * 16 * 4  # type: ignore[operator]
    assert pages[0.5] - pages[0.25] == pytest.approx(total / 4 / page, rel=0.03)  # of a GPU, CUDA shows a little less
    with pytest.raises(kernbench.SpawnException, match="no room for a cache"):
        serve("--utilization 0.001", data=False, requests="none", weights="empty")


@pytest.mark.parametrize(("text", "said"), [
    ("poisson:fast", "expected a rate first"), ("poisson:4/s,len=3", "len is none of"), ("burst:in=0", "in=0"),
    ("burst:n=0", "n=0"), ("burst:in=9-3", "in=9-3"), ("requests.json", "expected FILE.jsonl"), ("gone.jsonl", "No such file"),
])  # fmt: skip
def test_requests_that_are_none(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        requests_of(text, 256)


def test_requests_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text(
        '{"arrival": 2, "prompt": [1, 2], "output_tokens": 3, "name": "late"}\n\n{"prompt_tokens": 4, "output_tokens": 200}\n'
    )
    first, late = limited(requests_of(str(path), 256), 128)
    assert (first.name, first.arrival, len(first.prompt), first.wanted) == ("3", 0.0, 1, 127)
    assert (late.name, late.arrival, late.prompt, late.wanted) == ("late", 2.0, (1, 2), 3)
    path.write_text('{"prompt_tokens": 4}\n')
    with pytest.raises(ValueError, match="line 1: expected prompt_tokens"):
        requests_of(str(path), 256)


def test_arrivals_are_drawn_from_the_seed() -> None:
    one, again, other = (requests_of(f"poisson:4/s,n=2000,in=8,out=1,seed={seed}", 256) for seed in (1, 1, 2))
    assert one == again
    assert one[0].arrival != other[0].arrival
    assert one[-1].arrival / 2000 == pytest.approx(0.25, rel=0.1)
