"""Products run at the boost clock while they are few, and at the sustained one when one follows the other."""

from __future__ import annotations

import pytest

import kernbench
from kernbench.cost.devices import resolve_device
from kernbench.cost.generations import generation_of
from kernbench.sim_engine.clock_limits import SustainedProducts
from kernbench.sim_engine.clocks import MEMORY, Clocks
from kernbench.sim_engine.log_rows import Title
from kernbench.sim_engine.operation import Operation
from kernbench.simulation.time.power import clock_limit
from kernbench.topology import resolve_topology

PLACE = 0, "compute"
PRODUCT = Title("mm", "gemm", 0, (0.0, 0.0))


def clocks(between: tuple[float, float] = (0.5, 0.9)) -> Clocks:
    made = Clocks()
    made.limit = SustainedProducts(0.25, between)
    return made


def test_a_product_that_comes_alone_is_not_slowed() -> None:
    assert clocks().slowed(PLACE, PRODUCT, 1.0, 1e-3) == 1e-3
    assert Clocks().slowed(PLACE, PRODUCT, 1.0, 10.0) == 10.0


def test_one_after_the_other_they_come_to_the_sustained_clock() -> None:
    made, moment, found = clocks(), 0.0, []
    for _ in range(200):
        found.append(made.slowed(PLACE, PRODUCT, moment, 2e-3))
        moment += found[-1]
    assert found[:5] == [2e-3] * 5
    assert found == sorted(found)
    assert found[-1] == pytest.approx(2e-3 * 1.25)
    assert made.slowed((1, "compute"), PRODUCT, moment, 2e-3) == 2e-3  # another device


@pytest.mark.parametrize(("between", "took"), [((0.2, 0.5), 1.25e-3), ((0.7, 0.9), 1e-3), ((0.388, 0.788), 1.125e-3)])
def test_a_device_that_multiplies_half_of_the_time_does_as_its_generation_says(
    between: tuple[float, float], took: float
) -> None:
    """It multiplies for 0.588 of the time."""
    made, moment = clocks(between), 0.0
    for _ in range(400):
        found = made.slowed(PLACE, PRODUCT, moment, 1e-3)
        moment += 1.7 * found
    assert found == pytest.approx(took, rel=0.01)


def test_attention_between_them_lets_no_clock_recover() -> None:
    """It multiplies, too, and keeps its own time; additions, which do not, give products the boost clock back."""

    def last_of_a_layer(kind: str) -> float:
        made, moment = clocks((0.3, 0.5)), 0.0
        for _ in range(200):
            took = made.slowed(PLACE, PRODUCT, moment, 1e-3)
            moment += took
            beside = made.slowed(PLACE, Title("beside", kind, 0, (0.0, 0.0)), moment, 4e-3)
            assert beside == 4e-3
            moment += beside
        return took

    assert last_of_a_layer("attention") == pytest.approx(1.25e-3)
    assert last_of_a_layer("math") == 1e-3


def test_after_a_pause_it_is_fast_again() -> None:
    made = clocks()
    assert made.slowed(PLACE, PRODUCT, 0.0, 1.0) == 1.0
    assert made.slowed(PLACE, PRODUCT, 1.0, 1e-3) == pytest.approx(1.25e-3)
    assert made.slowed(PLACE, PRODUCT, 1.01 + 5 * MEMORY, 1e-3) == 1e-3
    made.slowed(PLACE, PRODUCT, 2.0, 1.0)
    made.clear()
    assert made.slowed(PLACE, PRODUCT, 3.0, 1e-3) == 1e-3


def ended(end: float) -> Operation:
    op = Operation("step", "math", 0, 0, "compute", 0.0, 0.0)
    op.end = end
    return op


@pytest.mark.parametrize("share", [0.3, 0.42, 0.9])
def test_after_one_step_a_device_is_as_busy_as_after_many(share: float) -> None:
    """Steps of ten products, which multiply for a share of the time: as they go on, and with clocks that settle."""

    def steps(count: int, *, settle: bool) -> list[float]:
        made, moment, found = clocks(), 0.0, []
        for _ in range(count):
            begin = moment
            for _ in range(10):
                moment += made.slowed(PLACE, PRODUCT, moment, 2e-3) + 2e-3 * (1 / share - 1)
            found.append(moment - begin)
            if settle:
                made.end_step(0, ended(moment))
        return found

    assert steps(4, settle=True)[2:] == pytest.approx(steps(60, settle=False)[-2:], rel=2e-3)


def test_products_that_wait_for_memory_keep_their_time() -> None:
    """A matrix by a vector, again and again: its bytes come as fast after a second as before."""

    def body(rank: int) -> None:
        import torch

        a, x = (torch.empty(shape, device="cuda", dtype=torch.bfloat16) for shape in ((16384, 16384), (16384, 1)))
        for _ in range(500):
            a @ x

    with kernbench.simulate("dgx_b200", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
        took = [op.end - op.start for op in ctx.engine.op_log.operations if op.kind == "gemm"]  # type: ignore[operator]
    assert sum(took) > 0.5 * MEMORY  # when products that multiply would have become slower
    assert took[-1] == pytest.approx(took[0])
    assert 2 * 16384**2 / took[-1] < resolve_topology("dgx_b200").topology_obj.device.hbm.bandwidth


# -- where what kernels draw was measured: H200, 700 W, torch 2.11 (ADR 0245) --------------------------------------------------

COPIED, GELU = 4.2e12, 3.1e12
"""Bytes/s of a copy, and of gelu."""

MEASURED = {
    "products": (("gemm", 10, 1.388, 1.641),),
    "flash": (("flash", 8, 3.257, 3.381),),
    "cudnn": (("cudnn", 8, 1.740, 2.014),),
    "copies": (("copy", 30, 0.255, 0.255),),
    "products, 85 % of the time, and copies": (("gemm", 9, 1.393, 1.600), ("copy", 10, 0.255, 0.257)),
    "65 %": (("gemm", 6, 1.390, 1.554), ("copy", 20, 0.255, 0.256)),
    "36 %": (("gemm", 3, 1.390, 1.445), ("copy", 30, 0.255, 0.255)),
    "products and cudnn": (("gemm", 6, 1.390, 1.574), ("cudnn", 4, 1.720, 2.147)),
    "products and pauses": (("gemm", 6, 1.393, 1.393), ("pause", 12, 0.510, 0.510)),
    "products and gelu": (("gemm", 6, 1.393, 1.531), ("gelu", 30, 0.172, 0.203)),
    "flash and copies": (("flash", 2, 3.270, 3.280), ("copy", 20, 0.255, 0.255)),
}
"""Runs of kernels that take turns: of each how many, milliseconds each at first, and after a second."""


@pytest.mark.parametrize("what", MEASURED)
def test_kernels_that_take_turns_lose_what_an_h200_lost(what: str) -> None:
    device = resolve_device("h200")
    watts = generation_of(device).draw.attention  # type: ignore[union-attr]
    made, moment = Clocks(), 0.0
    made.limit = clock_limit(device)
    for _ in range(60):
        took = []
        for kind, times, first, _ in MEASURED[what]:
            seconds, begin = first * 1e-3, moment
            rate = {"copy": COPIED, "gelu": GELU}.get(kind, 1e11)
            name = "attention" if kind in watts else "gemm" if kind == "gemm" else "math"
            title = Title(kind, name, round(rate * seconds), (0.0, 0.0), watts.get(kind, 0.0))
            for _ in range(times):
                moment += seconds if kind == "pause" else made.slowed(PLACE, title, moment, seconds)
            took.append((moment - begin) / times * 1e3)
    late = [row[3] for row in MEASURED[what]]
    assert took == pytest.approx(late, rel=0.09 if "gelu" in what else 0.04)


def test_a_board_with_less_power_loses_more_and_with_more_nothing() -> None:
    def after_a_second(watts: float) -> float:
        made, moment, took = Clocks(), 0.0, 0.0
        made.limit = clock_limit(resolve_device("h100_sxm").model_copy(update={"power": watts}))
        for _ in range(1000):
            took = made.slowed(PLACE, PRODUCT, moment, 1e-3)
            moment += took
        return took / 1e-3

    assert after_a_second(1000) == 1
    assert 1.1 < after_a_second(700) < after_a_second(500) < 1.6


def test_products_in_a_program_slow_down_and_copies_do_not() -> None:
    took: dict[str, list[float]] = {}

    def body(rank: int) -> None:
        import torch

        a = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)
        for _ in range(400):
            a @ a
            a.clone()

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
        for op in ctx.engine.op_log.operations:
            took.setdefault(op.name.partition(".")[0], []).append(op.end - op.start)  # type: ignore[operator]
    assert took["mm"][-1] / took["mm"][0] == pytest.approx(1.14, abs=0.04)
    assert took["clone"][-1] == pytest.approx(took["clone"][0], rel=0.02)
