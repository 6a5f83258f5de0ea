"""Printed TTIR -> a tree of operations.

The printed text is the interface to Triton that has changed least between versions, and it is complete: the Python
bindings of MLIR lack float and dense constants, array attributes and branch successors. Operations stand one per
line; those with regions open a brace at the end of their line. Only the shapes of lines are known here; what an
operation means is known in :mod:`kernbench.triton_engine.ops`.
"""

from __future__ import annotations

import re

from .brackets import ParseError, balanced, split_list
from .locations import Locations, strip_locs
from .operations import parse_op, type_list
from .tree import Function, Op, Region, RegionBlock
from .types import Ty, parse_type

_BLOCK = re.compile(r"^(\^\w+)(?:\((.*)\))?:")


class Parser:
    """Goes through the lines of one printed module."""

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
        header, _ = strip_locs(line)
        match = re.match(r'tt\.func\s+(public|private|nested)?\s*@("(?:[^"]*)"|[\w$.\-]+)\(', header)
        if match is None:
            raise ParseError(f"function header: {header}")
        close = balanced(header, match.end() - 1, "(", ")")
        args = []
        for part in split_list(header[match.end() : close - 1]):
            name, _, rest = part.partition(":")
            args.append((name.strip(), parse_type(rest.strip().partition(" {")[0])))
        results: list[Ty] = []
        rest = header[close:].strip()
        if rest.startswith("->"):
            rest = rest[2:].split(" attributes ")[0].removesuffix("{").strip()
            results = [parse_type(t) for t in type_list(rest)]
        region, tail = self.region(entry_args=args)
        _, loc = strip_locs(tail)
        return Function(match[2].strip('"'), args, results, region, match[1] != "private", self.locs.get(loc))

    def region(self, entry_args: list[tuple[str, Ty]] | None = None) -> tuple[Region, str]:
        """Parse up to the line that closes the region; returns it too (it may open the next region)."""
        block = RegionBlock("^entry", list(entry_args or []))
        region = Region([block])
        while True:
            line = self.lines[self.at]
            if line.startswith("}"):
                self.at += 1
                return region, line
            if line.startswith("^") and (match := _BLOCK.match(strip_locs(line)[0])):
                args = []
                if match[2]:
                    for part in split_list(match[2]):
                        name, _, type_text = part.partition(":")
                        args.append((name.strip(), parse_type(type_text)))
                if not block.ops and len(region.blocks) == 1 and not block.args:
                    block.label, block.args = match[1], args
                else:
                    block = RegionBlock(match[1], args)
                    region.blocks.append(block)
                self.at += 1
                continue
            block.ops.append(self.op())

    def op(self) -> Op:
        line = self.lines[self.at]
        self.at += 1
        body, loc_text = strip_locs(line)
        regions: list[Region] = []
        tail = ""
        if body.endswith("{"):
            body = body.removesuffix("{").removesuffix("(").rstrip()
            while True:
                region, tail = self.region()
                regions.append(region)
                if not tail.endswith("{"):
                    break
            tail, loc_text = strip_locs(tail)
            tail = tail.lstrip("})").strip()
        op = parse_op(body, tail)
        op.regions = regions
        op.loc = self.locs.get(loc_text)
        return op


def parse_module(text: str) -> dict[str, Function]:
    """All functions of a printed TTIR module, by name."""
    return Parser(text).module()
