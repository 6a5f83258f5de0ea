"""Hostile input: valid files and options, mutated in their bytes, tokens and structure; and what a command may make of it.

A command may succeed, or end with 2 and one line per problem, short and printable,
without a traceback. Anything else is a
failure: another exception, another exit code, more than :data:`SECONDS` of processor time.

:func:`fuzz` draws inputs from a seed, so that a part of a run can be drawn again, and keeps what fails as a file.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from kernbench.cli import app
from kernbench.command_ends import exit_code_of, run_command

SECONDS = 60
"""Of processor time, for one input."""

MOST_LINES = 30
LONGEST_LINE = 6000  # a path of the system's, and what is known besides

EXAMPLES = int(os.environ.get("KERNBENCH_HOSTILE", "300"))
"""Inputs of each kind in the long tests."""

PART = 100
"""Inputs of one test: it ends, on a machine that is busy otherwise, too, before pytest takes the process for one that stands
still; parts run side by side."""

PARTS = [min(PART, EXAMPLES - begin) for begin in range(0, EXAMPLES, PART)]

SEED = int(os.environ.get("KERNBENCH_HOSTILE_SEED", "0"))
"""Other seeds draw other inputs."""

KEPT = Path(os.environ.get("KERNBENCH_HOSTILE_KEPT", "hostile-findings")).absolute()
"""The folder in which inputs are kept that have failed, and the one under way, which stays where the process dies of it."""

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3.5, -0.0, 1e308, -1e308, 1e-320, 10**18, 2**63, 2**64, -(2**63), 10**30, 10**4000,
    "", " ", "x", "0",
    "sip8", "dgx_h100", "h100_sxm", "auto", "ring_allreduce", "5 GB/s", "1 us", "1e999999999 GB/s", "9e307 TiB",
    "-5 GiB", "nan", "inf",
    "a" * 300 + ".yaml", "/" * 5000 + ".yaml", "~nosuchuser/x.yaml", "nosuch.yaml", "./", "..", ".", "mine.yaml",
    "a\0b.yaml", "a\0b",
    "x" * 100_000, "[/red]", "[bold", "\x1b[31mred", "\u202e", "é", "{M}", "{", "}}{", "{{}}", "a:b", ":", "a..b:c",
    "os:system", "math:pi",
    "nosuch.py:f", "rank 99999999999999999999999999", "rank 3", "9**9**9", "1/0", "().__class__", "-" * 5000 + "1",
    "(" * 300, "M +",
    "'x'*10**9", "fp16[10**12, 10**12]", "fp16[-1]", "lambda: 0", "__import__('os')", "sm_90", "gfx942", "*fp16",
    "*nosuch",
    [], {}, [[]], {"": ""}, {"x": 1}, [1, 2, 3], {"extends": 3}, {"extends": "mine.yaml"}, ["a"] * 50,
    {"name": {"name": {}}},
]  # fmt: skip

TOKENS: list[bytes] = [
    b"9" * 5000, b"-", b"-1", b"0", b"1e999", b".nan", b".inf", b"NaN", b"Infinity", b"2024-01-01", b"2001-99-99",
    b"0x" + b"f" * 6000,
    b"1:2:3", b"!!python/object:os.system {}", b"!!int ''", b"!!timestamp x", b"!!binary x", b"!foo", b"&a *a", b"*a",
    b"&a", b"<<: *a",
    b"<<", b"=", b"'" + b"x" * 100_000 + b"'", b"\0", b"\xff", b"\xfe\xff", b"\xc3", b"\xed\xa0\x80", b"{" * 2000,
    b"[" * 5000, b"- " * 3000,
    b"~", b"null", b"true", b"? ", b"...", b"---\n", b"\t", b"\r", b"\n", b":", b",", b"[", b"]", b"{", b"}", b'"',
    b"'", b"#", b"%", b"@",
    b"`", b"\\ud800", b'"\\ud800"', b"\\", b"\xef\xbb\xbf", b"a" * 300 + b".yaml", b"~nosuchuser/x.yaml", b"[/red]",
    b"\x1b[31m",
    b"&x [a,a,a,a,a,a,a,a,a]", b"[" + b"*x," * 9 + b"]",
]  # fmt: skip

_TOKEN = re.compile(rb"[\w.+-]+|\s+|.", re.DOTALL)
_ANY = st.sampled_from(VALUES)


def _paths(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _paths(item, (*at, key))


def bytes_of(data: Any) -> bytes:
    """JSON, which is YAML, too; a number of any size as its digits."""
    return json.dumps(data, default=str).encode()


@st.composite
def _bytewise(draw: Callable[..., Any], sources: list[bytes]) -> bytes:
    data = bytearray(draw(st.sampled_from(sources)))
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(data)))
        end = begin + draw(st.sampled_from([0, 0, 1, 1, 2, 5, 50, 10**9]))
        data[begin:end] = draw(st.binary(max_size=4) | st.sampled_from(TOKENS))
    return bytes(data)


@st.composite
def _tokenwise(draw: Callable[..., Any], sources: list[bytes]) -> bytes:
    tokens = _TOKEN.findall(draw(st.sampled_from(sources)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(tokens) - 1, 0)))
        other = draw(st.integers(0, max(len(tokens) - 1, 0)))
        match draw(st.sampled_from(["replace", "insert", "delete", "swap", "repeat"])):
            case "replace":
                tokens[place : place + 1] = [draw(st.sampled_from(TOKENS))]
            case "insert":
                tokens.insert(place, draw(st.sampled_from(TOKENS)))
            case "delete":
                del tokens[place : place + draw(st.integers(1, 5))]
            case "swap" if tokens:
                tokens[place], tokens[other] = tokens[other], tokens[place]
            case "repeat":
                tokens[place:place] = tokens[place : place + 10] * draw(st.sampled_from([1, 2, 100]))
    return b"".join(tokens)


@st.composite
def _structural(draw: Callable[..., Any], sources: list[Any]) -> bytes:
    data = copy.deepcopy(draw(st.sampled_from(sources)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(_paths(data))))
        if not path:
            data = copy.deepcopy(draw(_ANY)) if draw(st.integers(0, 20)) == 0 else data
            continue
        parent = data
        for key in path[:-1]:
            parent = parent[key]
        value = parent[path[-1]]
        match draw(st.sampled_from(["value", "value", "value", "delete", "rename", "wrap", "nest", "number"])):
            case "value":
                parent[path[-1]] = copy.deepcopy(draw(_ANY))
            case "number":
                parent[path[-1]] = draw(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
            case "delete":
                del parent[path[-1]]
            case "rename" if isinstance(parent, dict):
                parent[str(draw(_ANY))[:200] if draw(st.booleans()) else path[-1] + "x"] = parent.pop(path[-1])
            case "wrap":
                parent[path[-1]] = draw(st.sampled_from([[value], {"x": value}, [value] * 30]))
            case "nest":
                for _ in range(draw(st.sampled_from([5, 70, 400]))):
                    value = [value]
                parent[path[-1]] = value
    return _dumped(data)


def _dumped(data: Any) -> bytes:
    try:
        return bytes_of(data)
    except ValueError:  # Python refuses to write the digits
        return bytes_of(None)


def mutated(*sources: str | bytes) -> st.SearchStrategy[bytes]:
    """Mutations of valid YAML or JSON texts."""
    plain = [source.encode() if isinstance(source, str) else source for source in sources]
    data = [yaml.safe_load(source) for source in plain]
    return st.one_of(_structural(data), _structural(data), _tokenwise(plain), _bytewise(plain))


def mutated_text(*sources: str | bytes) -> st.SearchStrategy[bytes]:
    """Mutations of texts that have no structure of JSON."""
    plain = [source.encode() if isinstance(source, str) else source for source in sources]
    return st.one_of(_tokenwise(plain), _bytewise(plain))


def use_a_handful(inputs: st.SearchStrategy[Any], use: Callable[[Any], None], examples: int) -> None:
    """Use a few inputs, the same every time."""

    def check(data: Any) -> None:
        use(data)

    _settings(examples, derandomize=True)(given(inputs)(check))()


def use_many(kind: str, part: int, inputs: st.SearchStrategy[Any], use: Callable[[Any], None]) -> None:
    """Use the inputs of a part of the long run, which follow from :data:`SEED`.

    What fails is kept in :data:`KEPT`, as Python writes it and before it is made smaller.
    """
    name = f"{kind}-{SEED}-{part}"
    under_way, kept = KEPT / f"{name}.under-way", KEPT / f"{name}.txt"

    def check(data: Any) -> None:
        under_way.write_text(f"{data!r}\n")
        try:
            use(data)
        except BaseException:
            if not kept.exists():
                under_way.replace(kept)
            raise

    KEPT.mkdir(parents=True, exist_ok=True)
    _settings(PARTS[part])(seed(f"{kind} {SEED} {part}")(given(inputs)(check)))()
    under_way.unlink(missing_ok=True)


def _settings(examples: int, **more: Any) -> settings:
    return settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck), **more
    )


class Endless(BaseException):
    """An input that has taken more than :data:`SECONDS` of processor time."""


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Endless

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def run_hostile(run: Callable[[], object], *, or_unwritable: bool = False, programs: Sequence[Path] = ()) -> int:
    """Run it as a command is run; assert that it ends well, or with 2 and complaints that can be read. Gives the exit code.

    Args:
        or_unwritable: it may also end with 1, where a file that was asked for cannot be written.
        programs: files that fail when they are run as programs: that is their own failure, which commands print.
    """
    out, err = io.StringIO(), io.StringIO()
    with _limited(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = exit_code_of(run, lambda: None)
    text = err.getvalue()
    if code == 1 and any(f'File "{each}", line' in text + out.getvalue() for each in programs):
        return code
    if code == 1 and programs and "failed: rank " in out.getvalue():  # what-if has a row for each point
        return code
    assert code in (0, 2) or (code == 1 and or_unwritable and "cannot write" in text), f"{code}: {text[-5000:]}"
    assert "Traceback" not in text, text[-5000:]
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES, text[:5000]
    assert all(len(line) <= LONGEST_LINE for line in lines), [line[:500] for line in lines if len(line) > LONGEST_LINE]
    assert code == 0 or all(line.isprintable() for line in lines), [line for line in lines if not line.isprintable()]
    assert code == 0 or lines, "nothing is said"
    return code


def run_hostile_command(*arguments: str | Path, or_unwritable: bool = False, programs: Sequence[Path] = ()) -> int:
    """The same of a command line."""
    line = [str(each) for each in arguments]
    return run_hostile(lambda: run_command(app, line, "kernbench"), or_unwritable=or_unwritable, programs=programs)
