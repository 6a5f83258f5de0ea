"""The file of ``kernbench run --json``: what is read back, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import kernbench
from kernbench.errors import ConfigError
from kernbench.trace.run_result import RunResult, failure_of, read_result, result_of, write_result


@pytest.fixture(scope="module")
def result() -> RunResult:
    def body(rank: int) -> None:
        torch.cuda.set_device(rank)
        x = torch.ones(1024, 1024, device="cuda", requires_grad=True)
        optimizer = torch.optim.SGD([x], lr=1.0)
        for _ in range(2):
            (x @ x).sum().backward()
            optimizer.step()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, nprocs=2)
        return result_of(ctx.simulation, program="p.py", arguments=["--a"], tokens=10, extrapolate=100, notes=["said"])


def test_what_is_in_it(result: RunResult) -> None:
    assert (result.system, result.gpus, result.status, result.arguments) == ("dgx_h100", 2, "ok", ("--a",))
    assert [step.model_flops for step in result.steps] == [2 * 3 * 2 * 1024**3] * 2
    assert result.throughput is not None
    assert result.throughput.tokens_per_second == pytest.approx(10 / result.throughput.seconds_per_step)
    assert result.throughput.samples_per_second is None
    assert result.throughput.peaks == {"fp32": 67e12}
    assert result.notes == ("said",)
    assert result.extrapolated[100] > result.seconds
    for rank in result.ranks:
        assert rank.compute + rank.communication + rank.host + rank.idle == pytest.approx(rank.seconds)
        assert rank.device_bytes >= 2 * 4 * 1024**2


def test_it_is_read_as_it_was_written(result: RunResult, tmp_path: Path) -> None:
    write_result(tmp_path / "r.json", result)
    assert read_result(tmp_path / "r.json") == result
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file"),
        ("{", "broken JSON"),
        ("[]", "was not written by kernbench run --json"),
        ('{"format": "kernbench.run", "version": 2}', "of version 2; this kernbench reads version 1"),
        ('{"format": "kernbench.run", "version": 1}', "system: Field required"),
    ],
)
def test_files_that_are_no_results(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "r.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_result(tmp_path / "r.json")


def test_a_newer_field_does_no_harm(result: RunResult, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps({**json.loads(result.model_dump_json()), "later": 1}))
    assert read_result(tmp_path / "r.json") == result


def test_out_of_memory_says_how_much_is_short() -> None:
    free = "GPU 0 has a total capacity of 79.11 GiB of which 512.00 MiB is free."
    message = f"CUDA out of memory. Tried to allocate 2.00 GiB. {free}"
    assert failure_of(3, torch.OutOfMemoryError(message)).short_bytes == 3 * 2**29
    assert failure_of(3, ValueError("a\nb")).model_dump() == {"rank": 3, "error": "ValueError: a", "short_bytes": None}
