"""The table of operations is the one place that knows them by name."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import kernbench.triton_engine.ops.registry as registry

ROOM = Path(registry.__file__).parents[1]
#: What the front end turns into blocks, jumps and constants, and the operations that it makes of a branch.
STRUCTURE = {
    "arith.constant", "ub.poison", "arith.select", "arith.andi", "arith.ori", "arith.xori", "cf.br", "cf.cond_br",
    "scf.condition", "scf.for", "scf.if", "scf.while", "scf.yield", "tt.call", "tt.func", "tt.return",
}  # fmt: skip


def names_in(file: Path) -> set[str]:
    """Names of operations that stand in a module as strings."""
    strings = {n.value for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Constant)}
    return {s for s in strings if isinstance(s, str) and re.fullmatch(r"(tt|ttg|arith|math|cf|scf|ub|gpu)\.\w+", s)}


def test_only_rows_and_the_front_end_name_operations():
    front, elsewhere = set(), {}
    for file in ROOM.rglob("*.py"):
        if file.parent.name == "frontend":
            front |= names_in(file)
        elif file.parent.name != "ops" and (names := names_in(file)):
            elsewhere[file.name] = names
    assert elsewhere == {}
    assert front == STRUCTURE


registry.lookup("tt.load")  # fills the table


@pytest.mark.parametrize("name", registry.TABLE)
def test_a_row_does_not_contradict_itself(name):
    row = registry.TABLE[name]
    assert not (row.pure and (row.reads or row.writes)), "what touches memory depends on it"
    assert row.writes or (row.stores is None and not row.atomic)
    assert row.addressing or not row.frontier, "scalars that lanes are laid out by are worth knowing before"
    assert bool(row.unit) == (bool(row.flops) and row.work is None), "a unit belongs to a number of operations"
    assert row.work is not None or not row.product
    assert row.into is None or row.inplace, "what can be computed into memory can be computed over an operand"
    assert not (row.inplace and row.alias), "a view has no memory of its own"
