"""Quantities of a system description: plain SI numbers, or text with a unit.

A description may say ``bandwidth: 450e9`` or ``bandwidth: 450 GB/s``; both arrive as 4.5e11 bytes/s. Decimal and binary
prefixes differ (``GB`` is 10^9, ``GiB`` is 2^30), and so do bytes and bits (``GB/s`` is eight times ``Gb/s``), as they
do on data sheets. The aliases at the end are the field types of the schema.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from kernbench.topology.problems import describe

# Exact factors: "524.3 TFLOP/s" is the float nearest to 524.3e12, not a product of two rounded ones.
_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_BEYOND = 1e30
"""More than there is of anything, and far enough from the largest float for products and sums of quantities."""

_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(.*?)\s*\Z", re.DOTALL)


class QuantityError(ValueError):
    """A value is not the quantity that was asked for. ``found`` and ``expected`` are parts of the complaint."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(f"{found}; expected {expected}")
        self.found = found
        self.expected = expected


@dataclass(frozen=True)
class Quantity:
    """One kind of quantity: its name, an example for error messages, and the SI factor of each accepted unit.

    ``display`` lists the units that :meth:`format` chooses from, largest first.
    """

    name: str
    si: str
    example: str
    factors: Mapping[str, Fraction | int]
    display: tuple[str, ...]

    @property
    def expected(self) -> str:
        """What a reader should have written, for error messages."""
        return f"a {self.name} such as '{self.example}' (a plain number is in {self.si})"

    def parse(self, value: Any) -> float:
        """``value`` in SI units. Raises QuantityError when it is no such quantity."""
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise QuantityError(describe(value), self.expected)
        shown = describe(value)
        if isinstance(value, str):
            match = _NUMBER.match(value)
            if match is None:
                raise QuantityError(describe(value), self.expected)
            unit = match[2].replace("µ", "u").replace("μ", "u")
            if unit and unit not in self.factors:
                raise QuantityError(
                    f"{describe(value)}, whose unit is not one of {', '.join(self.display)}", self.expected
                )
            value = _number(match[1].replace("_", "")) * (self.factors[unit] if unit else 1)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not abs(number) < _BEYOND:  # nor NaN
            raise QuantityError(shown, f"{self.expected}, below {_BEYOND:g} {self.si}")
        return number

    def format(self, value: float, digits: int = 4) -> str:
        """``value`` (SI) in the largest unit that is not more than it: ``format(4.5e11) == '450 GB/s'``."""
        if value == 0 or not math.isfinite(value):
            return f"{value:g} {self.display[-1]}"
        unit = next((unit for unit in self.display if abs(value) >= float(self.factors[unit])), self.display[-1])
        return f"{value / float(self.factors[unit]):.{digits}g} {unit}"


def _number(text: str) -> Fraction | float:
    """Exactly; as a float where there are more digits than Python reads."""
    try:
        return Fraction(text)
    except ValueError:
        return float(text)


def _prefixed(*units: str, scale: Fraction | int = 1, binary: bool = False) -> dict[str, Fraction | int]:
    prefixes = _DECIMAL | (_BINARY if binary else {})
    return {prefix + unit: factor * scale for unit in units for prefix, factor in prefixes.items()}


SIZE = Quantity(
    "size", "bytes", "80 GiB", _prefixed("B", binary=True), ("TiB", "GiB", "MiB", "KiB", "B", "GB", "MB", "KB")
)
BANDWIDTH = Quantity(
    "bandwidth",
    "bytes/s",
    "450 GB/s",
    _prefixed("B/s", binary=True) | _prefixed("b/s", "bit/s", "bps", scale=Fraction(1, 8)),
    ("TB/s", "GB/s", "MB/s", "KB/s", "B/s", "Gb/s"),
)
DURATION = Quantity(
    "duration",
    "seconds",
    "1.2 us",
    {"s": 1} | {unit: Fraction(1, 10**power) for unit, power in (("ms", 3), ("us", 6), ("ns", 9), ("ps", 12))},
    ("s", "ms", "us", "ns"),
)
RATE = Quantity(
    "rate",
    "operations/s",
    "989 TFLOP/s",
    _prefixed("FLOP/s", "FLOPS", "OP/s", "OPS"),
    ("PFLOP/s", "TFLOP/s", "GFLOP/s", "MFLOP/s", "FLOP/s", "TOP/s"),
)
POWER = Quantity("power", "watts", "700 W", {"W": 1, "kW": 1000, "mW": Fraction(1, 1000)}, ("kW", "W", "mW"))
FREQUENCY = Quantity("frequency", "hertz", "1.83 GHz", _prefixed("Hz"), ("GHz", "MHz", "kHz", "Hz"))


def _validator(quantity: Quantity, *, integral: bool = False) -> BeforeValidator:
    def validate(value: Any) -> float | int:
        try:
            parsed = quantity.parse(value)
            if integral and parsed != int(parsed):
                raise QuantityError(describe(value), "a whole number of bytes")
        except QuantityError as error:
            context = {"found": error.found, "expected": error.expected}
            raise PydanticCustomError("quantity", "{found}; expected {expected}", context) from None
        return int(parsed) if integral else parsed

    return BeforeValidator(validate)


Bandwidth = Annotated[float, Field(gt=0), _validator(BANDWIDTH)]
Bytes = Annotated[int, Field(gt=0), _validator(SIZE, integral=True)]
Seconds = Annotated[float, Field(ge=0), _validator(DURATION)]
OpsPerSecond = Annotated[float, Field(gt=0), _validator(RATE)]
Watts = Annotated[float, Field(gt=0), _validator(POWER)]
Hertz = Annotated[float, Field(gt=0), _validator(FREQUENCY)]
Share = Annotated[float, Field(gt=0, le=1, strict=True)]
Loss = Annotated[float, Field(ge=0, lt=1, strict=True)]
Count = Annotated[int, Field(ge=1, le=2**31, strict=True)]
MAX_SIPS_PER_NODE = 1024  # a node is held link by link
MAX_NODES = 2**16
SipCount = Annotated[int, Field(ge=1, le=MAX_SIPS_PER_NODE, strict=True)]
NodeCount = Annotated[int, Field(ge=1, le=MAX_NODES, strict=True)]
Side = Annotated[int, Field(ge=1, le=64, strict=True)]  # of a mesh of cubes
Position = Annotated[int, Field(ge=0, strict=True)]
