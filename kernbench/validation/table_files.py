"""Files of measurements: CSV tables with commented headers, and the output of nccl-tests as it is printed.

nccl-tests has changed its columns over the years: with and without ``redop`` and ``root``, in place before or after out of
place, ``error`` or ``#wrong``, ``N/A`` where a run did not check. A log may be one of ``mpirun --tag-output`` or
``srun --label``, whose lines carry the rank that printed them.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kernbench.errors import ConfigError
from kernbench.input_files import read_text, shortened

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class TableFile:
    """The rows of a file, and what it says about the run beside them (``collective``, ``ranks``, ``nodes``, ...)."""

    rows: list[Row]
    about: dict[str, str | int] = field(default_factory=dict)


def read_table(path: Path) -> TableFile:
    """The rows of a CSV file or of nccl-tests' output. Raises ConfigError when it is neither."""
    text = read_text(path, encoding="utf-8-sig")
    if log := read_log(text):
        return log
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) < 2:
        raise ConfigError(f"table {path} has no rows")
    separator = max(",;\t", key=lines[0].count)
    reader = csv.reader(io.StringIO("\n".join(lines)), delimiter=separator)
    try:
        head, *found = reader
    except csv.Error as error:
        raise ConfigError(f"table {path} is no CSV: {error}") from None
    names = [column_name(name) for name in head]
    if len(set(names)) < len(names):
        raise ConfigError(f"table {path} has two columns of the same meaning: {shortened(', '.join(names), 400)}")
    if not found:
        raise ConfigError(f"table {path} has no rows")
    empty = dict.fromkeys(names, "")
    return TableFile([empty | dict(zip(names, map(_cell, cells), strict=False)) for cells in found])


def _cell(text: str) -> str:
    """A cell; empty where nothing was measured."""
    plain = text.strip()
    return "" if plain.lower() in ("n/a", "na", "nan", "-", "none") else plain


# Spellings of columns, once lower-cased and with their unit appended. What is not here keeps its name.
_COLUMNS = {
    **dict.fromkeys(
        ("size", "bytes", "nbytes", "size_b", "message_size", "msg_size", "message_bytes", "message_size_bytes"),
        "size_bytes",
    ),
    **dict.fromkeys(
        ("time", "latency_us", "duration_us", "avg_us", "mean_us", "median_us", "us", "avg_time_us"), "time_us"
    ),
    **dict.fromkeys(("oop_time_us", "out_of_place_us", "out_of_place_time_us", "time_oop_us"), "oop_us"),
    **dict.fromkeys(("ip_time_us", "in_place_us", "in_place_time_us", "time_ip_us"), "ip_us"),
    **dict.fromkeys(("m",), "M"),
    **dict.fromkeys(("n",), "N"),
    **dict.fromkeys(("k",), "K"),
    **dict.fromkeys(("algbw", "algbw_gb_s", "algbw_gb/s"), "algbw_GBps"),
    **dict.fromkeys(("busbw", "busbw_gb_s", "busbw_gb/s"), "busbw_GBps"),
    "algbw_gbps": "algbw_GBps",
    "busbw_gbps": "busbw_GBps",
}


def column_name(name: str) -> str:
    """``"Time (us)"`` as ``time_us``; names of columns that are read keep their case."""
    plain = re.sub(r"[\s\-]+", "_", re.sub(r"[()\[\]]", " ", name.strip()).strip()).lower()
    found = _COLUMNS.get(plain)
    return found or (plain if plain.isascii() and not name[:5].startswith("best_") else name.strip())


_TAG = re.compile(r"^\s*(?:\[\d+(?:,\d+)?\](?:<\w+>)?:?|\d+:)\s?")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?$")
_RANK = re.compile(r"#\s+Rank\s+(\d+)\s.*?\bon\s+(\S+)\s+device")
_TEST = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|broadcast|reduce|sendrecv)_perf\b")
_OPTIONS = re.compile(r"#\s+nThread\s+(\d+)\s+nGpus\s+(\d+)")


def read_log(text: str) -> TableFile | None:
    """The rows of nccl-tests' output as ``size_bytes``, ``oop_us`` and ``ip_us``; None when there are none."""
    rows: list[Row] = []
    hosts: dict[str, str] = {}
    about: dict[str, str | int] = {}
    in_place_first = False
    for raw in text.splitlines():
        line = _untagged(raw)
        if match := _RANK.search(line):
            hosts[match[1]] = match[2]
        elif match := _OPTIONS.search(line):
            about["gpus_per_process"] = int(match[1]) * int(match[2])
        elif "in-place" in line and "out-of-place" in line:
            in_place_first = re.search(r"(?<![\w-])in-place", line).start() < line.index("out-of-place")  # type: ignore[union-attr]
        elif row := _log_row(line, in_place_first):
            rows.append(row)
        if "collective" not in about and (test := _TEST.search(line)):
            about["collective"] = test[1]
    if not rows:
        return None
    if hosts:
        about |= {"ranks": len(hosts), "nodes": len(set(hosts.values()))}
    about["dtype"] = rows[0]["type"]
    if hosts and "collective" not in about and (guess := _collective_of(rows[-1], len(hosts))):
        about["collective"] = guess
    return TableFile(rows, about)


def _collective_of(row: Row, ranks: int) -> str | None:
    """The collective that a row's bus bandwidth says, where only one has that factor."""
    algbw, busbw = float(row["algbw"]), float(row["busbw"])
    if ranks < 3 or algbw < 0.5:
        return None  # too few digits
    if abs(busbw / algbw / (2 * (ranks - 1) / ranks) - 1) < 0.02:
        return "all_reduce"
    if row["redop"] not in ("", "none") and abs(busbw / algbw / ((ranks - 1) / ranks) - 1) < 0.02:
        return "reduce_scatter"
    return None


def _untagged(line: str) -> str:
    while match := _TAG.match(line):
        line = line[match.end() :]
    return line


def _log_row(line: str, in_place_first: bool) -> Row | None:
    """``size count type [redop [root]] time algbw busbw check`` once or twice."""
    words = [word for word in re.split(r"\s+|\[\d+\]", line.strip()) if word]
    if len(words) < 6 or not (words[0].isdigit() and words[1].isdigit()) or "," in line:
        return None
    if not re.fullmatch(r"[a-z][a-z0-9_]*", words[2]):
        return None
    rest, redop = words[3:], ""
    if not _NUMBER.match(rest[0]):
        redop, rest = rest[0], rest[1:]
    if rest[:1] == ["-1"] or (len(rest) in (5, 7, 9) and rest[0].isdigit()):
        rest = rest[1:]  # root
    width = 4 if len(rest) in (4, 8) else 3
    blocks = list(_blocks(rest, width))
    if not blocks or not all(_NUMBER.match(word) for block in blocks for word in block[:3]):
        return None
    names = ("ip_us", "oop_us") if in_place_first else ("oop_us", "ip_us")
    row = {"size_bytes": words[0], "type": words[2], "redop": redop, "algbw": blocks[0][1], "busbw": blocks[0][2]}
    return row | {name: block[0] for name, block in zip(names, blocks, strict=False)}


def _blocks(words: list[str], width: int) -> Iterator[list[str]]:
    for at in range(0, len(words) - width + 1, width):
        yield words[at : at + width]
