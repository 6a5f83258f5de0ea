"""What Inductor chooses from with ``max_autotune`` takes its modelled time, operators of torch as well as kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import kernbench


def _milliseconds(with_data: bool) -> tuple[dict[str, float], float]:
    """What the choices for a product of 16 x 4096 x 16 take by name, and the product itself without a compiler."""
    from torch._inductor.select_algorithm import add_feedback_saver, clear_feedback_savers

    choices: dict[str, float] = {}
    product: list[float] = []

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        a, b = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((16, 4096), (4096, 16)))
        add_feedback_saver(lambda timings, *rest: choices.update((each.name, ms) for each, ms in timings.items()))
        options = {"max_autotune": True, "fx_graph_cache": False, "autotune_local_cache": False}
        try:
            torch.compile(torch.mm, options={**options, "max_autotune_gemm_backends": "ATEN,TRITON"})(a, b)
        finally:
            clear_feedback_savers()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.mm(a, b)
        end.record()
        end.synchronize()
        product.append(begin.elapsed_time(end))

    with kernbench.simulate("dgx_h100", world_size=1, enable_data=with_data) as ctx:
        ctx.multiprocessing.spawn(worker)
    return choices, product[0]


@pytest.fixture
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


@pytest.mark.usefixtures("_own_cache")
def test_operators_among_the_choices_take_their_modelled_time() -> None:
    """Also where the CPU has no kernel for one: the parts of a sum that is split have 32 bits (``bmm(out_dtype=)``)."""
    choices, product = _milliseconds(with_data=True)
    assert 0.5 * product < choices["mm"] < 2 * product
    split = [ms for name, ms in choices.items() if name.startswith("decompose_k")]
    assert split
    assert all(choices["mm"] < ms < 10 * product for ms in split)  # two kernels each
    without, same = _milliseconds(with_data=False)  # and choices of other names: Inductor counts them
    assert ([*without.values()], same) == ([*choices.values()], product)
