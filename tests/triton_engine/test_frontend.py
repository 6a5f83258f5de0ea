"""Text to tree to program."""

from __future__ import annotations

import math

import pytest

from kernbench.triton_engine.frontend.literals import decode_number
from kernbench.triton_engine.frontend.lower import lower_ttir
from kernbench.triton_engine.frontend.parse import parse_module
from kernbench.triton_engine.frontend.types import Ty, parse_type
from kernbench.triton_engine.ops.registry import UnsupportedOpError

TTIR = """
#loc = loc("kernel.py":1:0)
module {
  tt.func public @k(%x: !tt.ptr<f32> loc("x"(#loc)), %n: i32 loc("n"(#loc))) attributes {noinline = false} {
    %c4_i32 = arith.constant 4 : i32 loc(#loc1)
    %cst = arith.constant dense<0xFF800000> : tensor<4xf32> loc(#loc1)
    %pid = tt.get_program_id x : i32 loc(#loc2)
    %o = arith.muli %pid, %c4_i32 : i32 loc(#loc2)
    %r = tt.make_range {end = 4 : i32, start = 0 : i32} : tensor<4xi32> loc(#loc2)
    %s = tt.splat %o : i32 -> tensor<4xi32> loc(#loc2)
    %i = arith.addi %s, %r : tensor<4xi32> loc(#loc3)
    %p = tt.splat %x : !tt.ptr<f32> -> tensor<4x!tt.ptr<f32>> loc(#loc3)
    %q = tt.addptr %p, %i : tensor<4x!tt.ptr<f32>>, tensor<4xi32> loc(#loc3)
    tt.store %q, %cst : tensor<4x!tt.ptr<f32>> loc(#loc3)
    BODY
    tt.return loc(#loc1)
  } loc(#loc)
} loc(#loc)
#loc1 = loc(unknown)
#loc2 = loc("kernel.py":5:10)
#loc3 = loc(callsite(#loc2 at #loc4))
#loc4 = loc("o"("kernel.py":9:3))
"""


def test_types():
    assert parse_type("tensor<64x32x!tt.ptr<f16>>") == Ty("ptr", (64, 32), "f16")
    assert parse_type("!tt.ptr<!tt.ptr<i8>>") == Ty("ptr", (), "ptr")
    assert parse_type("!tt.tensordesc<tensor<8x16xbf16>>") == parse_type("!tt.tensordesc<8x16xbf16>")
    assert parse_type("tensor<4xi1>").numel == 4


@pytest.mark.parametrize(
    ("text", "elem", "value"),
    [
        ("0xFF800000", "f32", -math.inf),
        ("0x3C00", "f16", 1.0),
        ("0x3F80", "bf16", 1.0),
        ("1.500000e+00", "f64", 1.5),
        ("-7", "i32", -7),
        ("true", "i1", True),
    ],
)
def test_numbers(text, elem, value):
    assert decode_number(text, elem) == value


def test_structure_and_source_lines():
    function = parse_module(TTIR.replace("BODY", ""))["k"]
    ops = {op.results[0]: op for op in function.body.blocks[0].ops if op.results}
    assert ops["%cst"].attrs["value"] == -math.inf
    assert ops["%r"].attrs == {"end": 4, "start": 0}
    assert (ops["%i"].loc.line, ops["%i"].loc.user.line) == (5, 9)
    assert ops["%q"].result_types == [Ty("ptr", (4,), "f32")]


def test_index_arithmetic_is_taken_out():
    program = lower_ttir(TTIR.replace("BODY", ""))
    assert [i.info.name for i in program.blocks[0].instrs] == ["tt.store"]
    assert program.invariant[-1].info.name == "tt.addptr"
    assert not program.waits


def test_unknown_operation_names_itself_and_its_line():
    with pytest.raises(UnsupportedOpError, match=r"tt\.teleport is not supported\s+at kernel\.py:5"):
        lower_ttir(TTIR.replace("BODY", "%z = tt.teleport %n : i32 loc(#loc2)"))
