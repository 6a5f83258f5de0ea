"""Sizes and depths within which files are read, one by one."""

from __future__ import annotations

import errno
import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from kernbench import input_files
from kernbench.errors import ConfigError
from kernbench.grid import expand, expression
from kernbench.input_files import UnreadableError, read_bytes, read_json, read_text
from kernbench.topology import load_system
from kernbench.topology.yaml_files import MOST_DEPTH, read_document
from kernbench.trace.reading import read_trace
from kernbench.what_if.templates import Template


def _problems(path: Path, text: str | bytes) -> list[str]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [str(problem).removeprefix(f"{path}:") for problem in read_document(path).problems]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1\nb: 2001-99-99", None),  # the text that it is
        ("a: 1\nb: " + "9" * 5000, "2: b: '9"),
        ("a: 1\nb: 0x" + "f" * 600, "2: b: '0x"),
        ("a: !!timestamp x", None),
        ("a: !!int ''", "1: a: ''; expected a whole number"),
        ("a: .nan", "1: a: '.nan'; expected a number, finite"),
        ("a: 1.0e+999", "1: a: '1.0e+999'; expected a number, finite"),
        ("a: 1\n3: 1", "2: key 3; expected a key that is text"),
        ("a: 1\n[b]: 1", "2: a key of several values; expected a key that is text"),
        ("a: 1\na: 2", "2: a: repeated key; it stands in line 1 already; expected each key once"),
        (b"a: 1\nb: \xff", "2: cannot be read (byte 0xff is not UTF-8 text); expected a readable YAML text file"),
        ("a: 1\nb: \x01", "2: broken YAML: the character '\\x01' (column 4); expected YAML syntax"),
        ("a: 1\nb: [1]]", "2: broken YAML: "),
        ("a: " + "[" * 5000, "1: "),
        ("!foo {}", "1: tag !foo; expected plain data"),
        ("a: !foo 3", "1: a: tag !foo; expected plain data"),
        ("a: &x {<<: *x}", "1: a: an alias that contains itself; expected a finite value"),
        ("<<: 3", "1: a merge key of something else; expected a mapping behind <<"),
    ],
)
def test_a_problem_of_yaml_names_its_line(tmp_path: Path, text: str | bytes, problem: str | None) -> None:
    found = _problems(tmp_path / "x.yaml", text)
    assert len(found) == (problem is not None)
    assert all(len(each) < 400 and each.startswith(problem or "") for each in found)


def test_merge_keys_are_as_yaml_has_them(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb: &b {y: 3, z: 4}\nc: {<<: [*a, *b], z: 5}\n")
    assert read_document(path).get(("c",)) == {"y": 2, "z": 5, "x": 1}


@pytest.mark.long
def test_aliases_of_aliases_end(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 20)]
    (problem,) = _problems(tmp_path / "x.yaml", "\n".join(lines))
    assert "more than 500,000 values, what an alias repeats counted each time; expected fewer" in problem


def test_depth(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    assert not _problems(path, "a: " + "[" * (MOST_DEPTH - 1) + "]" * (MOST_DEPTH - 1))
    assert "nested too deeply" in _problems(path, "a: " + "[" * MOST_DEPTH + "]" * MOST_DEPTH)[0]


def test_a_file_is_read_up_to_its_limit_compressed_or_not(tmp_path: Path) -> None:
    plain, packed = tmp_path / "x", tmp_path / "x.gz"
    plain.write_bytes(b"0" * (2 << 20))
    packed.write_bytes(gzip.compress(b"0" * (2 << 20)))
    assert packed.stat().st_size < 4096
    for path, compressed in ((plain, False), (packed, True)):
        assert len(read_bytes(path, 2 << 20, compressed=compressed)) == 2 << 20
        with pytest.raises(UnreadableError, match="it has more than 1 MiB, the most that is read of such a file"):
            read_bytes(path, 1 << 20, compressed=compressed)


def test_a_compressed_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernbench.trace.reading.MOST_OF_A_TRACE", 1 << 20)
    path = tmp_path / "t.json.gz"
    path.write_bytes(gzip.compress(b"[" + b"{}," * (1 << 20) + b"{}]"))
    with pytest.raises(ConfigError, match=r"t\.json\.gz: cannot be read: it has more than 1 MiB"):
        read_trace(path)
    monkeypatch.setattr("kernbench.trace.reading.MOST_OF_A_TRACE", 1 << 30)
    monkeypatch.setattr(input_files, "MOST_VALUES", 1000)
    with pytest.raises(ConfigError, match=r"t\.json\.gz: cannot be read: it has more than 1,000 values"):
        read_trace(path)


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in (
        (tmp_path / "pipe", "a device or a named pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a directory"),
        (tmp_path / ("x" * 300), os.strerror(errno.ENAMETOOLONG)),
    ):  # fmt: skip
        with pytest.raises(UnreadableError, match=reason):
            read_text(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"[" * 100_000, "nested too deeply"), (b'{"a": NaN}', "NaN is no number"), (b"{\n1}", ":2:1: broken JSON"),
        (b"[" + b"9" * 5000 + b"]", "a number has too many digits"), (b"\xff\xfe\xfd", "not UTF-8"),
    ],
)  # fmt: skip
def test_broken_json_is_said_in_a_line(tmp_path: Path, text: bytes, reason: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(text)
    if reason == "a number has too many digits" and not hasattr(sys, "set_int_max_str_digits"):
        assert read_json(path)  # of early Pythons, which have no limit
        return
    with pytest.raises(ConfigError, match=reason) as caught:
        read_json(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("event", "place"),
    [
        (3, "traceEvents.1: found 3; expected a mapping"),
        ({"ph": "X", "name": "a"}, "traceEvents.1.ts: found nothing; expected a value"),
        ({"ph": "X", "ts": 1, "dur": -1}, "traceEvents.1.dur: found -1; expected greater than or equal to 0"),
        ({"ph": "X", "ts": "x" * 10_000}, "traceEvents.1.ts: found 'xxx"),
        (
            {"ph": "X", "ts": 1, "args": {"sequence": []}},
            "traceEvents.1.args.sequence: found a list; expected a valid integer",
        ),
        ({"ph": "M", "name": "process_name", "pid": 1}, "traceEvents.1.args: found nothing; expected a value"),
    ],
)
def test_an_event_that_is_wrong_is_named(tmp_path: Path, event: Any, place: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"otherData": {"kernbench": "1"}, "traceEvents": [{"ph": "C"}, event]}))
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path}: {place}")
    assert len(str(caught.value)) < len(str(path)) + 200


@pytest.mark.parametrize(
    "text",
    ["9**9**9", "1 << 10**9", "'x' * 10**9", "[a] * 10**9", "'%999999999d' % a", "-" * 5000 + "1", "(" * 300, "1/0",
     "[x for x in [1] for y in [1] for z in [1]]", "a.b", "b", "a +", ""],
)  # fmt: skip
def test_expressions_end(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expression(text, ["a"])({"a": 1})
    assert len(str(caught.value)) < 1000


def test_expressions_have_the_values_that_python_gives_them() -> None:

    for text in (
        "a ** 3 % 7",
        "a << 2",
        "3 * a * 'x'",
        "[a] * 3",
        "2.5 * a",
        "sum(x * a for x in [1, 2])",
        "-a ** 2",
        "a % 3 == 1",
    ):
        assert expression(text, ["a"])({"a": 4}) == eval(text, {"a": 4})


def test_a_template_that_is_nested_too_deeply_is_text() -> None:
    text = "{" + "-" * 5000 + "1}"
    assert Template(text, ["a"], "argument").at({"a": 1}) == text


def test_a_grid_has_a_limit() -> None:
    with pytest.raises(ConfigError, match="the grid has 1e"):
        expand({name: list(range(1000)) for name in "abcd"})


def test_names_that_no_file_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a" * 300 + ".yaml", "/" * 5000 + ".yaml", "~nosuchuser/x.yaml", "a\0b.yaml", "\udcff.yaml"):
        with pytest.raises(ConfigError, match="does not exist"):
            load_system(name)
