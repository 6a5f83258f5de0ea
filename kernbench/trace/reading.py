"""Spans from Chrome trace files: ours, and those of PyTorch's profiler.

A profiler's file is of one rank (``distributedInfo`` says which). Its kernels and copies are what ran on streams, its CUDA
runtime calls what the host did; a kernel whose name speaks of NCCL or RCCL is a collective.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.errors import ConfigError
from kernbench.trace.spans import HOST, Span

_RANK = re.compile(r"rank (\d+)")
_OWN = frozenset({"bytes", "low us", "high us"})


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
    """Read a Chrome trace, gzipped if it ends in ``.gz``. Raises ConfigError if it is none."""
    target = Path(path)
    try:
        data = target.read_bytes()
        document = json.loads(gzip.decompress(data) if target.suffix == ".gz" else data)
    except (OSError, ValueError, EOFError) as error:
        raise ConfigError(f"{target}: not a trace that can be read: {error}") from None
    events = document if isinstance(document, list) else document.get("traceEvents")
    if not isinstance(events, list):
        raise ConfigError(f"{target}: no traceEvents: expected a Chrome trace (kernbench --trace, torch.profiler)")
    about = {} if isinstance(document, list) else document
    ours = "kernbench" in (about.get("otherData") or {})
    spans = tuple(_ours(events) if ours else _profilers(events, about))
    if not spans:
        raise ConfigError(f"{target}: nothing in it ran on a device or a host")
    moved: dict[str, int] = {}
    for event in events:
        if ours and event.get("cat") == "message" and event.get("ph") == "X" and "links" in event["args"]:
            name = str(event["args"]["collective"])
            moved[name] = moved.get(name, 0) + int(event["args"]["bytes"])
    return TraceFile(str((about.get("otherData") or {}).get("title", "")), spans, moved)


def _ours(events: list[dict[str, Any]]) -> Iterator[Span]:
    ranks: dict[int, int | None] = {}
    tracks: dict[tuple[int, int], str] = {}
    for event in events:
        if event.get("ph") == "M" and event["name"] == "process_name":
            found = _RANK.match(event["args"]["name"])
            ranks[event["pid"]] = int(found[1]) if found else None
        elif event.get("ph") == "M" and event["name"] == "thread_name":
            tracks[event["pid"], event["tid"]] = event["args"]["name"]
    for event in events:
        track = tracks.get((event["pid"], event.get("tid", 0)), "")
        if event["ph"] != "X" or event["cat"] in ("message", "critical path") or not track:
            continue
        args = event["args"]
        begin = event["ts"] * 1e-6
        interval = (args["low us"] * 1e-6, args["high us"] * 1e-6) if "low us" in args else None
        detail = {key: value for key, value in args.items() if key not in _OWN}
        yield Span(
            ranks.get(event["pid"]), 0, track, event["name"], event["cat"], begin, begin + event["dur"] * 1e-6,
            args.get("bytes", 0), detail, interval,
        )  # fmt: skip


_DEVICE = {"kernel": "kernel", "gpu_memcpy": "dma", "gpu_memset": "math"}


def _profilers(events: list[dict[str, Any]], about: Mapping[str, Any]) -> Iterator[Span]:
    rank = int((about.get("distributedInfo") or {}).get("rank", 0))
    wanted = [event for event in events if event.get("ph") == "X" and _profiler_kind(event) is not None]
    start = min((float(event["ts"]) for event in wanted), default=0.0)
    calls: dict[str, int] = {}
    for event in sorted(wanted, key=lambda event: float(event["ts"])):
        kind, name, args = _profiler_kind(event), str(event["name"]), event.get("args") or {}
        begin = (float(event["ts"]) - start) * 1e-6
        track = HOST if kind in ("launch", "wait") else f"stream {args.get('stream', event.get('tid', 0))}"
        detail: dict[str, Any] = {}
        if kind == "collective":
            name = str(args.get("Collective name", name))
            group = str(args.get("Process Group Name", ""))
            calls[group] = calls.get(group, -1) + 1
            detail = {"op": name, "group": group, "sequence": calls[group]}
        yield Span(rank, rank, track, name, str(kind), begin, begin + float(event.get("dur", 0)) * 1e-6, 0, detail)


def _profiler_kind(event: Mapping[str, Any]) -> str | None:
    category, name = str(event.get("cat", "")).lower(), str(event.get("name", ""))
    if category == "cuda_runtime":
        return "wait" if "Synchronize" in name else "launch"
    kind = _DEVICE.get(category)
    return "collective" if kind == "kernel" and ("nccl" in name.lower() or "rccl" in name.lower()) else kind
