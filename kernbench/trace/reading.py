"""Spans from Chrome trace files: ours, and those of PyTorch's profiler.

A profiler's file is of one rank (``distributedInfo`` says which). Its kernels and copies are what ran on streams, its CUDA
runtime calls what the host did; a kernel whose name speaks of NCCL or RCCL is a collective.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.errors import ConfigError
from kernbench.input_files import MOST_OF_A_TRACE, read_json, shortened, shown_path
from kernbench.topology.problems import describe
from kernbench.trace.events import LONGEST, Slice, names_of, shown_arguments, slices_of
from kernbench.trace.spans import HOST, Span

_RANK = re.compile(r"rank (\d{1,9})(?!\d)")
_HIGHEST_RANK = 2**31
_LONGEST_NAME = 2000  # characters


@dataclass(frozen=True)
class TraceFile:
    """What a file holds.

    Attributes:
        title: of the run, possibly empty.
        spans: what ran, in the order of the file.
        moved: bytes that messages carried, by the collective's name.
    """

    title: str
    spans: tuple[Span, ...]
    moved: Mapping[str, int]


def read_trace(path: str | Path) -> TraceFile:
    """Read a Chrome trace, gzipped if it ends in ``.gz``. Raises ConfigError, of one line, if it is none or too large."""
    file = shown_path(path)
    document = read_json(path, MOST_OF_A_TRACE, compressed=str(path).endswith(".gz"))
    about = document if isinstance(document, dict) else {}
    events = document if isinstance(document, list) else about.get("traceEvents")
    if not isinstance(events, list):
        raise ConfigError(f"{file}: no traceEvents: expected a Chrome trace (kernbench --trace, torch.profiler)")
    run = _mapping(about, "otherData", file)
    ours = "kernbench" in run
    slices = list(slices_of(events, file))
    spans = tuple(_ours(slices, events, file) if ours else _profilers(slices, _rank_of(about, file), file))
    if not spans:
        raise ConfigError(f"{file}: nothing in it ran on a device or a host")
    moved: dict[str, int] = {}
    for each in slices if ours else ():
        args = each.get("args") or {}
        if each.get("cat") == "message" and "links" in args:
            name = args.get("collective", "")
            moved[name] = moved.get(name, 0) + args.get("bytes", 0)
    return TraceFile(shortened(run.get("title", ""), 200), spans, moved)


def _mapping(about: Mapping[str, object], key: str, file: str) -> Mapping[str, Any]:
    found = about.get(key) or {}
    if not isinstance(found, dict):
        raise ConfigError(f"{file}: {key}: found {describe(found)}; expected a mapping")
    return found


def _rank_of(about: Mapping[str, object], file: str) -> int:
    rank = _mapping(about, "distributedInfo", file).get("rank", 0)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < _HIGHEST_RANK:
        raise ConfigError(f"{file}: distributedInfo.rank: found {describe(rank)}; expected a rank's number")
    return rank


class _Shown(dict[str, str]):
    """Names as they can be printed, of very long ones the beginning; each is read once."""

    def __missing__(self, name: str) -> str:
        shown = self[name] = shortened(name, _LONGEST_NAME)
        return shown


def _ours(slices: Sequence[Slice], events: Sequence[object], file: str) -> Iterator[Span]:
    ranks: dict[int | str, int | None] = {}
    tracks: dict[tuple[int | str, int | str], str] = {}
    shown = _Shown()
    for named in names_of(events, file):
        name = named["args"]["name"]
        if named["name"] == "process_name":
            found = _RANK.match(name)
            ranks[named["pid"]] = int(found[1]) if found else None
        else:
            tracks[named["pid"], named.get("tid", 0)] = shown[name]
    for each in slices:
        pid, kind = each.get("pid", 0), each.get("cat", "")
        track = tracks.get((pid, each.get("tid", 0)), "")
        if kind in ("message", "critical path", "request") or not track:
            continue
        args, begin = each.get("args") or {}, _seconds(each["ts"], each, file)
        interval = (args["low us"] * 1e-6, args["high us"] * 1e-6) if "low us" in args and "high us" in args else None
        yield Span(
            ranks.get(pid), 0, track, shown[each.get("name", "")], shown[kind], begin, begin + each.get("dur", 0.0) * 1e-6,
            args.get("bytes", 0), shown_arguments(each, file), interval,
        )  # fmt: skip


def _seconds(micros: float, each: Slice, file: str) -> float:
    """When an event begins. A picture counts nanoseconds, as whole numbers that a float has."""
    if not 0 <= micros <= LONGEST:
        name = shortened(each.get("name", ""))
        raise ConfigError(
            f"{file}: ts of an event {name!r}: {micros:g}; expected a time of the run, 0 to {LONGEST:g} us"
        )
    return micros * 1e-6


_DEVICE = {"kernel": "kernel", "gpu_memcpy": "dma", "gpu_memset": "math"}


def _profilers(slices: Sequence[Slice], rank: int, file: str) -> Iterator[Span]:
    wanted = [(kind, each) for each in slices if (kind := _profiler_kind(each)) is not None]
    start = min((each["ts"] for _, each in wanted), default=0.0)
    calls: dict[str, int] = {}
    shown = _Shown()
    for kind, each in sorted(wanted, key=lambda item: item[1]["ts"]):
        name, args = shown[each.get("name", "")], each.get("args") or {}
        begin = _seconds(each["ts"] - start, each, file)
        track = HOST if kind in ("launch", "wait") else shown[f"stream {args.get('stream', each.get('tid', 0))}"]
        detail: dict[str, Any] = {}
        if kind == "collective":
            name = shown[args.get("Collective name", name)]
            group = str(args.get("Process Group Name", ""))
            calls[group] = calls.get(group, -1) + 1
            detail = {"op": name, "group": group, "sequence": calls[group]}
        yield Span(rank, rank, track, name, kind, begin, begin + each.get("dur", 0.0) * 1e-6, 0, detail)


def _profiler_kind(each: Slice) -> str | None:
    category, name = each.get("cat", "").lower(), each.get("name", "")
    if category == "cuda_runtime":
        return "wait" if "Synchronize" in name else "launch"
    kind = _DEVICE.get(category)
    return "collective" if kind == "kernel" and ("nccl" in name.lower() or "rccl" in name.lower()) else kind
