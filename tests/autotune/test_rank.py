"""Ranking configs for a device, and autotuners that start from the ranking."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

triton = pytest.importorskip("triton")

from kernbench.autotune import OccupancyRoofline, prune_from, seeded  # noqa: E402
from kernbench.autotune.rank import Ranked  # noqa: E402
from kernbench.autotune.seeds import entry, read_seeds, write_seeds  # noqa: E402
from kernbench.cli import app  # noqa: E402
from kernbench.cost.devices import resolve_device  # noqa: E402
from kernbench.cost.gemm import gemm_time  # noqa: E402
from kernbench.cost.kernel_time import occupancy  # noqa: E402
from kernbench.errors import ConfigError  # noqa: E402
from kernbench.triton_engine.counts import Counts  # noqa: E402
from kernbench.triton_engine.driver.resources import Resources  # noqa: E402

H100 = resolve_device("h100_sxm")
GEMM = Path(__file__).with_name("gemm.py")

SPEC = f"""\
kernels:
- kernel: {GEMM}:gemm
  axes: {{M: [16, 4096], N: [4096], K: [4096], dtype: [fp16]}}
  arguments: {{a_ptr: "dtype[M, K]", b_ptr: "dtype[K, N]", c_ptr: "dtype[M, N]", M: M, N: N, K: K}}
  grid: ["cdiv(M, BM)", "cdiv(N, BN)"]
"""


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that ``kernbench tune`` writes for the GEMM."""
    directory = tmp_path_factory.mktemp("tune")
    (directory / "spec.yaml").write_text(SPEC)
    output = directory / "tuned.json"
    CliRunner().invoke(app, ["tune", str(directory / "spec.yaml"), "-o", str(output)], catch_exceptions=False)
    return output


def best(seeds: Path, m: int) -> dict[str, Any]:
    found = next(each for each in read_seeds(seeds) if each["key"]["M"] == m)
    return found["configs"][0]


def test_large_products_want_large_tiles_and_a_few_rows_do_not(seeds: Path) -> None:
    assert best(seeds, 4096)["config"]["BM"] == 128
    assert best(seeds, 16)["config"]["BM"] < 128


def test_the_best_config_is_near_the_librarys_time(seeds: Path) -> None:
    library = gemm_time("h100_sxm", 4096, 4096, 4096).seconds
    assert 0.5 * library < best(seeds, 4096)["seconds"] < 2 * library


def test_a_config_that_cannot_run_is_not_in_the_file(seeds: Path) -> None:
    configs = [row["config"] for each in read_seeds(seeds) for row in each["configs"]]
    assert len(configs) == 2 * 4
    assert all(config["BM"] < 256 for config in configs)


@pytest.mark.parametrize(
    ("resources", "resident", "reason"),
    [
        (Resources(32, 0, 0, 4, 3), 16, "registers"),  # 65536 registers / (32 * 128)
        (Resources(128, 0, 0, 8, 3), 2, "registers"),
        (Resources(40, 0, 100 * 1024, 4, 3), 2, "shared memory"),  # 228 KiB / 101 KiB
        (Resources(16, 0, 0, 1, 3), 32, "blocks"),
        (Resources(20, 0, 0, 16, 3), 4, "threads"),
        (Resources(40, 0, 228 * 1024, 4, 3), 0, "needs 233,472 bytes"),
    ],
)
def test_occupancy(resources: Resources, resident: int, reason: str) -> None:
    found = occupancy(resources, H100)
    assert found[0] == resident
    assert found[1].startswith(reason)


def test_the_models_limits() -> None:
    model, lean = OccupancyRoofline(), Resources(32, 0, 0, 8, 3)
    copy = Counts(1 << 30, 1 << 30, 1 << 30, 1 << 30, programs=1 << 14)
    found = model.predict(copy, lean, H100)
    assert found.limit == "memory"
    assert found.seconds == pytest.approx((2 << 30) / H100.hbm_copy_bandwidth, rel=0.01)
    chain = Counts(trips={"k.py:1": 10_000}, programs=1)
    assert model.predict(chain, lean, H100).limit == "latency"
    deeper = model.predict(chain, replace(lean, num_stages=5), H100)
    assert deeper.seconds < model.predict(chain, lean, H100).seconds
    dense = Counts(flops={("f16", "tensor"): 10**13}, programs=132 * 8)
    assert model.predict(dense, lean, H100).limit == "compute"
    spilling = model.predict(chain, replace(lean, spills=4096), H100)
    assert spilling.seconds > model.predict(chain, lean, H100).seconds
    assert model.predict(dense, replace(lean, shared=1 << 20), H100).seconds == inf


def configs() -> list[Any]:
    return [triton.Config({"BLOCK": size}, num_warps=warps) for size in (64, 128, 256) for warps in (4, 8)]


class Tensor:
    dtype = "torch.float16"


@pytest.fixture
def ranked_file(tmp_path: Path) -> Path:
    """For n = 1024, 256 wide is best; for n = 64, 64 wide."""

    def ranking(*sizes: int) -> list[Ranked]:
        return [
            Ranked({"BLOCK": size, "num_warps": 4, "num_stages": 3, "num_ctas": 1}, at * 1e-6, "memory")
            for at, size in enumerate(sizes, start=1)
        ]

    path = tmp_path / "seeds.json"
    entries = [
        entry(ranking, {"x": Tensor(), "n": n}, ["n"], ranking(*sizes))
        for n, sizes in ((1024, (256, 128, 64)), (64, (64, 128)))
    ]
    write_seeds(path, "h100_sxm", [{**each, "kernel": f"{__name__}.softmax"} for each in entries])
    return path


@pytest.mark.parametrize(("n", "sizes"), [(1024, [256, 128]), (64, [64, 128]), (700, [256, 128]), (100, [64, 128])])
def test_the_nearest_key_decides(ranked_file: Path, n: int, sizes: list[int]) -> None:
    prune = prune_from(ranked_file, f"{__name__}.softmax", keep=2)
    assert [config.kwargs["BLOCK"] for config in prune(configs(), {"x": Tensor(), "n": n})] == sizes


def test_what_the_file_does_not_know_is_tuned_as_always(ranked_file: Path) -> None:
    every = configs()
    prune = prune_from(ranked_file, f"{__name__}.softmax")
    other = type("Other", (), {"dtype": "torch.float32"})()
    assert prune(every, {"x": other, "n": 1024}) == every
    assert prune_from(ranked_file, "pkg.other")(every, {"x": Tensor(), "n": 1024}) == every


def test_a_seeded_autotuner_measures_only_the_best(ranked_file: Path, tmp_path: Path) -> None:
    def softmax(x: Any, n: int, BLOCK: int) -> None: ...

    class Tuner:
        fn, base_fn, early_config_prune = softmax, softmax, None

    softmax.__qualname__ = "softmax"
    tuner = seeded(ranked_file)(Tuner())
    assert tuner.early_config_prune is not None
    (only,) = tuner.early_config_prune(configs(), {"x": Tensor(), "n": 1024})
    assert only.kwargs == {"BLOCK": 256}
    assert seeded(tmp_path / "none.json")(Tuner()).early_config_prune is None


def test_a_seeded_triton_autotuner_takes_it(seeds: Path) -> None:
    """Triton itself asks for the pruned configs, and has one left."""
    import torch

    from kernbench.triton_engine import activate, deactivate
    from tests.autotune import gemm

    tuner = triton.autotune(gemm.CONFIGS, key=["M", "N", "K"])(gemm.gemm.fn)
    prune, left = prune_from(seeds, "gemm.gemm"), []

    def pruned(*arguments: Any, **named: Any) -> Any:
        left.append(prune(*arguments, **named))
        return left[-1]

    tuner.early_config_prune = pruned
    a, b = (torch.randint(-2, 3, (128, 128)).half() for _ in range(2))
    c = torch.empty(128, 128, dtype=torch.float16)
    activate()
    try:
        tuner[lambda meta: (triton.cdiv(128, meta["BM"]), triton.cdiv(128, meta["BN"]))](a, b, c, 128, 128, 128)
    finally:
        deactivate()
    assert [len(configs) for configs in left] == [1]
    assert list(tuner.cache.values()) == left[0]
    assert len(getattr(tuner, "configs_timings", left[0])) == 1  # newer releases do not measure the only one
    torch.testing.assert_close(c, (a.float() @ b.float()).half())


def test_wrong_files_are_explained(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("{}")
    with pytest.raises(ConfigError, match="format 1"):
        read_seeds(path)
    path.write_text(SPEC.replace("M: M", "M: rows"))
    result = CliRunner().invoke(app, ["tune", str(path)])
    assert isinstance(result.exception, ConfigError)
    assert "gemm: M 'rows': there is no 'rows'; it may use" in str(result.exception)
