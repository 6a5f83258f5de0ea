"""Printed TTIR -> a tree of operations.

The printed text is the interface to Triton that has changed least between versions, and it is complete: the Python
bindings of MLIR lack float and dense constants, array attributes and branch successors. Operations stand one per
line; those with regions open a brace at the end of their line. Only the shapes of lines are known here; what an
operation means is known in :mod:`kernbench.triton_engine.ops`.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .types import Ty, parse_type, split_types


@dataclass(frozen=True)
class Loc:
    """A place in the user's source; ``callers`` are the call sites it was inlined at, innermost first."""

    file: str = "?"
    line: int = 0
    col: int = 0
    callers: tuple[Loc, ...] = ()

    def __str__(self) -> str:
        here = f"{self.file}:{self.line}"
        return here if not self.callers else f"{here}, called from {self.callers[0].file}:{self.callers[0].line}"

    @property
    def user(self) -> Loc:
        """The outermost call site: the line of the kernel itself."""
        return self.callers[-1] if self.callers else self


@dataclass
class Op:
    """One operation. ``operands`` and ``results`` are SSA names; ``groups`` keeps bracketed operand lists."""

    name: str
    operands: list[str]
    results: list[str]
    operand_types: list[Ty]
    result_types: list[Ty]
    attrs: dict[str, Any] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    groups: list[list[str]] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    successors: list[tuple[str, list[str]]] = field(default_factory=list)
    symbol: str = ""
    text: str = ""
    loc: Loc = field(default_factory=Loc)


@dataclass
class Block:
    label: str
    args: list[tuple[str, Ty]]
    ops: list[Op] = field(default_factory=list)


@dataclass
class Region:
    blocks: list[Block] = field(default_factory=list)


@dataclass
class Function:
    name: str
    args: list[tuple[str, Ty]]
    result_types: list[Ty]
    body: Region
    public: bool
    loc: Loc
    arg_attrs: list[str] = field(default_factory=list)


class ParseError(ValueError):
    """A line of TTIR that this version does not understand."""


_VALUE = re.compile(r"%[\w$.\-]+(?:#\d+)?")
_RESULTS = re.compile(r"^((?:%[\w$.\-]+(?::\d+)?(?:,\s*)?)+)\s*=\s*")
_LOC_DEF = re.compile(r"^(#loc\d*) = loc\((.*)\)$")
_FILE_LOC = re.compile(r'^"((?:[^"\\]|\\.)*)":(\d+):(\d+)$')
_NAME_LOC = re.compile(r'^"((?:[^"\\]|\\.)*)"\((.*)\)$')
_BLOCK = re.compile(r"^(\^\w+)(?:\((.*)\))?:")
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SUCCESSOR = re.compile(r"(\^\w+)(?:\(([^)]*)\))?")


class Locations:
    """The table of ``#locN = loc(...)`` lines at the end of the text."""

    def __init__(self, lines: list[str]) -> None:
        self.raw: dict[str, str] = {}
        for line in lines:
            if match := _LOC_DEF.match(line):
                self.raw[match[1]] = match[2]
        self.cache: dict[str, Loc] = {}

    def get(self, text: str) -> Loc:
        if text in self.cache:
            return self.cache[text]
        self.cache[text] = Loc()  # breaks cycles, which MLIR never prints
        self.cache[text] = loc = self._resolve(text)
        return loc

    def _resolve(self, text: str) -> Loc:
        text = text.strip()
        if text in self.raw:
            return self.get(self.raw[text])
        if match := _FILE_LOC.match(text):
            return Loc(match[1], int(match[2]), int(match[3]))
        if text.startswith("callsite("):
            callee, caller = _split_callsite(text[len("callsite(") : -1])
            inner, outer = self.get(callee), self.get(caller)
            if inner.line == 0:
                return outer
            return Loc(
                inner.file,
                inner.line,
                inner.col,
                (*inner.callers, Loc(outer.file, outer.line, outer.col), *outer.callers),
            )
        if match := _NAME_LOC.match(text):
            return self.get(match[2])
        if text.startswith("fused"):
            names = re.findall(r"#loc\d*", text)
            return self.get(names[-1]) if names else Loc()
        return Loc()


def _split_callsite(text: str) -> tuple[str, str]:
    depth = 0
    for i, ch in enumerate(text):
        if ch == "(":
            depth += 1
        elif ch == ")":
            depth -= 1
        elif depth == 0 and text.startswith(" at ", i):
            return text[:i], text[i + 4 :]
    return text, "unknown"


def _balanced(text: str, start: int, open_: str, close: str) -> int:
    """Index just past the bracket that closes the one at ``start``; strings are skipped."""
    depth, i, n = 0, start, len(text)
    while i < n:
        ch = text[i]
        if ch == '"':
            i = _STRING.match(text, i).end()  # type: ignore[union-attr]
            continue
        if ch == open_:
            depth += 1
        elif ch == close and not (close == ">" and text[i - 1] == "-"):
            depth -= 1
            if depth == 0:
                return i + 1
        i += 1
    raise ParseError(f"unbalanced {open_}{close}: {text}")


def _strip_locs(line: str) -> tuple[str, str]:
    """Remove every `` loc(...)``; return the line and the text of the last one."""
    last = ""
    at = line.find(" loc(")
    while at >= 0:
        end = _balanced(line, at + 4, "(", ")")
        last = line[at + 5 : end - 1]
        line = line[:at] + line[end:]
        at = line.find(" loc(")
    return line, last


class Parser:
    def __init__(self, text: str) -> None:
        lines = text.splitlines()
        self.locs = Locations([ln for ln in lines if ln.startswith("#loc")])
        self.lines = [ln.strip() for ln in lines if ln.strip() and not ln.startswith("#")]
        self.at = 0

    def module(self) -> dict[str, Function]:
        functions: dict[str, Function] = {}
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("tt.func"):
                fn = self.function()
                functions[fn.name] = fn
            else:
                self.at += 1
        return functions

    def function(self) -> Function:
        line = self.lines[self.at]
        self.at += 1
        header, _ = _strip_locs(line)
        match = re.match(r'tt\.func\s+(public|private|nested)?\s*@("(?:[^"]*)"|[\w$.\-]+)\(', header)
        if match is None:
            raise ParseError(f"function header: {header}")
        close = _balanced(header, match.end() - 1, "(", ")")
        args, arg_attrs = [], []
        for part in split_types_attr(header[match.end() : close - 1]):
            name, _, rest = part.partition(":")
            type_text, _, attr = rest.strip().partition(" {")
            args.append((name.strip(), parse_type(type_text)))
            arg_attrs.append(attr)
        results: list[Ty] = []
        rest = header[close:].strip()
        if rest.startswith("->"):
            rest = rest[2:].split(" attributes ")[0].removesuffix("{").strip()
            results = [parse_type(t) for t in _type_list(rest)]
        region, tail = self.region(entry_args=args)
        _, loc = _strip_locs(tail)
        return Function(
            match[2].strip('"'), args, results, region, match[1] != "private", self.locs.get(loc), arg_attrs
        )

    def region(self, entry_args: list[tuple[str, Ty]] | None = None) -> tuple[Region, str]:
        """Parse up to the line that closes the region; returns it too (it may open the next region)."""
        block = Block("^entry", list(entry_args or []))
        region = Region([block])
        while True:
            line = self.lines[self.at]
            if line.startswith("}"):
                self.at += 1
                return region, line
            if match := _BLOCK.match(_strip_locs(line)[0]):
                args = []
                if match[2]:
                    for part in split_types(match[2]):
                        name, _, type_text = part.partition(":")
                        args.append((name.strip(), parse_type(type_text)))
                if not block.ops and len(region.blocks) == 1 and not block.args:
                    block.label, block.args = match[1], args
                else:
                    block = Block(match[1], args)
                    region.blocks.append(block)
                self.at += 1
                continue
            block.ops.append(self.op())

    def op(self) -> Op:
        line = self.lines[self.at]
        self.at += 1
        body, loc_text = _strip_locs(line)
        regions: list[Region] = []
        tail = ""
        if body.endswith("{"):
            body = body.removesuffix("{").removesuffix("(").rstrip()
            while True:
                region, tail = self.region()
                regions.append(region)
                if not tail.endswith("{"):
                    break
            tail, loc_text = _strip_locs(tail)
            tail = tail.lstrip("})").strip()
        op = _parse_op(body, tail)
        op.regions = regions
        op.loc = self.locs.get(loc_text)
        return op


def split_types_attr(text: str) -> list[str]:
    """Split function arguments at commas outside of any bracket, attribute braces included."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(text):
        ch = text[i]
        if ch == '"':
            i = _STRING.match(text, i).end()  # type: ignore[union-attr]
            continue
        if ch in "<([{":
            depth += 1
        elif ch in ")]}" or (ch == ">" and text[i - 1] != "-"):
            depth -= 1
        elif ch == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
        i += 1
    if text[start:].strip():
        parts.append(text[start:].strip())
    return parts


def _type_list(text: str) -> list[str]:
    text = text.strip()
    if text.startswith("(") and _balanced(text, 0, "(", ")") == len(text):
        text = text[1:-1]
    return split_types(text)


def _find_signature(text: str) -> int:
    """Index of the last `` : `` outside any bracket or string, or -1."""
    depth, found, i = 0, -1, 0
    while i < len(text):
        ch = text[i]
        if ch == '"':
            i = _STRING.match(text, i).end()  # type: ignore[union-attr]
            continue
        if ch in "<([{":
            depth += 1
        elif ch in ")]}" or (ch == ">" and text[i - 1] != "-"):
            depth -= 1
        elif depth == 0 and text.startswith(" : ", i):
            found = i
        i += 1
    return found


def _parse_op(body: str, tail: str) -> Op:
    results: list[str] = []
    if match := _RESULTS.match(body):
        for name in match[1].split(","):
            name, _, count = name.strip().partition(":")
            results += [f"{name}#{i}" for i in range(int(count))] if count else [name]
        body = body[match.end() :]
    text = body
    if body.startswith('"'):  # generic form: "tt.reduce"(%a) <{axis = 0 : i32}> ({...}) : (types) -> types
        match = _STRING.match(body)
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
        return _parse_while(op, rest, tail)
    signature = ""
    if tail.startswith(":"):
        signature, tail = tail[1:].strip(), ""
    rest, op.attrs = _take_attrs(rest)
    if tail:
        _, more = _take_attrs(tail)
        op.attrs.update(more)
    if name == "scf.if":
        cond, _, types = rest.partition("->")
        op.operands = _VALUE.findall(cond)
        op.operand_types = [Ty("i1")]
        op.result_types = [parse_type(t) for t in _type_list(types)] if types else []
        return op
    if not signature:
        at = _find_signature(" " + rest)
        if at >= 0:
            at = max(at - 1, 0)
            rest, signature = rest[:at], rest[at:].lstrip(" :").strip()
    if name == "arith.constant":
        return _parse_constant(op, rest, signature)
    if name in ("cf.br", "cf.cond_br"):
        plain = re.sub(r":[^)]*\)", ")", rest)
        op.successors = [(s[0], _VALUE.findall(s[1])) for s in _SUCCESSOR.findall(plain)]
        op.operands = _VALUE.findall(plain.split("^")[0])
        return op
    strings = _STRING.findall(rest)
    if strings:
        op.attrs["string"] = strings[0]
        rest = _STRING.sub(" ", rest)
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
    if "->" in signature:
        depth_at = _top_arrow(signature)
        op.operand_types = [
            parse_type(_abbrev(t)) for part in signature[:depth_at].split(" * ") for t in _type_list(part)
        ]
        op.result_types = [parse_type(t) for t in _type_list(signature[depth_at + 2 :])]
    elif " to " in signature:
        left, _, right = signature.partition(" to ")
        op.operand_types, op.result_types = [parse_type(left)], [parse_type(right)]
    elif signature:
        op.operand_types = [parse_type(_abbrev(t)) for t in _type_list(signature)]
        op.result_types = _implied_results(op) if op.results else []
    if op.result_types and len(op.result_types) < len(op.results):  # tt.split prints its type once
        op.result_types = op.result_types[:1] * len(op.results)


def _abbrev(text: str) -> str:
    """Types printed without their prefix: ``<f16>`` (a pointer), ``<tensor<..>>`` (a descriptor)."""
    if text.startswith("<tensor"):
        return "!tt.tensordesc" + text
    return (
        "!tt.ptr" + text
        if text.startswith("<") and "x" not in text
        else ("!tt.tensordesc" + text if text.startswith("<") else text)
    )


def _top_arrow(text: str) -> int:
    depth = 0
    for i, ch in enumerate(text):
        if ch in "<([":
            depth += 1
        elif ch in ")]" or (ch == ">" and text[i - 1] != "-"):
            depth -= 1
        elif ch == "-" and depth == 0 and text[i + 1] == ">":
            return i
    return text.index("->")


def _implied_results(op: Op) -> list[Ty]:
    """Result types where the printed form names operand types only."""
    types = op.operand_types
    if op.name in ("arith.cmpi", "arith.cmpf"):
        return [Ty("i1", types[0].shape)]
    if op.name == "tt.load":
        return [Ty(types[0].pointee, types[0].shape) if types[0].pointee != "ptr" else Ty("ptr", types[0].shape, "i8")]
    if op.name in ("arith.select", "tt.make_tensor_descriptor"):
        return [types[-1]]
    return [types[0]] * len(op.results)


_ATTR_OPEN = re.compile(r"<?\{")


def _take_attrs(text: str) -> tuple[str, dict[str, Any]]:
    """Cut the ``{...}`` or ``<{...}>`` dictionaries out of a line."""
    attrs: dict[str, Any] = {}
    at = 0
    while match := _ATTR_OPEN.search(text, at):
        inside_string = any(s.start() < match.start() < s.end() for s in _STRING.finditer(text))
        if inside_string:
            at = match.end()
            continue
        brace = match.end() - 1
        end = _balanced(text, brace, "{", "}")
        for part in split_types_attr(text[brace + 1 : end - 1]):
            key, _, value = part.partition("=")
            attrs[key.strip()] = _attr_value(value.strip())
        if match[0].startswith("<") and text[end : end + 1] == ">":
            end += 1
        text = text[: match.start()] + " " + text[end:]
        at = match.start()
    return text.strip(), attrs


def _attr_value(text: str) -> Any:
    if text in ("", "true", "unit"):
        return True
    if text == "false":
        return False
    if text.startswith('"'):
        return text[1 : text.rindex('"')]
    if text.startswith("array<"):
        body = text[6:-1].partition(":")[2]
        return [
            True if v.strip() == "true" else False if v.strip() == "false" else int(v)
            for v in body.split(",")
            if v.strip()
        ]
    if match := re.match(r"^(-?\d+)(?: : \w+)?$", text):
        return int(match[1])
    return text


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
        close = _balanced(more, len("iter_args"), "(", ")")
        for pair in more[len("iter_args(") : close - 1].split(","):
            name, _, init = pair.partition("=")
            names.append(name.strip())
            inits.append(init.strip())
        types = more[close:].lstrip(" ->")
        end = _balanced(types, 0, "(", ")") if types.startswith("(") else len(types)
        op.result_types = [parse_type(t) for t in _type_list(types[:end])]
        more = types[end:]
    if ":" in more:
        iv_type = parse_type(more.rpartition(":")[2])
    op.operands = [lower, upper, step, *inits]
    op.operand_types = [iv_type] * 3 + op.result_types
    op.attrs["iv"] = iv
    op.attrs["iter_args"] = names
    if tail:
        _, attrs = _take_attrs(tail)
        op.attrs.update(attrs)
    return op


def _parse_while(op: Op, rest: str, tail: str) -> Op:
    """``(%a = %x, ...) : (types) -> types``; the ``do`` region's arguments are its first block's."""
    names: list[str] = []
    if rest.startswith("("):
        close = _balanced(rest, 0, "(", ")")
        for pair in rest[1 : close - 1].split(","):
            if "=" in pair:
                name, _, init = pair.partition("=")
                names.append(name.strip())
                op.operands.append(init.strip())
        rest = rest[close:]
    signature = rest.lstrip(" :")
    at = _top_arrow(signature)
    op.operand_types = [parse_type(t) for t in _type_list(signature[:at])]
    op.result_types = [parse_type(t) for t in _type_list(signature[at + 2 :])]
    op.attrs["iter_args"] = names
    return op


def _parse_constant(op: Op, rest: str, signature: str) -> Op:
    rest = rest.strip()
    if not signature:
        signature = "i1"
    op.result_types = [parse_type(signature)]
    ty = op.result_types[0]
    if rest.startswith("dense<"):
        inner = rest[6:-1]
        if inner.startswith('"0x'):
            data = bytes.fromhex(inner[3:-1])
            op.attrs["value"] = _dense_bytes(data, ty)
        elif inner.startswith("["):
            flat = [decode_number(v, ty.elem) for v in re.findall(r"[^\[\],\s]+", inner)]
            op.attrs["value"] = np.array(flat).reshape(ty.shape)
        else:
            op.attrs["value"] = decode_number(inner, ty.elem)
    else:
        op.attrs["value"] = decode_number(rest, ty.elem)
    return op


def _dense_bytes(data: bytes, ty: Ty) -> Any:
    import torch

    return torch.frombuffer(bytearray(data), dtype=ty.dtype).reshape(ty.shape)


_FLOAT_BITS = {"f16": "<e", "f32": "<f", "f64": "<d"}


def decode_number(text: str, elem: str) -> int | float | bool:
    """An MLIR number; hexadecimal floats are bit patterns (``0xFF800000`` is -inf in f32)."""
    if text in ("true", "false"):
        return text == "true"
    if not elem.startswith(("f", "bf")):
        return int(text, 0)
    if not text.startswith(("0x", "-0x")):
        return float(text)
    bits = int(text, 16)
    if elem in _FLOAT_BITS:
        fmt = _FLOAT_BITS[elem]
        value: float = struct.unpack(fmt, bits.to_bytes(struct.calcsize(fmt), "little"))[0]
        return value
    if elem == "bf16":
        return struct.unpack("<f", (bits << 16).to_bytes(4, "little"))[0]
    import torch

    raw = torch.tensor([bits], dtype=torch.uint8).view(Ty(elem).dtype)
    return float(raw.to(torch.float32).item())


def parse_module(text: str) -> dict[str, Function]:
    """All functions of a printed TTIR module, by name."""
    return Parser(text).module()
