"""Products run at the boost clock while they are few, and at the sustained one when one follows the other."""

from __future__ import annotations

import pytest

import kernbench
from kernbench.cost.gemm import kernels_of
from kernbench.sim_engine.clocks import MEMORY, Clocks
from kernbench.sim_engine.operation import Operation
from kernbench.topology import resolve_topology


def clocks(slowdown: float = 0.25) -> Clocks:
    made = Clocks()
    made.slowdown = slowdown
    return made


def test_a_product_that_comes_alone_is_not_slowed() -> None:
    assert clocks().slowed(0, 1.0, 1e-3) == 1e-3
    assert clocks(0.0).slowed(0, 1.0, 10.0) == 10.0


def test_one_after_the_other_they_come_to_the_sustained_clock() -> None:
    made, moment, found = clocks(), 0.0, []
    for _ in range(200):
        found.append(made.slowed(0, moment, 2e-3))
        moment += found[-1]
    assert found[:5] == [2e-3] * 5
    assert found == sorted(found)
    assert found[-1] == pytest.approx(2e-3 * 1.25)
    assert made.slowed(1, moment, 2e-3) == 2e-3  # another device


@pytest.mark.parametrize(("between", "took"), [((0.2, 0.5), 1.25e-3), ((0.7, 0.9), 1e-3), ((0.388, 0.788), 1.125e-3)])
def test_a_device_that_multiplies_half_of_the_time_does_as_its_generation_says(
    between: tuple[float, float], took: float
) -> None:
    """It multiplies for 0.588 of the time."""
    made, moment = clocks(), 0.0
    made.between = between
    for _ in range(400):
        found = made.slowed(0, moment, 1e-3)
        moment += 1.7 * found
    assert found == pytest.approx(took, rel=0.01)


def test_after_a_pause_it_is_fast_again() -> None:
    made = clocks()
    assert made.slowed(0, 0.0, 1.0) == 1.0
    assert made.slowed(0, 1.0, 1e-3) == pytest.approx(1.25e-3)
    assert made.slowed(0, 1.01 + 5 * MEMORY, 1e-3) == 1e-3
    made.slowed(0, 2.0, 1.0)
    made.clear()
    assert made.slowed(0, 3.0, 1e-3) == 1e-3


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
                moment += made.slowed(0, moment, 2e-3) + 2e-3 * (1 / share - 1)
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


def test_a_long_training_step_is_slowed_by_its_generations_figure() -> None:
    slowdown = kernels_of(resolve_topology("dgx_h100").topology_obj.device).sustained
    took: list[float] = []

    def body(rank: int) -> None:
        import torch

        a = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)
        for _ in range(400):
            a @ a

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
        took = [op.end - op.start for op in ctx.engine.op_log.operations if op.kind == "gemm"]  # type: ignore[operator]
    assert slowdown > 0.1
    assert took[-1] / took[0] == pytest.approx(1 + slowdown)
