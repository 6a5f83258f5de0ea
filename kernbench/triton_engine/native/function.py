"""A loop nest in LLVM IR around the lines of some instructions.

The function takes one array of 64-bit integers: the sizes of the nest, then of each operand (inputs, then outputs) an address
and its strides. A tensor's are bytes. Integers that are affine in the indices are operands whose "address" and strides are the
numbers themselves; a number has its bits for an address and no strides. So one function serves every size, and depends only on
how operands run along the innermost loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.triton_engine.frontend.program import OpInfo
from kernbench.triton_engine.frontend.types import INT_BITS, TORCH_DTYPE

from .text import REGISTERS, STORED, IrText

#: Loops of a nest.
DEPTH = 3

#: How an operand runs along the innermost loop: a tensor element by element, not at all, or by a stride; an affine integer by
#: one, not at all, or by a stride; a number.
ADJACENT, STILL, STRIDED, COUNTING, CONSTANT, STEPPING, NUMBER = "csxaktn"


@dataclass(frozen=True)
class NativeLine:
    """One instruction: its operands are inputs (negative: ``~k``) or results of steps before."""

    info: OpInfo
    args: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Formula:
    """What a function computes, whatever the sizes: element types of its inputs, steps, and the steps that are outputs."""

    inputs: tuple[str, ...]
    steps: tuple[NativeLine, ...]
    outputs: tuple[int, ...]


def itemsize(elem: str) -> int:
    """Bytes of an element in memory."""
    return TORCH_DTYPE[elem].itemsize


def write(shape: Formula, runs: str) -> str:
    """The module; ``runs`` has a letter for each input and output. The function's name is ``NAME``."""
    elems = [*shape.inputs, *(shape.steps[k].info.ty.elem for k in shape.outputs)]
    outer, middle, inner = IrText(), IrText(), IrText()
    head = ["entry:"]
    for k in range(DEPTH):
        head += _word(f"%n{k}", k)
    numbers: dict[int, str] = {}
    for k, (elem, run) in enumerate(zip(elems, runs, strict=True)):
        at = DEPTH + (DEPTH + 1) * k
        head += _word(f"%base{k}", at)
        if run == NUMBER:
            numbers[k] = f"%number{k}"
            head += _number(numbers[k], f"%base{k}", elem)
            continue
        for loop in range(DEPTH):
            head += _word(f"%s{k}.{loop}", at + 1 + loop)
        for text, before, loop in ((outer, f"%base{k}", 0), (middle, f"%o{k}", 1)):
            text.lines.append(f"  %step{k}.{loop} = mul i64 %i{loop}, %s{k}.{loop}")
            text.lines.append(f"  %{'om'[loop]}{k} = add i64 {before}, %step{k}.{loop}")
        if run in (ADJACENT, STRIDED, STILL):
            middle.lines.append(f"  %p{k} = inttoptr i64 %m{k} to ptr")
    values: list[str] = []
    for k, elem in enumerate(shape.inputs):
        values.append(numbers.get(k) or _read(k, elem, runs[k], middle, inner))
    results: list[str] = []
    for step in shape.steps:
        form = step.info.row.native
        assert form is not None
        out = form(step.info, inner, [values[~a] if a < 0 else results[a] for a in step.args])
        assert out is not None
        results.append(out)
    for n, step_index in enumerate(shape.outputs):
        k, value = len(shape.inputs) + n, results[step_index]
        elem = elems[k]
        if elem == "i1":
            value = inner.put(f"zext i1 {value} to i8")
        kind = STORED.get(elem, REGISTERS[elem])
        inner.lines.append(
            f"  store {kind} {value}, ptr {_place(k, elem, runs[k], inner)}, align 1, !llvm.access.group !0"
        )
    body = [
        *head,
        "  br label %outer",
        *_loop("outer", 0, "entry", [*outer.lines, "  br label %middle"], "middle"),
        *_loop("middle", 1, "outer", [*middle.lines, "  br label %inner"], "inner"),
        "inner:",
        "  %i2 = phi i64 [ 0, %middle ], [ %next2, %inner ]",
        *inner.lines,
        "  %next2 = add i64 %i2, 1",
        "  %done2 = icmp eq i64 %next2, %n2",
        "  br i1 %done2, label %middle.end, label %inner, !llvm.loop !1",
        "end:",
        "  ret void",
    ]
    return "\n".join(
        [
            *sorted(inner.declared),
            "define void @NAME(ptr noalias readonly %words) {",
            *body,
            "}",
            "!0 = distinct !{}",
            "!1 = distinct !{!1, !2, !3}",
            '!2 = !{!"llvm.loop.parallel_accesses", !0}',
            '!3 = !{!"llvm.loop.vectorize.enable", i1 true}',
            "",
        ]
    )


def _loop(label: str, loop: int, before: str, body: Sequence[str], inside: str) -> list[str]:
    """One of the outer loops, from its label to where it goes round."""
    after = "end" if loop == 0 else "outer.end"
    return [
        f"{label}:",
        f"  %i{loop} = phi i64 [ 0, %{before} ], [ %next{loop}, %{label}.end ]",
        *body,
        f"{label}.end:",
        f"  %next{loop} = add i64 %i{loop}, 1",
        f"  %done{loop} = icmp eq i64 %next{loop}, %n{loop}",
        f"  br i1 %done{loop}, label %{after}, label %{label}",
    ]


def _word(name: str, index: int) -> list[str]:
    """An element of the argument."""
    at = f"{name.replace('%', '%at.')}"
    return [f"  {at} = getelementptr i64, ptr %words, i64 {index}", f"  {name} = load i64, ptr {at}"]


def _number(name: str, word: str, elem: str) -> list[str]:
    """A number from its bits."""
    kind = REGISTERS[elem]
    bits = INT_BITS.get(elem) or 8 * itemsize(elem)
    short = word if bits == 64 else f"{name}.bits"
    lines = [] if bits == 64 else [f"  {short} = trunc i64 {word} to i{bits}"]
    return [*lines, f"  {name} = bitcast i{bits} {short} to {kind}"]


def _read(k: int, elem: str, run: str, middle: IrText, inner: IrText) -> str:
    """The element of input ``k``, read in the innermost loop if it changes there."""
    kind = REGISTERS[elem]
    if run in (COUNTING, CONSTANT, STEPPING):
        value = f"%m{k}"
        if run == COUNTING:
            value = inner.put(f"add i64 %i2, {value}")
        elif run == STEPPING:
            step = inner.put(f"mul i64 %i2, %s{k}.2")
            value = inner.put(f"add i64 {step}, {value}")
        return value if kind == "i64" else inner.put(f"trunc i64 {value} to {kind}")
    stored = STORED.get(elem, kind)
    text, place, group = (middle, f"%p{k}", "") if run == STILL else (inner, "", ", !llvm.access.group !0")
    place = place or _place(k, elem, run, inner)
    # names of the two texts must differ
    if text is middle:
        middle.lines.append(f"  %still{k} = load {stored}, ptr {place}, align 1")
        value = f"%still{k}"
    else:
        value = inner.put(f"load {stored}, ptr {place}, align 1{group}")
    return inner.put(f"icmp ne i8 {value}, 0") if elem == "i1" else value


def _place(k: int, elem: str, run: str, inner: IrText) -> str:
    """The address of operand ``k`` in the innermost loop."""
    if run == ADJACENT:
        return inner.put(f"getelementptr {STORED.get(elem, REGISTERS[elem])}, ptr %p{k}, i64 %i2")
    step = inner.put(f"mul i64 %i2, %s{k}.2")
    return inner.put(f"getelementptr i8, ptr %p{k}, i64 {step}")
