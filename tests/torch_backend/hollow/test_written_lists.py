"""What is assumed of small tensors that an operation writes by lists from values that are not known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import kernbench

SMALL, LARGE = 4, 1 << 20
Write = Callable[[torch.Tensor, torch.Tensor], object]


def _split(target: torch.Tensor, source: torch.Tensor) -> None:
    torch.split_with_sizes_copy(source, [SMALL, LARGE - SMALL], out=[target, torch.empty_like(source[SMALL:])])


WRITES: dict[str, tuple[Write, float]] = {
    "split_with_sizes_copy": (_split, 3.0),
    "foreach_copy_": (lambda target, source: torch._foreach_copy_([target], [source[:SMALL]]), 3.0),
    "foreach_zero_": (lambda target, source: torch._foreach_zero_([target]), 0.0),
    "foreach_add_": (lambda target, source: torch._foreach_add_([target], [source[:SMALL]]), 7.0),
}


@pytest.mark.parametrize("name", WRITES)
def test_they_are_what_was_written_on_average(name: str) -> None:
    """And not what was in their memory before, unless that is read."""
    write, expected = WRITES[name]
    with kernbench.simulated_gpu("dgx_h100", enable_data=False):
        source = torch.full((LARGE,), 3.0, device="cuda")
        target = torch.full((SMALL,), 7.0, device="cuda")
        write(target, source)
        assert target.tolist() == [expected] * SMALL
