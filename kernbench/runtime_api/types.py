"""Small types that a program hands to the runtime."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from kernbench.errors import ConfigError

Selection = str | int | Sequence[int] | range

GivenDtype: TypeAlias = torch.dtype | str | None
"""A dtype as callers give it: torch's, a name, or none."""


@dataclass(frozen=True)
class DeviceSelector:
    """Which SIPs of a system a context may use: ``"all"``, one index, a list of indices, or a range.

    Rank r drives the r-th selected SIP unless it sets another.
    """

    selection: Selection = "all"

    def resolve(self, sip_count: int) -> list[int]:
        """The selected SIP indices, in order. Raises :class:`ConfigError` for one that the system does not have."""
        selection = self.selection
        if isinstance(selection, str):
            if selection != "all":
                raise ConfigError(f"DeviceSelector({selection!r}): expected 'all', an index, a list or a range")
            return list(range(sip_count))
        indices = self._integers(selection if isinstance(selection, Iterable) else [selection])
        wrong = [index for index in indices if not 0 <= index < sip_count]
        if wrong:
            raise ConfigError(
                f"DeviceSelector({selection!r}): no SIP {', '.join(map(str, wrong))}; the system has 0..{sip_count - 1}"
            )
        if not indices:
            raise ConfigError(f"DeviceSelector({selection!r}) selects nothing")
        if len(set(indices)) != len(indices):
            raise ConfigError(f"DeviceSelector({selection!r}) names a SIP twice")
        return indices

    def _integers(self, selection: Iterable[Any]) -> list[int]:
        indices = list(selection)
        if not all(hasattr(type(index), "__index__") and not isinstance(index, bool) for index in indices):
            raise ConfigError(f"DeviceSelector({self.selection!r}): SIP indices are integers")
        return [int(index) for index in indices]


_DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64, "fp64": torch.float64, "float64": torch.float64, "double": torch.float64,
    "f32": torch.float32, "fp32": torch.float32, "float32": torch.float32, "float": torch.float32,
    "f16": torch.float16, "fp16": torch.float16, "float16": torch.float16, "half": torch.float16,
    "bf16": torch.bfloat16, "bfloat16": torch.bfloat16,
    "i64": torch.int64, "int64": torch.int64, "long": torch.int64,
    "i32": torch.int32, "int32": torch.int32, "int": torch.int32,
    "i16": torch.int16, "int16": torch.int16, "short": torch.int16,
    "i8": torch.int8, "int8": torch.int8, "u8": torch.uint8, "uint8": torch.uint8,
    "bool": torch.bool,
    "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2,
}  # fmt: skip


def as_dtype(dtype: GivenDtype, default: torch.dtype | None = None) -> torch.dtype:
    """A torch dtype from a torch dtype, a name (``"f16"``, ``"bf16"``, ``"float32"``, ``"int32"`` ...) or None."""
    if dtype is None:
        return torch.get_default_dtype() if default is None else default
    if isinstance(dtype, torch.dtype):
        return dtype
    found = _DTYPES.get(str(dtype).lower().removeprefix("torch."))
    if found is None:
        raise ConfigError(f"unknown dtype {dtype!r}: expected a torch dtype or one of {', '.join(_DTYPES)}")
    return found
