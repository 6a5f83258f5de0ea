"""Precompilation: a cold run compiles everything, a second run and the program itself compile nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernbench.cli import app
from kernbench.errors import ConfigError, KernbenchError
from kernbench.precompile import Report, Space, precompile, read_spaces, variants
from kernbench.precompile.target import gpu_target, normalise

pytest.importorskip("triton")

HERE = Path(__file__).parent
KERNELS = HERE / "push_pull.py"
REDUCE_POINTS = 3 * 2  # (fp16, 2), (fp16, 4), (fp32, 2), each pushed and pulled


@pytest.fixture(scope="module", autouse=True)
def users_environment() -> Iterator[None]:
    """Without what an active driver, left by a context that was not closed, adds: it enters Triton's cache keys."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_DEFAULT_FP_FUSION", raising=False)
        yield


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def cold(cache: Path) -> Report:
    return precompile(KERNELS, jobs=2, cache_dir=cache)


def entries(report: Report) -> list[str]:
    return [entry for outcome in report.outcomes for entry, _ in outcome.entries]


def test_a_cold_run_compiles_every_variant_into_an_entry_of_its_own(cold: Report, cache: Path) -> None:
    assert (cold.compiled, cold.hits, cold.failed) == (REDUCE_POINTS + 2, 0, ())
    assert max(Counter(entries(cold)).values()) == 1
    assert len(list(cache.glob("*/*.cubin"))) == REDUCE_POINTS + 2


def test_names_and_entries_differ_in_the_build_flag_alone(cold: Report) -> None:
    by_name = {outcome.name: outcome.entries[0][0] for outcome in cold.outcomes}
    pushed = [name for name in by_name if "PUSH=True" in name]
    assert len(pushed) == REDUCE_POINTS // 2
    for name in pushed:
        assert by_name[name] != by_name[name.replace("PUSH=True", "PUSH=False")]
    assert by_name["push_pull:push_copy[]@cuda:90"] != by_name["push_pull:pull_copy[]@cuda:90"]


def test_a_second_run_compiles_nothing(cold: Report, cache: Path) -> None:
    warm = precompile(KERNELS, jobs=2, cache_dir=cache)
    assert (warm.compiled, warm.hits) == (0, len(cold.outcomes))
    assert entries(warm) == entries(cold)


def run_program(cache: Path, *args: str) -> list[int]:
    """Kernels compiled, kernels found, and launches that reached the driver of the test."""
    root = HERE.parent.parent
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(root)}
    environment.pop("TRITON_DEFAULT_FP_FUSION", None)
    output = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "program.py"), *args],
        env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    return [int(number) for number in output.split()]


def test_the_program_compiles_nothing(cold: Report, cache: Path) -> None:
    launched = len(cold.outcomes)
    assert run_program(cache, "cuda:90") == [0, launched, launched]


@pytest.mark.long  # compiles much
def test_the_program_compiles_nothing_on_kernbenchs_engine(tmp_path: Path) -> None:
    report = precompile(KERNELS, jobs=1, cache_dir=tmp_path, values=True, targets=["sm_90"]).raise_if_failed()
    assert run_program(tmp_path) == [0, len(report.outcomes), 0]


@pytest.mark.long  # compiles much
def test_every_target(tmp_path: Path) -> None:
    targets = ("sm_80", "sm_90", "sm_100", "gfx942")
    one = Space(f"{KERNELS}:push_copy", arguments={"x_ptr": "*fp32", "out_ptr": "*fp32", "BLOCK": 64})
    report = precompile(one, jobs=2, targets=targets, cache_dir=tmp_path).raise_if_failed()
    assert report.compiled == len(targets)
    assert len(list(tmp_path.glob("*/*.cubin"))) == 3
    assert len(list(tmp_path.glob("*/*.hsaco"))) == 1


def test_failures_are_named_and_the_others_compile(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        f"kernels:\n"
        f"- kernel: {KERNELS}:wrong_kernel\n  axes: {{BLOCK: [64, 65]}}\n  arguments: {{x_ptr: '*fp32'}}\n"
        f"- kernel: {KERNELS}:modes_kernel\n  axes: {{MODE: [1, '1']}}\n  arguments: {{x_ptr: '*fp32'}}\n"
        f"- kernel: {KERNELS}:scale_kernel\n  arguments: {{x_ptr: '*bf16', n: i32}}\n"
    )
    result = CliRunner().invoke(app, ["precompile", str(spec), "-j", "1", "--cache-dir", str(tmp_path / "cache")])
    assert result.exit_code == 1
    failed = [line for line in result.stderr.splitlines() if line.startswith("FAILED")]
    assert "push_pull:wrong_kernel[BLOCK=65]@cuda:90" in failed[0]
    assert "power of 2" in failed[0]
    shared = [line for line in failed if "shares the cache entry" in line]
    assert len(shared) == len(failed) - 1  # Triton 3.6 tells 1 from "1", later ones do not
    assert all("modes_kernel" in line for line in shared)
    assert "BLOCK=64,num_warps=2" in CliRunner().invoke(app, ["precompile", str(spec), "--list"]).output


def test_a_crash_of_the_compiler_is_the_variants_own(tmp_path: Path) -> None:
    kernels = tmp_path / "crashing.py"
    kernels.write_text(
        "import os\nimport triton\nimport triton.language as tl\nimport kernbench\n"
        "@kernbench.precompile.space(axes={'CRASH': [False, True]}, arguments={'x_ptr': '*fp32'})\n"
        "@triton.jit\ndef kernel(x_ptr, CRASH: tl.constexpr):\n    tl.store(x_ptr, 0.0)\n"
        "kernel.add_pre_run_hook(lambda *args, CRASH, **options: os._exit(11) if CRASH else None)\n"
    )
    report = precompile(kernels, jobs=1, cache_dir=tmp_path / "cache")
    assert [outcome.status for outcome in report.outcomes] == ["compiled", "failed"]
    with pytest.raises(KernbenchError, match=r"1 of 2 .*\n.*kernel\[CRASH=True\]@cuda:90: the compiler crashed"):
        report.raise_if_failed()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("kernel: '{k}:none'", "has no 'none'"),
        ("kernel: '{k}:scale_kernel'", "no value for x_ptr, n"),
        ("kernel: '{k}:wrong_kernel'\n  arguments: {{x_ptr: '*fp17', BLOCK: 64}}", "no element type 'fp17'"),
        ("kernel: '{k}:wrong_kernel'\n  arguments: {{y: 1}}", "no parameter y; it has x_ptr, BLOCK"),
        ("kernel: '{k}:wrong_kernel'\n  axes: {{BLOK: [1]}}\n  arguments: {{x_ptr: '*fp32', BLOCK: 64}}", "axis BLOK"),
        ("kernel: '{k}:wrong_kernel'\n  arguments: {{x_ptr: '*{{dt}}', BLOCK: 64}}", "arguments speak of dt"),
        ("kernel: '{k}:wrong_kernel'\n  axes: {{BLOCK: []}}", "axis 'BLOCK' has no values"),
        ("kernel: '{k}:wrong_kernel'\n  where: [BLOCK]\n  arguments: {{x_ptr: '*fp32', BLOCK: 64}}", "there is no 'BLOCK'"),
        ("kernle: x", r"spec.yaml:2: kernels.0.kernle: unknown key; .*did you mean `kernel`"),
    ],
)  # fmt: skip
def test_wrong_specs_are_explained(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("kernels:\n- " + text.format(k=KERNELS) + "\n")
    with pytest.raises(ConfigError, match=complaint):
        variants(read_spaces(path))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("sm_90", ("cuda", 90, 32)), ("cuda:80", ("cuda", 80, 32)), ("100", ("cuda", 100, 32)), ("gfx942", ("hip", "gfx942", 64))],
)  # fmt: skip
def test_targets(text: str, expected: tuple[str, int | str, int]) -> None:
    target = gpu_target(text)
    assert (target.backend, target.arch, target.warp_size) == expected


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(ConfigError, match="sm_80, sm_90"):
        normalise("h100")
