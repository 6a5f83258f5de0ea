"""Without data: what is known, what is assumed, and what the host receives of each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import kernbench
from kernbench.torch_backend.gpu.tensors.placement import block_of
from kernbench.torch_backend.hollow.assumed_numbers import AssumedFloat, AssumedInt

LARGE = 4096
"""Elements of four bytes: more than are computed."""


def run(body: Callable[[], Any], *, data: bool = False, unknown: str = "assume") -> tuple[Any, list[str]]:
    """What ``body`` gives on a rank, and what was said to be assumed."""
    found: list[Any] = []
    with kernbench.simulate("dgx_h100", enable_data=data, unknown=unknown) as ctx:

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            found.append(body())

        ctx.multiprocessing.spawn(worker, nprocs=1)
        return found[0], [str(each) for each in ctx.simulation.assumptions.made]


def large() -> torch.Tensor:
    return torch.randn(LARGE, device="cuda").exp()


def numbers() -> torch.Tensor:
    return torch.randint(0, 8, (LARGE,), device="cuda")


LOOKS: dict[str, tuple[Callable[[], Any], Any]] = {
    "item": (lambda: large().sum().item(), 1.0),
    "item of a whole number": (lambda: numbers()[0].item(), 4),
    "float": (lambda: float(large().sum()), 1.0),
    "int": (lambda: int(numbers()[0]), 4),
    "bool": (lambda: bool(large().max() > 0), True),
    "if": (lambda: "yes" if large().max() > 0 else "no", "yes"),
    "tolist": (lambda: large()[:2].tolist(), [1.0, 1.0]),
    "numpy": (lambda: large().cpu().numpy().tolist(), [1.0] * LARGE),
    "format": (lambda: f"{large().sum().item():.2f}", "1.00?"),
    "print": (lambda: str(large()), f"tensor(?, size=({LARGE},), device='cuda:0')"),
    "print of a small one": (lambda: str(large().mean()), "tensor(1., device='cuda:0', assumed)"),
    "repr": (lambda: repr(large().sum().item()), "1.0?"),
}


@pytest.mark.parametrize("name", LOOKS)
def test_a_look_is_answered_and_noted_with_its_line(name):
    body, expected = LOOKS[name]
    found, notes = run(body)
    assert found == expected
    line = body.__code__.co_firstlineno
    assert len(notes) == 1, notes
    assert f"{os.path.relpath(__file__)}:{line} was given" in notes[0]


@pytest.mark.parametrize("name", LOOKS)
def test_unknown_error_stops_at_the_look(name):
    body, _ = LOOKS[name]
    with pytest.raises(
        kernbench.SpawnException, match=rf"test_known_and_unknown.py:{body.__code__.co_firstlineno}: .*not computed"
    ):
        run(body, unknown="error")


def test_a_line_is_noted_once_with_how_often():
    def body() -> None:
        x = large()
        for _ in range(3):
            x.sum().item()

    _, notes = run(body)
    assert len(notes) == 1
    assert "3 times" in notes[0]


SIZES: dict[str, tuple[Callable[[], Any], Any]] = {
    "nonzero": (lambda: (numbers() == 3).nonzero().shape, None),
    "half a mask": (lambda: large()[torch.ones(LARGE, device="cuda").logical_not()].shape, (0,)),
    "masked_select": (lambda: large().masked_select(torch.ones(LARGE, device="cuda", dtype=torch.bool)).shape, (LARGE,)),
    "where": (lambda: torch.where(torch.ones(LARGE, device="cuda", dtype=torch.bool))[0].shape, (LARGE,)),
    "unique": (lambda: numbers().unique().shape, (LARGE,)),
    "bincount": (lambda: torch.bincount(numbers(), minlength=8).tolist(), [LARGE // 8] * 8),
    "histc": (lambda: torch.histc(numbers().float(), 8, 0, 8).tolist(), [LARGE / 8] * 8),
    "repeat_interleave": (lambda: numbers().repeat_interleave(torch.full((LARGE,), 2, device="cuda")).shape, (2 * LARGE,)),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_depend_on_values_are_assumed(name):
    body, expected = SIZES[name]
    found, _ = run(body)
    assert expected is None or list(found) == list(expected)


CHOSEN: dict[str, Callable[[], torch.Tensor]] = {
    "nonzero": lambda: (numbers() == 3).nonzero(),
    "mask": lambda: large()[large() > 2],
    "mask of a few": lambda: large()[:8][large()[:8] > 2],
    "masked_select": lambda: large().masked_select(large() > 2),
    "unique": lambda: numbers().unique(),
    "repeat_interleave": lambda: numbers().repeat_interleave(numbers()),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_a_size_that_depends_on_unknown_values_is_noted_with_its_line(name: str) -> None:
    body = CHOSEN[name]
    size, notes = run(lambda: body().shape)
    assert [
        f"{os.path.basename(__file__)}:{body.__code__.co_firstlineno} was given {size}" in note for note in notes
    ] == [True]
    with pytest.raises(kernbench.SpawnException, match="not computed"):
        run(body, unknown="error")


SURE: dict[str, Callable[[], torch.Tensor]] = {
    "known mask": lambda: large()[:64][torch.arange(64, device="cuda") % 3 == 0],
    "places": lambda: large()[numbers()],
    "repeats of known sum": lambda: numbers().repeat_interleave(numbers(), output_size=9),
    "counts of known length": lambda: torch.bincount(numbers(), minlength=8),
}


@pytest.mark.parametrize("name", SURE)
def test_a_size_that_is_known_is_not(name: str) -> None:
    assert run(lambda: SURE[name]().shape, unknown="error")[1] == []


def test_marked_numbers_stay_marked_in_arithmetic_of_floats():
    def body() -> list[str]:
        x = large().sum().item()
        return [repr(x * 2), repr(1 - x), f"{x / 3:.1f}", repr(round(x, 2)), repr(abs(-x)), repr(sum([x, x]))]

    assert run(body)[0] == ["2.0?", "0.0?", "0.3?", "1.0?", "1.0?", "2.0?"]


def test_what_is_small_and_known_is_computed_and_not_marked():
    def body() -> list[Any]:
        x = torch.arange(16, device="cuda", dtype=torch.float32)
        return [x.sum().item(), x.tolist(), str(x[:2] * 2), bool(x.max() > 3), x.cpu().numpy().sum()]

    found, notes = run(body)
    assert found == [120.0, list(map(float, range(16))), "tensor([0., 2.], device='cuda:0')", True, np.float32(120)]
    assert not isinstance(found[0], AssumedFloat | AssumedInt)
    assert notes == []


def test_an_unknown_part_makes_a_small_tensor_unknown_and_a_known_whole_known_again():
    def body() -> list[Any]:
        x, y = large(), torch.zeros(8, device="cuda")
        y[:2] = x[:2]
        part, text = y.tolist(), str(y)
        y.fill_(3)
        whole = y.tolist()
        y.copy_(x[:8])
        copied = y.tolist()
        y[:4] = 0
        still = str(y)
        return [part, text, whole, copied, still, y.zero_().tolist()]

    part, text, whole, copied, still, zeros = run(body)[0]
    assert part == [1.0] * 2 + [0.0] * 6
    assert all(isinstance(each, AssumedFloat) for each in part)
    assert text.endswith("assumed)")
    assert whole == [3.0] * 8
    assert not any(isinstance(each, AssumedFloat) for each in (*whole, *zeros))
    assert copied == [1.0] * 8
    assert isinstance(copied[0], AssumedFloat)
    assert still.endswith("assumed)"), "half of it is still assumed"


def test_unknown_values_written_to_the_host_are_unknown_there():
    def body() -> list[Any]:
        x, host = large(), torch.full((4,), 7.0)
        host.copy_(x[:4])
        out = torch.zeros(4, device="cuda")
        torch.add(x[:4], 1, out=out)
        return [host.tolist(), out.tolist(), (host + 1).tolist()]

    for values in run(body)[0]:
        assert all(isinstance(each, AssumedFloat) for each in values), values


def test_foreach_lists_mark_what_they_write_and_leave_known_ones():
    def body() -> list[Any]:
        x, small, step = large(), torch.zeros(4, device="cuda"), torch.zeros((), device="cuda")
        torch._foreach_add_([step], 1)
        torch._foreach_add_([small, x], [x[:4], x])
        norms = torch._foreach_norm([x, x])
        return [step.item(), small.tolist(), [each.item() for each in norms]]

    step, small, norms = run(body)[0]
    assert step == 1.0
    assert not isinstance(step, AssumedFloat)
    assert all(isinstance(each, AssumedFloat) for each in (*small, *norms))


def test_running_statistics_of_a_batch_norm_are_assumed_and_finite():
    def body() -> list[Any]:
        norm = nn.BatchNorm2d(4).cuda()
        norm(torch.randn(8, 4, 16, 16, device="cuda"))
        return [norm.running_mean.tolist(), norm.running_var.tolist(), norm.num_batches_tracked.item()]

    mean, var, seen = run(body)[0]
    assert all(isinstance(each, AssumedFloat) and np.isfinite(each) for each in (*mean, *var))
    assert seen == 1
    assert not isinstance(seen, AssumedInt)


def test_a_gradient_scaler_finds_no_overflow_and_steps():
    def body() -> list[Any]:
        weight, scaler = (
            torch.randn(LARGE, device="cuda", requires_grad=True),
            torch.amp.GradScaler("cuda", growth_interval=2),
        )
        optimizer = torch.optim.SGD([weight], lr=0.1)
        steps: list[int] = []
        optimizer.register_step_post_hook(lambda *ignored: steps.append(1))
        for _ in range(2):
            scaler.scale((weight * weight).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return [len(steps), scaler.get_scale()]

    assert run(body)[0] == [2, 2.0**17]


def test_large_values_are_finite():
    def body() -> list[bool]:
        x = large()
        return [bool(torch.isfinite(x).all()), bool(torch.isnan(x).any()), bool(torch.isinf(x).any())]

    assert run(body)[0] == [True, False, False]


MASK = -float("inf")


@pytest.mark.parametrize("value", [MASK, -MASK, -2.0])
@pytest.mark.parametrize("change", [lambda x: x, torch.abs, torch.neg, lambda x: -x.clone()])
def test_tensors_filled_with_one_number(value: float, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def body() -> list[bool]:
        x = change(torch.full((LARGE,), value, device="cuda"))
        return [bool(torch.isfinite(x).any()), bool(torch.isinf(x).all()), bool((-x).isinf().all())]

    infinite = value in (MASK, -MASK)
    assert run(body)[0] == [not infinite, infinite, infinite]


def assumed_ones() -> torch.Tensor:
    return torch.ones(4, 4, device="cuda") * large().max()


BY_ASSUMED: dict[str, tuple[Callable[[], torch.Tensor], bool]] = {
    "logarithm of a difference": (lambda: (assumed_ones() - assumed_ones()).log(), True),
    "quotient by a difference": (lambda: 1 / (assumed_ones() - assumed_ones()), True),
    "in place": (lambda: assumed_ones().sub_(1).log_(), True),
    "by a spread": (lambda: assumed_ones() / assumed_ones().std(), True),
    "overflow": (lambda: (assumed_ones().half() * 300) * 300, True),
    "all masked": (lambda: assumed_ones().masked_fill(torch.ones(4, device="cuda") > 0, MASK).softmax(-1), True),
    "entropy of masked": (
        lambda: (p := (assumed_ones() + torch.eye(4, device="cuda").log()).softmax(-1)) * p.log(),
        True,
    ),
    "large and masked nowhere": (lambda: large().masked_fill(torch.zeros(LARGE, device="cuda") > 0, MASK), True),
    "large and masked somewhere": (lambda: large().masked_fill(large() > 0.5, MASK), True),
    "masked": (lambda: assumed_ones().masked_fill(torch.eye(4, device="cuda") > 0, MASK), False),
    "masked in place": (lambda: torch.eye(4, device="cuda").log().add_(assumed_ones()), False),
    "masked by a sum": (lambda: assumed_ones() + torch.eye(4, device="cuda").log(), False),
    "masked and scaled in place": (lambda: (assumed_ones() + torch.eye(4, device="cuda").log()).div_(0.7), False),
}
"""What is computed with assumed numbers, and whether it is finite: masks stay."""


@pytest.mark.parametrize("name", BY_ASSUMED)
def test_assumed_numbers_are_finite_where_no_mask_is(name):
    body, finite = BY_ASSUMED[name]

    def looks() -> list[bool]:
        x = body()
        return [bool(x.isnan().any()), bool(x.isinf().any()), bool(torch.isfinite(x).all())]

    assert run(looks)[0] == [False, not finite, finite]


def test_fresh_tensors_count_their_bytes_in_both_modes():
    def body() -> dict[str, tuple[int, int]]:
        made = {
            "arange": torch.arange(LARGE, device="cuda"), "small": torch.arange(4, device="cuda"),
            "eye": torch.eye(64, device="cuda"), "window": torch.hann_window(16, device="cuda"),
            "randint": numbers(), "randperm": torch.randperm(LARGE, device="cuda"),
        }  # fmt: skip
        return {name: (block_of(each).nbytes, each.untyped_storage().nbytes()) for name, each in made.items()}

    with_data, without = run(body, data=True)[0], run(body)[0]
    assert with_data == without
    assert all(counted == there for counted, there in with_data.values())


# -- kernbench.assume -----------------------------------------------------------------------------------------------------


def test_assume_says_what_a_small_tensor_is_also_under_error():
    def body() -> list[Any]:
        total = large()[:3].clone()
        kernbench.assume(total, [1.0, 2.0, 3.0])
        doubled = total * 2
        kernbench.assume(doubled, 7)
        return [total.tolist(), doubled.tolist()]

    for unknown in ("assume", "error"):
        found, notes = run(body, unknown=unknown)
        assert found == [[1.0, 2.0, 3.0], [7.0] * 3]
        assert all(isinstance(each, AssumedFloat) for each in found[0])
        assert notes
        assert all("as stated by kernbench.assume" in note for note in notes)


def test_assume_of_a_large_tensor_is_its_mean_and_steers_selections():
    def body() -> list[Any]:
        mask, x = large() > 0, large()
        kernbench.assume(mask, 0.25 * torch.ones(1) > 1)
        none = x[mask].shape[0]
        kernbench.assume(mask, torch.arange(LARGE) % 4 == 0)
        kernbench.assume(x, 5.0)
        return [none, x[mask].shape[0], x[0].item()]

    assert run(body)[0] == [0, LARGE // 4, 5.0]


def test_what_was_stated_holds_until_it_is_written():
    def body() -> None:
        x = large()
        kernbench.assume(x, 2.0)
        assert x[0].item() == 2.0
        x.add_(large())
        x[0].item()

    with pytest.raises(kernbench.SpawnException, match="not computed"):
        run(body, unknown="error")


def test_assume_of_a_place_answers_looks_there():
    def body() -> list[Any]:
        line = sys._getframe().f_lineno + 2
        kernbench.assume(f"test_known_and_unknown.py:{line}", 4.5)
        return [large().sum().item(), large().sum()]

    found, notes = run(lambda: body()[0], unknown="error")
    assert found == 4.5
    assert isinstance(found, AssumedFloat)
    assert "as stated by kernbench.assume" in notes[0]


def test_a_place_is_a_whole_file_name():
    def body() -> Any:
        kernbench.assume(f"unknown.py:{sys._getframe().f_lineno + 1}", 4.5)
        return large().sum().item()

    assert run(body)[0] == 1.0


def test_assume_with_data_does_nothing():
    def body() -> list[float]:
        x = torch.ones(3, device="cuda")
        kernbench.assume(x, 9)
        return x.tolist()

    assert run(body, data=True)[0] == [1.0] * 3


@pytest.mark.parametrize(
    ("what", "value", "message"),
    [
        ("nowhere", 1, "train.py:42"),
        (3, 1, "expected a tensor"),
        (None, 1, "expected a tensor"),
        ("tensor", [1, 2], "does not fit"),
    ],
)
def test_assume_says_what_is_wrong(what, value, message):
    def body() -> None:
        kernbench.assume(large()[:3].clone() if what == "tensor" else what, value)

    with pytest.raises(kernbench.SpawnException, match=message):
        run(body)


def test_assume_without_a_simulation_is_an_error():
    with pytest.raises(kernbench.KernbenchError, match="no simulation is open"):
        kernbench.assume(torch.ones(1), 1)
