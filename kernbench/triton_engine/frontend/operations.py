"""One printed operation -> an :class:`~.tree.Op`. Operations of custom spelling (``scf.for``) have functions of their own."""

from __future__ import annotations

import re

from kernbench.triton_engine.ops.registry import lookup

from .brackets import STRING, ParseError, balanced, split_list, top_level
from .literals import decode_constant, take_attrs
from .tree import Op
from .types import Ty, parse_type

_VALUE = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_RESULTS = re.compile(r"^((?:%[\w$.\-]+(?::\d+)?(?:,\s*)?)+)\s*=\s*")
_SUCCESSOR = re.compile(r"(\^\w+)(?:\(([^)]*)\))?")


def parse_op(body: str, tail: str) -> Op:
    """The operation of a line without its ``loc``; ``tail`` is what stands after the brace that closes its last region.

    Regions, and where the operation stands, are left to the caller.
    """
    results: list[str] = []
    if match := _RESULTS.match(body):
        for name in match[1].split(","):
            name, _, count = name.strip().partition(":")
            results += [f"{name}#{i}" for i in range(int(count))] if count else [name]
        body = body[match.end() :]
    text = body
    if body.startswith('"'):  # generic form: "tt.reduce"(%a) <{axis = 0 : i32}> ({...}) : (types) -> types
        match = STRING.match(body)
        assert match is not None
        name, rest = match[1], body[match.end() :]
    else:
        name, _, rest = body.partition(" ")
        if "(" in name:  # scf.condition(%c) %x : t
            name, _, cut = body.partition("(")
            rest = "(" + cut
    op = Op(name, [], results, [], [], text=text)
    if name == "scf.for":
        return _parse_for(op, rest, tail)
    if name == "scf.while":
        return _parse_while(op, rest)
    signature = ""
    if tail.startswith(":"):
        signature, tail = tail[1:].strip(), ""
    rest, op.attrs = take_attrs(rest)
    if tail:
        _, more = take_attrs(tail)
        op.attrs.update(more)
    if name == "scf.if":
        cond, _, types = rest.partition("->")
        op.operands = _VALUE.findall(cond)
        op.operand_types = [Ty("i1")]
        op.result_types = [parse_type(t) for t in type_list(types)] if types else []
        return op
    if not signature:
        at = max(top_level(" " + rest, " : "), default=-1)
        if at >= 0:
            at = max(at - 1, 0)
            rest, signature = rest[:at], rest[at:].lstrip(" :").strip()
    if name == "arith.constant":
        return _parse_constant(op, rest.strip(), signature)
    if name in ("cf.br", "cf.cond_br"):
        plain = re.sub(r":[^)]*\)", ")", rest)
        op.successors = [(s[0], _VALUE.findall(s[1])) for s in _SUCCESSOR.findall(plain)]
        op.operands = _VALUE.findall(plain.split("^")[0])
        return op
    strings = STRING.findall(rest)
    if strings:
        op.attrs["string"] = strings[0]
        rest = STRING.sub(" ", rest)
        if not signature and rest.lstrip().startswith("->"):  # assembly without operands names its result only
            rest, signature = "", rest.strip()
    if match := re.search(r"@([\w$.\-]+)", rest):
        op.symbol = match[1]
        rest = rest.replace(match[0], " ")
    op.groups = [_VALUE.findall(g) for g in re.findall(r"\[([^\]]*)\]", rest)]
    op.operands = _VALUE.findall(rest)
    for key, value in re.findall(r"(\w+)\s*=\s*([\w.\-]+)", rest):
        op.attrs[key] = value
    op.words = [w for w in re.split(r"[\s,()\[\]]+", _VALUE.sub(" ", rest)) if w and w != "="]
    _parse_signature(op, signature)
    return op


def _parse_signature(op: Op, signature: str) -> None:
    """Operand and result types: ``a, b -> c``, ``a to b``, or the operands' alone."""
    if "->" in signature:
        arrow = _arrow(signature)
        op.operand_types = [
            parse_type(_with_prefix(t)) for part in signature[:arrow].split(" * ") for t in type_list(part)
        ]
        op.result_types = [parse_type(t) for t in type_list(signature[arrow + 2 :])]
    elif " to " in signature:
        left, _, right = signature.partition(" to ")
        op.operand_types, op.result_types = [parse_type(left)], [parse_type(right)]
    elif signature:
        op.operand_types = [parse_type(_with_prefix(t)) for t in type_list(signature)]
        op.result_types = _implied_results(op) if op.results else []
    if op.result_types and len(op.result_types) < len(op.results):  # tt.split prints its type once
        op.result_types = op.result_types[:1] * len(op.results)


def _with_prefix(text: str) -> str:
    """Types printed without their prefix: ``<f16>`` (a pointer), ``<tensor<..>>`` (a descriptor)."""
    if not text.startswith("<"):
        return text
    return ("!tt.ptr" if "x" not in text and not text.startswith("<tensor") else "!tt.tensordesc") + text


def _implied_results(op: Op) -> list[Ty]:
    """Result types where the printed form names operand types only."""
    row = lookup(op.name)
    if row is not None and row.result_type is not None:
        return [row.result_type(op.operand_types)]
    return [op.operand_types[0]] * len(op.results)


def _parse_for(op: Op, rest: str, tail: str) -> Op:
    """``%i = %lb to %ub step %st [iter_args(%a = %x, ...) -> (types)] : i32`` (``unsigned`` may precede)."""
    if rest.startswith("unsigned "):
        op.attrs["unsigned"] = True
        rest = rest.removeprefix("unsigned ")
    match = re.match(r"(%\S+) = (%\S+) to (%\S+) step (%[\w$.\-#]+)\s*(.*)$", rest)
    if match is None:
        raise ParseError(f"scf.for: {rest}")
    iv, lower, upper, step, more = match.groups()
    inits: list[str] = []
    names: list[str] = []
    iv_type = Ty("i32")
    if more.startswith("iter_args("):
        close = balanced(more, len("iter_args"), "(", ")")
        for pair in more[len("iter_args(") : close - 1].split(","):
            name, _, init = pair.partition("=")
            names.append(name.strip())
            inits.append(init.strip())
        types = more[close:].lstrip(" ->")
        end = balanced(types, 0, "(", ")") if types.startswith("(") else len(types)
        op.result_types = [parse_type(t) for t in type_list(types[:end])]
        more = types[end:]
    if ":" in more:
        iv_type = parse_type(more.rpartition(":")[2])
    op.operands = [lower, upper, step, *inits]
    op.operand_types = [iv_type] * 3 + op.result_types
    op.attrs["iv"] = iv
    op.attrs["iter_args"] = names
    if tail:
        _, attrs = take_attrs(tail)
        op.attrs.update(attrs)
    return op


def _parse_while(op: Op, rest: str) -> Op:
    """``(%a = %x, ...) : (types) -> types``; the ``do`` region's arguments are its first block's."""
    names: list[str] = []
    if rest.startswith("("):
        close = balanced(rest, 0, "(", ")")
        for pair in rest[1 : close - 1].split(","):
            if "=" in pair:
                name, _, init = pair.partition("=")
                names.append(name.strip())
                op.operands.append(init.strip())
        rest = rest[close:]
    signature = rest.lstrip(" :")
    at = _arrow(signature)
    op.operand_types = [parse_type(t) for t in type_list(signature[:at])]
    op.result_types = [parse_type(t) for t in type_list(signature[at + 2 :])]
    op.attrs["iter_args"] = names
    return op


def _parse_constant(op: Op, rest: str, signature: str) -> Op:
    ty = parse_type(signature or "i1")
    op.result_types = [ty]
    op.attrs["value"] = decode_constant(rest, ty)
    return op


def _arrow(text: str) -> int:
    """Index of the arrow between operand and result types."""
    at = next(top_level(text, "->"), -1)
    return at if at >= 0 else text.index("->")


def type_list(text: str) -> list[str]:
    """The types of ``(a, b)`` or ``a, b``."""
    text = text.strip()
    if text.startswith("(") and balanced(text, 0, "(", ")") == len(text):
        text = text[1:-1]
    return split_list(text)
