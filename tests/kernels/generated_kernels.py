"""Random integer kernels as source text: loads at affine and at scattered addresses, arithmetic, reductions, scans, loops
with data-dependent trip counts and branches that differ between programs.

``python generated_kernels.py SEED... --out FILE`` runs the kernels of those seeds, on whichever executor Triton has in that
process, and writes their results. Integers make every executor's result the same to the last bit.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch

SIZE = 1024
"""Elements of the input that kernels address; the buffer is larger by what scalar loads may reach."""
GRIDS = [(1, 1), (3, 1), (4, 3), (7, 2)]
BINARY = ["({a} + {b})", "({a} - {b})", "({a} * {b})", "({a} ^ {b})", "tl.minimum({a}, {b})", "tl.maximum({a}, {b})"]
UNARY = ["({a} * {k})", "({a} // {k})", "({a} % {k})", "({a} & {k})", "({a} << {s})", "({a} >> {s})"]


@dataclass
class Kernel:
    """Source of one kernel ``kernel(x_ptr, out_ptr, n)`` on a two-dimensional grid; ``tile`` elements per program."""

    seed: int
    grid: tuple[int, int]
    shape: tuple[int, int]
    n: int
    lines: list[str] = field(default_factory=list)

    @property
    def source(self) -> str:
        return "import triton\nimport triton.language as tl\n\n\n@triton.jit\n" + "\n".join(self.lines) + "\n"


class Writer:
    """Writes one kernel, statement by statement."""

    def __init__(self, seed: int) -> None:
        self.random = r = random.Random(seed)
        rows, columns = r.choice([1, 2, 4, 8, 16]), r.choice([1, 2, 4, 16, 32])
        self.kernel = Kernel(seed, r.choice(GRIDS), (rows, columns), r.choice([3, 6, 16, 50]))
        self.shape = f"[{rows}, {columns}]"
        names = ["rows", "cols", "p0", "p1", "(rows * 0 + n)", "(cols * 2 + p0)"]
        self.tiles = [self.full(name) for name in names] + ["(rows + cols)", "(rows * 16 + cols)"]
        self.made: list[str] = []

    def full(self, expression: str) -> str:
        return f"tl.broadcast_to({expression}, {self.shape})"

    def tile(self, depth: int) -> str:
        r = self.random
        if depth == 0 or r.random() < 0.15:
            return r.choice(self.tiles)
        a, b = self.tile(depth - 1), self.tile(depth - 1)
        kind = r.random()
        if kind < 0.5:
            return r.choice(BINARY).format(a=a, b=b)
        if kind < 0.9:
            return r.choice(UNARY).format(a=a, k=r.choice([2, 3, 7, 16]), s=r.choice([1, 2, 3]))
        return f"tl.where({self.condition(depth - 1)}, {a}, {b})"

    def condition(self, depth: int) -> str:
        r = self.random
        text = f"({self.tile(depth)} {r.choice(['<', '<=', '>', '>=', '==', '!='])} {r.choice([self.tile(0), '7'])})"
        if depth and r.random() < 0.3:
            text = f"({text} {r.choice('&|')} {self.condition(depth - 1)})"
        return text

    def address(self) -> str:
        r = self.random
        if r.random() < 0.5:
            strides = [r.choice(c) for c in ([0, 1, 3, 16, -2], [0, 1, 2, -1, 32], [0, 1, 8, -3], [0, 4, 64])]
            terms = [f"{name} * {s}" for name, s in zip(("rows", "cols", "p0", "p1"), strides, strict=True)]
            return f"({' + '.join(terms)} + {r.choice([0, 7, 200])})"
        return f"({self.tile(2)} & {SIZE - 1})"

    def line(self, text: str, indent: int = 1) -> None:
        self.kernel.lines.append("    " * indent + text)

    def name(self, expression: str) -> str:
        name = f"v{len(self.made)}"
        self.line(f"{name} = ({expression}).to(tl.int32)")
        self.made.append(name)
        self.tiles.append(name)
        return name

    def load(self) -> None:
        self.line(f"at = {self.address()}")
        mask = f"(at >= 0) & (at < {SIZE}) & {self.condition(1)}"
        self.name(f"tl.load(x_ptr + at, mask={self.full(mask)}, other={self.random.choice([0, -1, 5])})")

    def compute(self) -> None:
        self.name(self.tile(3))

    def reduce(self) -> None:
        axis, function = self.random.choice([0, 1]), self.random.choice(["sum", "max", "min", "xor_sum"])
        reduced = f"tl.{function}({self.random.choice(self.tiles)}, axis={axis})"
        self.name(self.full(f"tl.expand_dims({reduced}, {axis})"))

    def scan(self) -> None:
        self.name(f"tl.cumsum({self.random.choice(self.tiles)}, {self.random.choice([0, 1])})")

    def loop(self) -> None:
        total = self.name(self.tile(1))
        trips = self.random.choice(["p0", "(p0 + p1) % 3", "3", "(tl.load(x_ptr + p0 * 3 + p1) & 3)"])
        self.line(f"for i in range({trips}):")
        self.line(f"{total} = ({total} + {self.tile(2)} * i).to(tl.int32)", 2)
        self.line(f"{total} += tl.load(x_ptr + (({total} + i) & {SIZE - 1}))", 2)

    def branch(self) -> None:
        value = self.name(self.tile(1))
        self.line(f"if {self.random.choice(['p0 % 2 == 0', 'p0 > p1', '(tl.load(x_ptr + p0) & 1) == 0'])}:")
        self.line(f"{value} = ({self.tile(2)}).to(tl.int32)", 2)
        self.line("else:")
        self.line(f"{value} = ({value} + {self.tile(2)}).to(tl.int32)", 2)

    def write(self) -> Kernel:
        rows, columns = self.kernel.shape
        self.line("def kernel(x_ptr, out_ptr, n):", 0)
        self.line("p0, p1 = tl.program_id(0), tl.program_id(1)")
        self.line(f"rows, cols = tl.arange(0, {rows})[:, None], tl.arange(0, {columns})[None, :]")
        statements = [self.load, self.load, self.compute, self.reduce, self.scan, self.loop, self.branch]
        for _ in range(self.random.randrange(3, 8)):
            self.random.choice(statements)()
        total = " + ".join(f"{name} * {2 * k + 1}" for k, name in enumerate(self.made))
        target = f"out_ptr + (p1 * {self.kernel.grid[0]} + p0) * {rows * columns} + rows * {columns} + cols"
        self.line(f"tl.store({target}, {total}, mask={self.full(self.condition(2))})")
        return self.kernel


def run(seed: int, folder: Path) -> torch.Tensor:
    """Result of the kernel of ``seed``: int32, ``-7`` where its last mask lets nothing through."""
    kernel = Writer(seed).write()
    file = folder / f"kernel_{seed}.py"
    file.write_text(kernel.source)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    x = torch.randint(-100, 100, (SIZE + 64,), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    programs, elements = kernel.grid[0] * kernel.grid[1], kernel.shape[0] * kernel.shape[1]
    out = torch.full((programs * elements,), -7, dtype=torch.int32)
    module.kernel[kernel.grid](x, out, kernel.n)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--out", required=True)
    options = parser.parse_args(sys.argv[1:])
    with tempfile.TemporaryDirectory() as temporary:
        torch.save({seed: run(seed, Path(temporary)) for seed in options.seeds}, options.out)
