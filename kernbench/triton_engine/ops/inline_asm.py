"""Inline assembly (``tl.inline_asm_elementwise``). See :mod:`kernbench.triton_engine.ptx`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernbench.triton_engine.lift.program import OpInfo

from .registry import UnsupportedOpError, op


@op("tt.elementwise_inline_asm", pure=False, reads=True, writes=True)
def _inline_asm(info: OpInfo) -> Callable[..., Any]:
    raise UnsupportedOpError(f"kernel {info.kernel}: inline assembly\n  at {info.loc}\n  {info.text}")
