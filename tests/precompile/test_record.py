"""A test run records the kernels that it launches; the next one compiles them first, and then nothing more."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from kernbench.precompile import Record, precompile, read_spaces, record, variants
from kernbench.testing.kernels import KernelWatch
from tests.testing.conftest import fresh_pytest as fresh_pytest

pytest.importorskip("triton")
pytest_plugins = ["pytester"]

KERNELS = """
import triton
import triton.language as tl


@triton.jit
def scale_kernel(x_ptr, n, factor, BLOCK: tl.constexpr, KIND: tl.constexpr, MODE: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, (tl.load(x_ptr + at, mask=at < n) * factor).to(KIND), mask=at < n)


@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 32}, num_warps=2)], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % 16 == 0})
@triton.jit
def tuned_kernel(x_ptr, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)
"""

TESTS = """
import pytest, torch, triton, triton.language as tl
from kernbench.triton_engine import activate
from acme_kernels import scale_kernel, tuned_kernel

activate()


@pytest.mark.parametrize("n", [1, 16, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_scale(n, dtype):
    x = torch.ones(64, dtype=dtype)[n == 17 :]
    kind = tl.float32 if dtype == torch.float32 else tl.float16
    scale_kernel[(1,)](x, n, 2.0, BLOCK=32, KIND=kind, MODE=("push" if n == 1 else None), num_warps=8)
    assert x[:n].tolist() == [2.0] * n


def test_tuned():
    x = torch.ones(64)
    tuned_kernel[lambda meta: (triton.cdiv(64, meta["BLOCK"]),)](x, 64)
"""


@pytest.mark.long  # docs/precompile.md does the same, once
@pytest.mark.timeout(400)  # processes of its own, which import torch
def test_what_a_run_launches_is_compiled_before_the_next(
    pytester: pytest.Pytester, fresh_pytest: Callable[..., pytest.RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(acme_kernels=KERNELS, test_acme=TESTS)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(pytester.path / "first"))
    result = fresh_pytest("--kernbench-record", "kernels.yaml")
    result.assert_outcomes(passed=7)
    assert "kernels: 8 compiled by the tests: scale_kernel (6), tuned_kernel (2)" in result.stdout.str()
    assert len(variants(read_spaces(pytester.path / "kernels.yaml"))) == 8
    monkeypatch.setenv("TRITON_CACHE_DIR", str(pytester.path / "second"))
    result = fresh_pytest("--kernbench-precompile", "kernels.yaml", "--kernbench-precompile-values")
    result.assert_outcomes(passed=7)
    summary = r"kernels: 8 compiled ahead in .* s, 0 were in the cache; 0 compiled by the tests"
    assert re.search(summary, result.stdout.str())


def test_workers_tell_what_they_have_compiled_and_recorded(tmp_path: Path) -> None:
    options = {"--kernbench-record": str(tmp_path / "all.yaml")}
    told: dict[str, dict[str, int]] = {}
    for worker, entry in (("gw0", "a"), ("gw1", "b")):
        config = SimpleNamespace(getoption=options.get, workeroutput={}, workerinput={"workerid": worker})
        watch = KernelWatch(config, compiles_ahead=False)  # type: ignore[arg-type]
        watch._record.entries = {entry: {"kernel": f"m:{entry}"}}
        watch._note(SimpleNamespace(name="k", fn=None), {}, cache_hit=False)
        watch.finish(tmp_path / "run", is_worker=True)
        told[worker] = config.workeroutput
    controller = KernelWatch(SimpleNamespace(getoption=options.get), compiles_ahead=True)  # type: ignore[arg-type]
    for output in told.values():
        controller.take_from(output)
    controller.finish(tmp_path / "run", is_worker=False)
    lines: list[str] = []
    controller.report(SimpleNamespace(write_line=lines.append))
    assert lines == ["kernbench: kernels: 2 compiled by the tests: k (2)"]
    assert [entry["kernel"] for entry in yaml.safe_load((tmp_path / "all.yaml").read_text())["kernels"]] == [
        "m:a",
        "m:b",
    ]


def test_a_kernel_that_is_gone_is_left_out(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(acme_gone=KERNELS)
    axes = {"x_ptr": ["*fp32"], "n": ["i32"], "BLOCK": [16], "EVEN": [True], "num_warps": [2]}
    kept = {"kernel": f"{pytester.path}/acme_gone.py:tuned_kernel.fn.fn", "targets": ["cuda:90"], "axes": axes}
    changed = {**kept, "axes": {"x_ptr": ["*fp32"]}}
    gone = {**kept, "kernel": f"{pytester.path}/acme_gone.py:forgotten_kernel"}
    spec = pytester.path / "kernels.yaml"
    spec.write_text(yaml.safe_dump({"recorded": True, "kernels": [kept, changed, gone]}))
    assert [variant.kernel for variant in variants(read_spaces(spec))] == [kept["kernel"]]


@pytest.mark.parametrize(
    "fails", ["import pytest; pytest.skip('not here', allow_module_level=True)", "1 / 0", "import no_such_module"]
)
def test_a_kernel_whose_module_cannot_be_imported_is_left_out(pytester: pytest.Pytester, fails: str) -> None:
    """The tests that are in it say why, when they are collected."""
    pytester.makepyfile(acme_fails=f"{fails}\n")
    spec = pytester.path / "kernels.yaml"
    entry = {"kernel": f"{pytester.path}/acme_fails.py:a_kernel", "targets": ["cuda:90"], "axes": {"x_ptr": ["*fp32"]}}
    spec.write_text(yaml.safe_dump({"recorded": True, "kernels": [entry]}))
    assert read_spaces(spec) == []


def test_what_cannot_be_named_or_written_is_said(tmp_path: Path) -> None:
    import torch
    import triton
    import triton.language as tl

    from kernbench.triton_engine import activate, deactivate

    @triton.jit
    def local_kernel(x_ptr, BLOCK: tl.constexpr):
        tl.store(x_ptr + tl.arange(0, BLOCK), 1.0)

    activate()
    try:
        with record(tmp_path / "kernels.yaml") as found:
            local_kernel[(1,)](torch.zeros(16), BLOCK=16)
    finally:
        deactivate()
    assert list(found.unnamed) == ["local_kernel"]
    assert "is not a global name of an importable module" in found.unnamed["local_kernel"]
    assert variants(read_spaces(tmp_path / "kernels.yaml")) == []
    assert precompile(tmp_path / "kernels.yaml").outcomes == ()


def test_a_record_adds_to_what_it_has_read(tmp_path: Path) -> None:
    first, second = Record(), Record()
    first.entries = {"a": {"kernel": "m:a"}}
    second.entries = {"b": {"kernel": "m:b"}}
    first.write(tmp_path / "one.yaml")
    second.read(tmp_path / "one.yaml")
    assert [entry["kernel"] for entry in second.entries.values()] == ["m:b", "m:a"]
