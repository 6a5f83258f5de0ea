"""Lines of LLVM IR, and how the elements of values lie in registers.

A 16-bit float is its bits, an ``i16``: it is widened to compute with, and every result is rounded at once, as torch does it.
Nothing is marked as fast, so LLVM neither contracts nor reorders.
"""

from __future__ import annotations

from kernbench.triton_engine.frontend.types import INT_BITS

#: LLVM's type of an element in a register.
REGISTERS = {
    **{elem: f"i{bits}" for elem, bits in INT_BITS.items()},
    "f16": "i16",
    "bf16": "i16",
    "f32": "float",
    "f64": "double",
}
#: In memory, where it is another one.
STORED = {"i1": "i8"}
#: The floats that are computed with as they are.
FULL = {"f32": "float", "f64": "double"}


class IrText:
    """Lines in the making; ``put`` gives their results names."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self._names = 0

    def put(self, instruction: str) -> str:
        """Append an instruction; the name of its result."""
        self._names += 1
        name = f"%v{self._names}"
        self.lines.append(f"  {name} = {instruction}")
        return name

    def call(self, result: str, function: str, *arguments: tuple[str, str]) -> str:
        """Call an intrinsic with pairs of type and value."""
        self.declared.add(f"declare {result} @{function}({', '.join(kind for kind, _ in arguments)})")
        return self.put(f"call {result} @{function}({', '.join(f'{kind} {value}' for kind, value in arguments)})")

    def widen(self, elem: str, x: str) -> str:
        """A float to compute with: fp32 from 16 bits."""
        if elem == "f16":
            half = self.put(f"bitcast i16 {x} to half")
            return self.put(f"fpext half {half} to float")
        if elem == "bf16":
            bits = self.put(f"zext i16 {x} to i32")
            upper = self.put(f"shl i32 {bits}, 16")
            return self.put(f"bitcast i32 {upper} to float")
        return x

    def narrow(self, elem: str, x: str) -> str:
        """Rounded to nearest even, once, from what :meth:`widen` gives for ``elem``."""
        if elem == "f16":
            half = self.put(f"fptrunc float {x} to half")
            return self.put(f"bitcast half {half} to i16")
        if elem == "bf16":
            bits = self.put(f"bitcast float {x} to i32")
            upper = self.put(f"lshr i32 {bits}, 16")
            odd = self.put(f"and i32 {upper}, 1")
            below = self.put(f"add i32 {bits}, 32767")
            sum_ = self.put(f"add i32 {below}, {odd}")
            upper = self.put(f"lshr i32 {sum_}, 16")
            rounded = self.put(f"trunc i32 {upper} to i16")
            nan = self.put(f"fcmp uno float {x}, {x}")
            return self.put(f"select i1 {nan}, i16 32704, i16 {rounded}")
        return x
