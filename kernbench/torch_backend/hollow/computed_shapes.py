"""What an operator of torch's gives of which no kernel tells the shapes: it is computed once, on numbers that stand for those
that are not there, and only shapes are kept.

The bytes of a hollow tensor are whatever was in that memory: read as lengths or indices they lead out of it, and NaN among
them is refused by LAPACK. The numbers that stand for them are those that kernels accept: zeros of whole numbers, and between 0
and 1 of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from kernbench.errors import KernbenchError, message_of
from kernbench.torch_backend.hollow.shapes import described_results, mapped


def shapes_by_computing(
    func: Any, args: Any, kwargs: Any, is_hollow: Callable[[torch.Tensor], bool], *, refused: bool = False
) -> Any:
    """See :func:`.shapes.described`.

    Args:
        is_hollow: whether a tensor has no numbers.
        refused: whether a kernel that tells shapes refuses the arguments: so does this one, and in torch's words.

    Raises KernbenchError: it refuses these numbers.
    """
    draws = torch.Generator().manual_seed(0)

    def standing(tensor: torch.Tensor) -> torch.Tensor:
        if not is_hollow(tensor):
            return tensor.detach().clone()
        made = torch.empty_strided(tensor.size(), torch.Tensor.stride(tensor), dtype=tensor.dtype).zero_()
        return made.uniform_(generator=draws) if tensor.is_floating_point() else made

    options = {name: mapped(value, standing) for name, value in kwargs.items() if name != "generator"}
    state = torch.get_rng_state()
    try:
        return described_results(func(*mapped(args, standing), **options))
    except Exception as error:
        if refused:
            raise
        said = message_of(error).strip().partition("\n")[0][:300]
        raise KernbenchError(
            f"{func._opname} has no shape rule (no meta or fake kernel), and cannot be computed on assumed numbers: run it "
            f"with data, or register a rule with torch.library.register_fake ({said})"
        ) from None
    finally:
        torch.set_rng_state(state)
