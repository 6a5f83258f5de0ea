"""Without data, operators of torch's whose shapes no kernel tells: they are computed on numbers that stand for those that are
not there, and what they give is assumed. Numbers that are assumed are no reason to refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import kernbench
from kernbench.torch_backend.hollow.computed_shapes import shapes_by_computing
from kernbench.torch_backend.hollow.shapes import Described


def _ctc() -> tuple[Any, ...]:
    scores = torch.randn(60, 16, 64, device="cuda").log_softmax(-1).requires_grad_()
    targets = torch.randint(1, 64, (16, 4000), device="cuda")[:, :30]  # more than are known
    lengths, of_targets = torch.full((16,), 60, device="cuda"), torch.full((16,), 30, device="cuda")
    loss = F.ctc_loss(scores, targets, lengths, of_targets)
    loss.backward()
    assert scores.grad is not None
    return tuple(loss.shape), tuple(scores.grad.shape)


def _least_squares() -> tuple[Any, ...]:
    given = torch.randn(512, 64, device="cuda"), torch.randn(512, 8, device="cuda")
    return tuple(tuple(each.shape) for each in torch.linalg.lstsq(*given))


def _singular() -> tuple[Any, ...]:
    matrix, ones = torch.randn(3, 3, device="cuda"), torch.ones(3, device="cuda")
    given = [torch.linalg.solve(matrix, ones), torch.linalg.cholesky(matrix @ matrix.mT), torch.linalg.inv(matrix)]
    return tuple(tuple(each.shape) for each in given)


CASES = {"ctc_loss": _ctc, "lstsq": _least_squares, "singular": _singular}


def _run(body: Callable[[], Any], *, data: bool) -> Any:
    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        found: list[Any] = []

        def worker(rank: int) -> None:
            found.append(body())

        ctx.multiprocessing.spawn(worker, nprocs=1)
        return found[0]


@pytest.mark.parametrize("name", CASES)
def test_shapes_are_those_with_data(name: str) -> None:
    with_data = _run(CASES[name], data=True)
    without = _run(CASES[name], data=False)
    assert without == with_data


def test_numbers_that_stand_for_others_are_in_bounds() -> None:
    """Whatever was in that memory: indices out of bounds, and NaN."""
    table = torch.full((8, 4), float("nan"))
    at = torch.full((3,), 1 << 40)
    found = shapes_by_computing(torch.ops.aten.embedding.default, (table, at), {}, lambda tensor: True)
    assert found == Described((3, 4), (4, 1), torch.float32)
    assert table.isnan().all()
    assert (at == 1 << 40).all()


def test_what_is_known_and_wrong_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    def body() -> str:
        with pytest.raises(RuntimeError, match="singular"):
            torch.linalg.solve(torch.zeros(3, 3, device="cuda"), torch.ones(3, device="cuda"))
        with pytest.raises(RuntimeError, match="must be batches of square matrices"):
            torch.linalg.inv(torch.randn(3, 4, device="cuda"))
        for wrong in (torch.mm, torch.add):  # in torch's words, whatever is known of the numbers
            for size in (3, 300, 3000):
                with pytest.raises(RuntimeError, match=r"cannot be multiplied|must match|same reduction|broadcast"):
                    wrong(torch.randn(size, size, device="cuda"), torch.randn(size + 1, size + 2, device="cuda"))
        return "refused"

    assert _run(body, data=False) == "refused"
    assert "Traceback" not in capfd.readouterr().err, "torch's own log of it"


def test_what_refuses_them_is_refused_in_words() -> None:
    lengths = torch.empty(2, dtype=torch.int64)
    with pytest.raises(kernbench.KernbenchError, match="cannot be computed on assumed numbers: run it with data"):
        shapes_by_computing(
            torch.ops.aten.segment_reduce.default, (torch.ones(4), "sum"), {"lengths": lengths}, lambda tensor: True
        )
