"""Names of number formats. Descriptions use the short ones; torch, numpy and Triton spellings are understood."""

from __future__ import annotations

_ALIASES: dict[str, tuple[str, ...]] = {
    "fp64": ("float64", "double", "f64"),
    "tf32": ("tensorfloat32",),
    "fp32": ("float32", "float", "f32", "single"),
    "fp16": ("float16", "half", "f16"),
    "bf16": ("bfloat16",),
    "fp8": (
        "float8",
        "fp8e4nv",
        "fp8e5",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e4m3fnuz",
        "float8_e5m2fnuz",
        "float8_e8m0fnu",
        "f8",
    ),
    "fp4": ("float4", "float4_e2m1fn_x2", "f4"),
    "int64": ("long", "i64", "uint64", "u64"),
    "int32": ("int", "i32", "uint32", "u32"),
    "int16": ("short", "i16", "uint16", "u16"),
    "int8": ("i8", "uint8", "u8", "bool", "i1"),
}  # fmt: skip
_CANONICAL = {alias: name for name, aliases in _ALIASES.items() for alias in (name, *aliases)}

ITEM_BYTES = {
    "fp64": 8,
    "int64": 8,
    "fp32": 4,
    "tf32": 4,
    "int32": 4,
    "fp16": 2,
    "bf16": 2,
    "int16": 2,
    "fp8": 1,
    "int8": 1,
    "fp4": 0.5,
}
"""Bytes that one number takes in memory."""


def canonical_dtype(dtype: object) -> str:
    """The short name of a number format: ``torch.float16``, ``"float16"``, ``"f16"`` and ``"half"`` are all ``"fp16"``.

    Raises ValueError for a name that is not known.
    """
    text = str(dtype).removeprefix("torch.").removeprefix("numpy.").lower()
    try:
        return _CANONICAL[text]
    except KeyError:
        raise ValueError(f"unknown dtype {dtype!r}; known: {', '.join(_ALIASES)}") from None
