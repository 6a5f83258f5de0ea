"""Operations as lines of LLVM IR: those alone whose results are defined to the bit.

A form appends to a :class:`~.text.IrText` what computes one element, and returns the result's name, or None where native code
would not give the bits that the interpreter gives for such types. Not here, and therefore torch's: elementary functions,
square roots and remainders (torch's vector library), least and greatest floats (which of two zeros), fp8, conversions that
torch rounds twice. Of NaNs only that they are NaN is the same: which NaN an operation of two returns is the processor's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernbench.triton_engine.frontend.program import OpInfo

from .text import FULL, REGISTERS, IrText

Form = Callable[[OpInfo, IrText, Sequence[str]], "str | None"]

_FLOATS = ("bf16", "f16", "f32", "f64")


def integer(opcode: str, *, masks: bool = False) -> Form:
    """An instruction of integers; ``masks``: of single bits, too."""

    def form(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
        if info.ty.elem == "i1" and not masks:
            return None
        return text.put(f"{opcode} {REGISTERS[info.ty.elem]} {args[0]}, {args[1]}")

    return form


def shift(opcode: str) -> Form:
    """A shift; by the width or more (or less than nothing), all bits are shifted out."""

    def form(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
        if info.ty.elem == "i1":
            return None
        (x, by), kind, width = args, REGISTERS[info.ty.elem], info.ty.bits
        inside = text.put(f"icmp ult {kind} {by}, {width}")
        by = text.put(f"select i1 {inside}, {kind} {by}, {kind} {width - 1 if opcode == 'ashr' else 0}")
        out = text.put(f"{opcode} {kind} {x}, {by}")
        return out if opcode == "ashr" else text.put(f"select i1 {inside}, {kind} {out}, {kind} 0")

    return form


def extremum(predicate: str) -> Form:
    """The one of two integers for which ``x predicate y`` holds."""

    def form(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
        if info.ty.elem == "i1":
            return None
        kind = REGISTERS[info.ty.elem]
        first = text.put(f"icmp {predicate} {kind} {args[0]}, {args[1]}")
        return text.put(f"select i1 {first}, {kind} {args[0]}, {kind} {args[1]}")

    return form


def upper_half(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
    """The upper half of the product of unsigned numbers."""
    kind, wide = REGISTERS[info.ty.elem], f"i{2 * info.ty.bits}"
    x, y = (text.put(f"zext {kind} {arg} to {wide}") for arg in args)
    product = text.put(f"mul {wide} {x}, {y}")
    upper = text.put(f"lshr {wide} {product}, {info.ty.bits}")
    return text.put(f"trunc {wide} {upper} to {kind}")


def absolute(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
    """``abs`` of an integer; the least one stays."""
    kind = REGISTERS[info.ty.elem]
    below = text.put(f"icmp slt {kind} {args[0]}, 0")
    opposite = text.put(f"sub {kind} 0, {args[0]}")
    return text.put(f"select i1 {below}, {kind} {opposite}, {kind} {args[0]}")


def compare(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
    """Integers; a mask that holds is -1 where there is a sign."""
    ty = info.operand_types[0]
    if not ty.is_int:
        return None
    return text.put(f"icmp {info.words[0]} {REGISTERS[ty.elem]} {args[0]}, {args[1]}")


def compare_floats(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
    """Floats, by the predicates that LLVM and TTIR share."""
    elem, predicate = info.operand_types[0].elem, info.words[0]
    if elem not in _FLOATS or predicate in ("true", "false"):
        return None
    x, y = (text.widen(elem, arg) for arg in args)
    return text.put(f"fcmp {predicate} {FULL.get(elem, 'float')} {x}, {y}")


def choose(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
    """``select``, of numbers or tiles that have a condition for each element."""
    condition, elem = info.operand_types[0], info.ty.elem
    if elem not in REGISTERS or condition.shape != info.ty.shape or (info.ty.is_int and not info.ty.shape):
        return None
    return text.put(f"select i1 {args[0]}, {REGISTERS[elem]} {args[1]}, {REGISTERS[elem]} {args[2]}")


def floating(opcode: str) -> Form:
    """IEEE arithmetic; 16 bits are rounded from the fp32 result."""

    def form(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
        elem = info.ty.elem
        if elem not in _FLOATS:
            return None
        operands = ", ".join([text.widen(elem, arg) for arg in args])
        return text.narrow(elem, text.put(f"{opcode} {FULL.get(elem, 'float')} {operands}"))

    return form


def intrinsic(name: str) -> Form:
    """A function of one float that is exact: its sign, or its rounding to a whole number."""

    def form(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
        elem = info.ty.elem
        if elem not in _FLOATS:
            return None
        kind = FULL.get(elem, "float")
        suffix = "f64" if elem == "f64" else "f32"
        return text.narrow(elem, text.call(kind, f"llvm.{name}.{suffix}", (kind, text.widen(elem, args[0]))))

    return form


def multiply_add(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
    """``math.fma``, rounded once."""
    kind = FULL.get(info.ty.elem)
    if kind is None:
        return None
    return text.call(kind, f"llvm.fma.{info.ty.elem}", *((kind, arg) for arg in args))


def between_floats(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
    """Conversions of one rounding, to nearest even."""
    source, target = info.operand_types[0].elem, info.ty.elem
    known = source in _FLOATS and target in _FLOATS
    if not known or info.attrs.get("rounding") == "rtz" or (source == "f64" and target in ("f16", "bf16")):
        return None
    if source == target:
        return args[0]
    if source == "f64":
        return text.put(f"fptrunc double {args[0]} to float")
    wide = text.widen(source, args[0])
    return text.put(f"fpext float {wide} to double") if target == "f64" else text.narrow(target, wide)


def to_float(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
    """From an integer, rounded once."""
    source, target = info.operand_types[0], info.ty.elem
    unsigned = info.name.endswith("uitofp")
    exact = target in FULL and not (unsigned and source.bits == 64)
    if not exact or source.elem == "i1":
        return None
    return text.put(f"{'uitofp' if unsigned else 'sitofp'} {REGISTERS[source.elem]} {args[0]} to {FULL[target]}")


def to_integer(bits_of: Callable[[OpInfo, bool], tuple[int, bool]], of_nan: Callable[[OpInfo], int]) -> Form:
    """From a float, toward zero: what does not fit into the bits of ``bits_of`` saturates, and of the result as many are kept
    as the type has. ``of_nan``: the integer that NaN gives."""

    def form(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
        source, target = info.operand_types[0].elem, info.ty
        unsigned = info.name.endswith("fptoui")
        if source not in _FLOATS or target.elem == "i1" or (unsigned and target.bits == 64):
            return None
        bits, positive = bits_of(info, unsigned)
        wide, kind = text.widen(source, args[0]), FULL.get(source, "float")
        name = f"llvm.fpto{'u' if positive else 's'}i.sat.i{bits}.{'f64' if source == 'f64' else 'f32'}"
        out = text.call(f"i{bits}", name, (kind, wide))
        if value := of_nan(info):
            missing = text.put(f"fcmp uno {kind} {wide}, {wide}")
            out = text.put(f"select i1 {missing}, i{bits} {value}, i{bits} {out}")
        return out if bits == target.bits else text.put(f"trunc i{bits} {out} to i{target.bits}")

    return form


def between_integers(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
    """More bits or fewer; a mask is one bit."""
    source, target = info.operand_types[0], info.ty
    kinds = REGISTERS[source.elem], REGISTERS[target.elem]
    if source.bits == target.bits:
        return args[0]
    opcode = "trunc" if target.bits < source.bits else "zext" if info.name.endswith("extui") else "sext"
    return text.put(f"{opcode} {kinds[0]} {args[0]} to {kinds[1]}")


def same_bits(info: OpInfo, text: IrText, args: Sequence[str]) -> str | None:
    """``bitcast``."""
    source, target = info.operand_types[0].elem, info.ty.elem
    kinds = REGISTERS.get(source), REGISTERS.get(target)
    if None in kinds or "i1" in kinds:
        return None
    return args[0] if kinds[0] == kinds[1] else text.put(f"bitcast {kinds[0]} {args[0]} to {kinds[1]}")
