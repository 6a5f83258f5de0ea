"""Assumed numbers say so wherever Python turns them into text or hands them on; where they cannot, the line is named."""

from __future__ import annotations

import ast
import json
import logging
import math
import statistics
import struct
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import kernbench
from kernbench.runtime_api.launcher import RankProgram, run_ranks
from kernbench.torch_backend.hollow.assumed_numbers import AssumedFloat
from kernbench.torch_backend.rank_state import marked_source

HEAD = """\
import csv, io, json, logging, math, pickle, statistics, struct, sys
import math as m
from math import exp
import numpy as np
import torch
FORMAT, ARGS = "%5.2f %d", {"x": 1}
loss_tensor = torch.randn(4096, device="cuda").square().mean()
loss = loss_tensor.item()
half = loss / 2
count = (torch.randint(0, 8, (4096,), device="cuda") == 3).sum().item() + 3
known = torch.arange(3, device="cuda").sum().item()
best = 5.0
def text_of(write):
    file = io.StringIO()
    write(file)
    return file.getvalue()
def log(*args, **options):
    record = logging.LogRecord("program", 20, "program.py", 1, args[0], args[1:], None)
    return logging.Formatter("%(message)s").format(record)
def after(tensor, change):
    change(tensor)
    return tensor.tolist()
zeros = lambda: torch.zeros(2, device="cuda")
def into(tensor, value):
    tensor[0] = value
    tensor[1] += value
    return tensor if type(tensor) is list else tensor.tolist()
def show(what):
    with open(sys.argv[1], "a") as file:
        print(repr(str(what)), file=file)
"""
"""``loss`` is 1, ``half`` is 0.5, ``count`` is 3, all assumed; ``known`` is 3."""

KEPT: dict[str, str] = {
    'f"{loss:.2f}"': "1.00?",
    '"{:8.3f}|{:<8.3f}|{:+}".format(half, half, half)': "  0.500?|0.500?  |+0.5?",
    'str(loss) + repr(count)': "1.0?3?",
    '"%.4f" % loss': "1.0000?",
    '"%g" % half': "0.5?",
    '"%d%%" % count': "3?%",
    '"%i of %5d|%-5d|" % (count, count, count)': "3? of    3?|3?   |",
    '"%s %r %.1e" % (loss, count, half)': "1.0? 3? 5.0e-01?",
    '"%(a).2f %(b)s" % {"a": loss, "b": "x"}': "1.00? x",
    '"%*.*f" % (8, 2, half)': "   0.50?",
    "FORMAT % (loss, known)": "1.00? 3",
    '("a %d " + "b %d") % (known, count)': "a 3 b 3?",
    '"%.2f" % loss_tensor': "1.00?",
    '"%.2f %s" % (known, "plain")': "3.00 plain",
    "7 % 4, -7.5 % 2": "(3, 0.5)",
    "half % 0.3, 7 % count": "(0.2?, 1?)",
    "float(loss), float(count), float(loss_tensor)": "(1.0?, 3.0?, 1.0?)",
    "int(half * 7), int(loss_tensor), int('12', 8), float('2.5')": "(3?, 1?, 10, 2.5)",
    "round(half, 1), round(half * 3), math.floor(half), math.ceil(half), math.trunc(half)": "(0.5?, 2?, 0?, 1?, 0?)",
    "-half, abs(half), half ** 2, 2 ** half, divmod(count, 2)": f"(-0.5?, 0.5?, 0.25?, {2**0.5}?, (1?, 1?))",
    "count + 1, count / 4, count // 2, count * 2.0, -count, sum([count, 1])": "(4?, 0.75?, 1?, 6.0?, -3?, 4?)",
    "100.0 * count / 4, 1.5 - count, 2.0 * known, 2.0 ** half": f"(75.0?, -1.5?, 6.0, {2**0.5}?)",
    "half.real, half.conjugate(), min(half, 2.0), max([count, 1]), sorted([3.0, half])": "(0.5?, 0.5?, 0.5?, 3?, [0.5?, 3.0])",
    "math.exp(half), m.sqrt(half), exp(half), math.log(half)": (
        f"({math.exp(0.5)}?, {math.sqrt(0.5)}?, {math.exp(0.5)}?, {math.log(0.5)}?)"
    ),
    "math.exp(loss_tensor), f'{math.sqrt(loss_tensor):.2f}'": f"({math.exp(1.0)}?, '1.00?')",
    "math.exp(2.0), math.hypot(3, 4.0)": f"({math.exp(2.0)}, 5.0)",
    "math.fsum([half, 1]), math.hypot(half, half)": f"(1.5?, {math.hypot(0.5, 0.5)}?)",
    "statistics.mean([half, 1.0]), statistics.fmean([half, 1.0]), statistics.median([half, 1.0, 0.0])": "(0.75?, 0.75?, 0.5?)",
    "statistics.stdev([half, 1.0])": f"{statistics.stdev([0.5, 1.0])}?",
    'log("loss %.4f, step %d", loss, 3)': "loss 1.0000?, step 3",
    'log("loss %.4f", loss_tensor)': "loss 1.0000?",
    'log("%(loss)g", {"loss": half})': "0.5?",
    'log("no arguments 100%")': "no arguments 100%",
    'text_of(lambda file: csv.writer(file).writerow([loss, count]))': "1.0?,3?\r\n",
    'text_of(lambda file: print({"loss": loss, "of": [count]}, file=file))': "{'loss': 1.0?, 'of': [3?]}\n",
    "pickle.loads(pickle.dumps([loss, count]))": "[1.0?, 3?]",
    "torch.tensor([half, 2.0]).tolist(), torch.tensor(count, device='cuda').item()": "([0.5?, 2.0?], 3?)",
    "torch.as_tensor(half).item(), torch.full((2,), half).tolist(), zeros().new_tensor([half]).tolist()": (
        "(0.5?, [0.5?, 0.5?], [0.5?])"
    ),
    "zeros().new([half]).tolist(), zeros().new(data=(count,)).tolist()": "([0.5?], [3.0?])",
    "zeros().new([0.5]).tolist(), zeros().new(count).shape": "([0.5], torch.Size([3]))",
    "torch.Tensor([half]).tolist(), torch.Tensor([[count], [1]]).cuda().tolist(), torch.Tensor([0.5]).tolist()": (
        "([0.5?], [[3.0?], [1.0?]], [0.5])"
    ),
    "torch.nn.Parameter(zeros()).tolist(), torch.Tensor(zeros().cpu() * 0).tolist()": "([0.0, 0.0], [0.0, 0.0])",
    "after(zeros(), lambda t: t.__setitem__(0, half))": "[0.5?, 0.0?]",
    "after(zeros(), lambda t: t.add_(half)), (zeros() + half).tolist(), (half - zeros()).tolist()": (
        "([0.5?, 0.5?], [0.5?, 0.5?], [0.5?, 0.5?])"
    ),
    "after(zeros(), lambda t: torch._foreach_mul_([t], half)), torch.where(zeros() > 0, zeros(), half).tolist()": (
        "([0.0?, 0.0?], [0.5?, 0.5?])"
    ),
    "zeros().view(count - 1, 1).tolist(), zeros().split([count - 2, 1])[0].tolist()": "([[0.0], [0.0]], [0.0])",
    "into(zeros(), count), into(zeros(), known), into([0, 1], count)": "([3.0?, 3.0?], [3.0, 3.0], [3?, 4?])",
    "zeros().new_empty(count, 2).shape, torch.zeros(count, 2).shape, zeros().expand(count, 2).shape": (
        "(torch.Size([3, 2]), torch.Size([3, 2]), torch.Size([3, 2]))"
    ),
    "torch.tensor([1.0, 2.0]).tolist(), torch.tensor(known).item()": "([1.0, 2.0], 3)",
}  # fmt: skip

LOST: dict[str, tuple[str, str]] = {
    'json.dumps({"loss": loss, "more": [half]})': (json.dumps({"loss": 1.0, "more": [0.5]}), "json"),
    "json.dumps([half], indent=1)": (json.dumps([0.5], indent=1), "json"),
    "text_of(lambda file: json.dump(half, file))": ("0.5", "json"),
    "struct.pack('<d', half)": (str(struct.pack("<d", 0.5)), "struct"),
    "np.mean([half, 1.0]).item()": ("0.75", "float"),
    "np.asarray(count).item()": ("3", "int"),
    "half.hex()": ((0.5).hex(), "hex"),
}

STEERS: dict[str, tuple[str, str]] = {
    "'better' if loss < best else 'worse'": ("better", "< was True"),
    "bool(half)": ("True", "truth was True"),
    "[3].index(count)": ("0", "== was True"),
}

PLAIN = ('json.dumps({"a": 1.5})', "struct.pack('<d', 1.5)", "'less' if known < 4 else 'more'", "np.mean([1.0])")


class Ran:
    """A program that shows each expression on a line of its own, and what was noted of its lines."""

    def __init__(self, folder: Path, isolation: str = "carrier") -> None:
        self._expressions = [*KEPT, *LOST, *STEERS, *PLAIN]
        self._first = HEAD.count("\n") + 1
        path = folder / "program.py"
        path.write_text(HEAD + "".join(f"show(({each}))\n" for each in self._expressions))
        written = folder / "shown"
        with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
            program = RankProgram.script(str(path), [str(written)])
            run_ranks(ctx, program, nproc_per_node=1, isolation=isolation)
            self._uses = ctx.simulation.assumptions.uses
            self.notes = ctx.simulation.assumptions.notes
        self._shown = list(map(ast.literal_eval, written.read_text().splitlines()))

    def text(self, expression: str) -> str:
        return str(self._shown[self._expressions.index(expression)])

    def said(self, expression: str) -> list[str]:
        line = self._first + self._expressions.index(expression)
        return [
            f"{use.entry} was {use.answer}" if use.answer else use.entry for use in self._uses if use.where.line == line
        ]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("marks"))


@pytest.mark.parametrize("expression", KEPT)
def test_the_mark_stays(ran: Ran, expression: str) -> None:
    assert ran.text(expression) == KEPT[expression]


@pytest.mark.parametrize("expression", LOST)
def test_what_cannot_have_a_mark_is_named(ran: Ran, expression: str) -> None:
    text, entry = LOST[expression]
    assert ran.text(expression) == text
    assert ran.said(expression) == [entry]


@pytest.mark.parametrize("expression", STEERS)
def test_a_line_that_compares_is_named(ran: Ran, expression: str) -> None:
    assert (ran.text(expression), ran.said(expression)) == (STEERS[expression][0], [STEERS[expression][1]])


@pytest.mark.parametrize("expression", [*KEPT, *PLAIN])
def test_nothing_else_is_named(ran: Ran, expression: str) -> None:
    assert [said for said in ran.said(expression) if " was " not in said] == []


def test_the_summary_has_the_lines_also_of_ranks_that_are_processes(ran: Ran, tmp_path: Path) -> None:
    theirs = Ran(tmp_path, isolation="process")
    for mine, other in zip(ran.notes, theirs.notes, strict=True):
        assert mine.partition("program.py:")[2] == other.partition("program.py:")[2]
    assert any(note.startswith("without its mark: json at ") and note.endswith(" (rank 0)") for note in ran.notes)
    assert any(note.startswith("steered by an assumed number: < at ") for note in ran.notes)


def test_modules_of_the_program_are_compiled_so_and_leave_no_file(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "reporting.py").write_text('def line(loss):\n    return "loss %.3f" % loss\n')
    (tmp_path / "main.py").write_text(
        'import reporting, torch\nprint(reporting.line(torch.randn(4096, device="cuda").square().mean().item()))\n'
    )
    for data, expected in ((False, "loss 1.000?"), (True, "loss ")):
        with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
            run_ranks(ctx, RankProgram.script(str(tmp_path / "main.py"), []), nproc_per_node=2, prefix=False)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 2
        assert all(line.startswith(expected) and line.endswith("?") is not data for line in lines)
        if not data:
            assert not list(tmp_path.glob("__pycache__/reporting*"))


PYTHONS = {
    "mod": ('"%s-%d" % ("a", 3)', "a-3"),
    "star": ('(lambda *a: "%*d" % a)(4, 3)', "   3"),
    "bytes": ('b"%d" % (3,)', b"3"),
    "one": ("float('1e3') + int(x='3') if False else int('11', base=2)", 3),
    "remainder": ("(lambda a, b: a % b)(7, 4)", 3),
    "shadowed": ("(lambda float: float('x'))(len)", 1),
    "other module": ("(lambda math: math.sqrt(4))(numpy)", 2.0),
}


@pytest.mark.parametrize("name", PYTHONS)
def test_for_other_values_the_code_does_what_python_does(name: str) -> None:
    text, expected = PYTHONS[name]
    scope = {}
    exec(marked_source.compiled(f"import math, numpy\nfound = {text}\n", "x.py"), scope)
    assert scope["found"] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('float("{:.3g}".format(number))', "1.23?"),
        ('float(f"{number:.1f} ") + 1', "2.2?"),
        ('int("%d" % number)', "1?"),
        ('float("nan?".strip("?"))', "nan"),
    ],
)
def test_a_text_of_an_assumed_number_is_read_as_one(text: str, expected: str) -> None:
    """As programs round numbers."""
    scope: dict[str, Any] = {"number": AssumedFloat(1.2345)}
    exec(marked_source.compiled(f"import math\nfound = {text}\n", "x.py"), scope)
    assert str(scope["found"]) == expected


@pytest.mark.parametrize(
    "text", ['"%d" % "a"', "float('x?')", '"%d %d" % (1,)', '"%d" % (1, 2)', "float('x')", "int(1, 2, 3)"]
)
def test_errors_are_pythons_at_their_lines(text: str) -> None:
    with pytest.raises((TypeError, ValueError)) as pythons:  # its words differ between versions
        eval(text)
    with pytest.raises(pythons.type) as caught:
        exec(marked_source.compiled(f"first = 1\n{text}\n", "x.py"), {})
    assert str(caught.value) == str(pythons.value)
    assert [frame.lineno for frame in caught.traceback if str(frame.path).endswith("x.py")] == [1]


def test_a_compiled_function_is_traced_as_pythons_own(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "main.py").write_text(
        textwrap.dedent("""
        import math, torch
        @torch.compile(fullgraph=True, backend="eager")
        def scaled(x, by):
            return x / math.sqrt(x.shape[-1]) * float(x.shape[0]) + int(x.shape[0] / 2) + by
        print(scaled(torch.ones(2, 4), 2.0).tolist()[0])
        loss = torch.randn(4096, device="cuda").square().mean().item()
        print(scaled(torch.ones(2, 4), loss).shape, "%.1f" % loss)
    """)
    )
    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        run_ranks(ctx, RankProgram.script(str(tmp_path / "main.py"), []), nproc_per_node=1, prefix=False)
    assert capsys.readouterr().out.splitlines() == [str([2 / math.sqrt(4) + 1 + 2.0] * 4), "torch.Size([2, 4]) 1.0?"]


def test_ranks_bodies_that_were_imported_before_have_their_log_records_marked() -> None:
    found: list[str] = []

    def body(rank: int) -> None:
        loss = torch.randn(4096, device="cuda").square().mean().item()
        record = logging.LogRecord("program", 20, "program.py", 1, "loss %.3f", (loss,), None)
        found.append(record.getMessage())

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
    assert found == ["loss 1.000?"]
