"""Arguments that stand for the real ones when a kernel is compiled ahead of time.

Types are written as Triton's own ahead-of-time compiler writes them: ``*fp16`` is a pointer, ``i32`` an integer; ``:16``
says that pointer or integer is a multiple of 16, ``:1`` that it need not be. Torch's allocations are, so a pointer is unless
told otherwise, and an integer is not. A plain value is specialised as a launch with that value would be.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kernbench.errors import ConfigError
from kernbench.input_files import shortened

DTYPES = {
    "fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "f64": "float64", "f32": "float32",
    "f16": "float16", "fp8e4nv": "float8_e4m3fn", "fp8e5": "float8_e5m2", "fp8e4b8": "float8_e4m3fnuz",
    "fp8e5b16": "float8_e5m2fnuz", "i1": "bool", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64",
}  # fmt: skip
"""Triton's name of an element type to torch's."""

_SCALARS: dict[tuple[str, bool], object] = {
    # (type, multiple of 16): a value of that type which Triton specialises on nothing else
    ("i32", False): 17,
    ("i32", True): 16,
    ("i64", False): (1 << 40) + 1,
    ("i64", True): 1 << 40,
    ("u64", False): (1 << 63) + 1,
    ("u64", True): 1 << 63,
    ("i1", False): True,
    ("fp32", False): 0.5,
}

_TYPE = re.compile(r"(\*?)(\w+?)(?::(1|16))?")


@dataclass(frozen=True)
class Pointer:
    """Stands for a tensor.

    Attributes:
        dtype: torch's name of the element type.
        aligned: whether its address is a multiple of 16.
    """

    dtype: str
    aligned: bool = True

    def data_ptr(self) -> int:
        """An address that is never read, with the promised alignment."""
        return 0 if self.aligned else 1

    def ptr_range(self) -> int:
        """0: as most tensors it spans less than 2 GiB, which AMD's compiler specialises on."""
        return 0

    @staticmethod
    def stride() -> tuple[int, ...]:
        """Of a vector."""
        return (1,)


def stand_in(value: object, *, constexpr: bool, where: str) -> Any:
    """The argument to compile with.

    Args:
        value: a type as text, or a plain value.
        constexpr: whether the parameter is a ``tl.constexpr``: its values are taken as they are, ``"tl.float16"`` as
            Triton's dtype.
        where: the kernel and parameter, for messages.

    Raises:
        ConfigError: not a type that an argument can have.
    """
    if not isinstance(value, str):
        return value
    if constexpr:
        return _dtype_or_text(value)
    match = _TYPE.fullmatch(value.strip())
    pointer, name, hint = match.groups() if match else ("", value, None)
    if pointer and name in DTYPES:
        return Pointer(DTYPES[name], hint != "1")
    if not pointer and (name, hint == "16") in _SCALARS:
        return _SCALARS[name, hint == "16"]
    if pointer:
        raise ConfigError(f"{where}: no element type {shortened(name)!r}; expected one of {', '.join(DTYPES)}")
    scalars = sorted({name for name, _ in _SCALARS})
    raise ConfigError(
        f"{where}: {shortened(repr(value))} is no type of an argument; expected a pointer such as '*fp16', one of "
        f"{', '.join(scalars)} "
        "(with ':16' if it is a multiple of 16), or a number"
    )


def text_of(value: object) -> Any:
    """A value of a ``tl.constexpr``, or one that Triton made a constant of, as a spec writes it; :func:`stand_in` reads it.

    Raises:
        ValueError: it cannot be written down.
    """
    if value is None or type(value) in (bool, int, float):
        return value
    if type(value) is str and not value.startswith("tl."):
        return value
    text = f"tl.{value}" if hasattr(value, "primitive_bitwidth") else ""
    text = _TL_NAMES.get(text, text)
    if text and _dtype_or_text(text) == value:
        return text
    raise ValueError(f"a constant {value!r} cannot be written down")


def type_text(text: object, multiple_of_16: bool) -> str:
    """Triton's name of an argument's type as a spec writes it. Raises ValueError for one that has no stand-in."""
    name = str(text)
    if name.startswith("*") and name[1:] in DTYPES:
        return name if multiple_of_16 else f"{name}:1"
    if (name, multiple_of_16) in _SCALARS:
        return f"{name}:16" if multiple_of_16 else name
    raise ValueError(f"an argument of type {name} has no stand-in")


_TL_NAMES = {
    "tl.fp16": "tl.float16", "tl.bf16": "tl.bfloat16", "tl.fp32": "tl.float32", "tl.fp64": "tl.float64",
    **{f"tl.i{bits}": f"tl.int{bits}" for bits in (1, 8, 16, 32, 64)},
    **{f"tl.u{bits}": f"tl.uint{bits}" for bits in (8, 16, 32, 64)},
    "tl.fp8e4nv": "tl.float8e4nv", "tl.fp8e5": "tl.float8e5", "tl.fp8e4b8": "tl.float8e4b8",
    "tl.fp8e5b16": "tl.float8e5b16", "tl.fp8e4b15": "tl.float8e4b15",
}  # fmt: skip
"""A dtype's own name to that of ``triton.language``."""


def _dtype_or_text(value: str) -> object:
    if value.startswith("tl."):
        import triton.language as tl

        found = getattr(tl, value.removeprefix("tl."), None)
        if isinstance(found, tl.dtype):
            return found
    return value
