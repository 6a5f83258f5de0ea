"""Chrome trace JSON, which https://ui.perfetto.dev and chrome://tracing open.

One process per rank with a track for its host, one per stream, and one per peer that it sends to or receives from; one
process for the links, with a counter of the bytes/s on each. A message is an arrow (a flow) from the sender's slice to the
receiver's. Requests of a serving engine are a process with lanes, and counters of its steps.
Format: "Trace Event Format", Google, 2016.

Times are virtual, written as microseconds with whole nanoseconds, which is what Perfetto keeps. Equal simulations
give equal files, byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kernbench.memory.ledger import CATEGORIES
from kernbench.output_files import write_file
from kernbench.sim_engine.engine import GraphEngine
from kernbench.trace.critical import critical_path
from kernbench.trace.spans import HOST, ChunkStep, Span, pack
from kernbench.trace.timeline import MAX_STEPS, HasEngine, Timeline
from kernbench.version import __version__

_TRACK_ORDER = (HOST, "compute", "stream", "comm", "copy")
_SEND, _RECEIVE = "send to", "receive from"

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode

Event = tuple[int, int, str]
"""Begin in ns, minus the length in ns (what encloses comes first), and the event as JSON: they are many."""


def write_chrome_trace(source: HasEngine | GraphEngine, path: str | Path, *, max_steps: int | None = MAX_STEPS) -> None:
    """Write the timeline of ``source`` to ``path``; gzipped if it ends in ``.gz``.

    Args:
        source: a context or an engine.
        path: file to write.
        max_steps: chunk steps of collectives to include at most; None: all. What is left out is noted in the trace.
    """
    text = "".join(_document(Timeline.of(source, max_steps=max_steps)))
    write_file(path, text, compressed=Path(path).suffix == ".gz")


def _document(timeline: Timeline) -> Iterator[str]:
    other = {
        "kernbench": __version__,
        "title": timeline.title,
        "system": timeline.topology.system.name,
        "nodes": timeline.topology.nodes,
        "time": "virtual microseconds",
        "note": timeline.note,
    }
    yield f'{{"displayTimeUnit":"ns","otherData":{_encode(other)},"traceEvents":[\n'
    yield ",\n".join(_events(timeline))
    yield "\n]}\n"


def _events(timeline: Timeline) -> Iterator[str]:
    tracks = _Tracks(timeline)
    link_names = {
        link: timeline.topology.links[link].name for link in {link for m in timeline.messages for link in m.links}
    }
    events: list[Event] = [*_span_events(timeline, tracks), *_message_events(timeline, tracks, link_names)]
    events += _link_events(timeline, tracks, link_names)
    events += _memory_events(timeline, tracks)
    events += _path_events(timeline, tracks)
    events += _request_events(timeline, tracks)
    events.sort(key=lambda event: event[:2])
    yield from map(_encode, tracks.metadata())
    if timeline.note:
        yield _encode({"ph": "i", "s": "g", "name": timeline.note, "pid": tracks.pids[0], "tid": 1, "ts": 0})
    for _, _, event in events:
        yield event


class _Tracks:
    """Numbers of processes and threads. Rank r is process r + 1: viewers take process 0 for the idle one."""

    def __init__(self, timeline: Timeline) -> None:
        self._ranks = timeline.ranks
        self._main = max(self._ranks, default=-1) + 2
        self.links = self._main + 1
        self._topology = timeline.topology
        self._sips = {span.rank: span.sip for span in reversed(timeline.spans)}
        self._tids: dict[int, dict[tuple[object, ...], int]] = {}
        self._names: dict[tuple[int, int], str] = {}
        has_main = any(span.rank is None for span in timeline.spans)
        self.path, self.requests = self.links + 1, self.links + 2
        self.pids = [*(rank + 1 for rank in self._ranks), *([self._main] if has_main else []), self.links]
        # streams are numbered before the peers, so that each rank's tracks come in the same order
        wanted = {(self.pid(span.rank), self._order(span.track), span.track, span.sip) for span in timeline.spans}
        for pid, _, track, sip in sorted(wanted):
            self.stream(pid, track, sip)

    def pid(self, rank: int | None) -> int:
        return self._main if rank is None else rank + 1

    def stream(self, pid: int, track: str, sip: int) -> int:
        """Thread of a stream of a rank; one that drives several SIPs has it once per SIP."""
        others = {key[1] for key in self._tids.get(pid, {}) if key[0] == track and key[1] != sip}
        return self._tid(pid, (track, sip), f"{track} (SIP {sip})" if others and track != HOST else track)

    def track_of_path(self) -> int:
        """Thread of the critical path."""
        return self._tid(self.path, ("critical path",), "critical path")

    def track_of_requests(self, lane: str) -> int:
        """Thread of a lane of requests."""
        return self._tid(self.requests, (lane,), lane)

    def peer(self, pid: int, direction: str, peer: int, lane: int) -> int:
        """Thread of the messages to or from a peer; ``lane`` tells apart those that overlap."""
        return self._tid(pid, (direction, peer, lane), f"{direction} {peer}" + (f" ({lane + 1})" if lane else ""))

    def _tid(self, pid: int, key: tuple[object, ...], name: str) -> int:
        known = self._tids.setdefault(pid, {})
        if key not in known:
            known[key] = len(known) + 1
            self._names[pid, known[key]] = name
        return known[key]

    def pid_of_sip(self, sip: int) -> int | None:
        """Process of the (first) rank that drives a SIP."""
        return next((rank + 1 for rank in self._ranks if self._sips.get(rank) == sip), None)

    @staticmethod
    def _order(track: str) -> int:
        kind = track.partition(" ")[0]
        return _TRACK_ORDER.index(kind) if kind in _TRACK_ORDER else len(_TRACK_ORDER)

    def metadata(self) -> Iterator[dict[str, object]]:
        """Names and order of processes and threads."""
        for rank in self._ranks:
            yield from self._process(rank + 1, f"rank {rank} (SIP {self._sips.get(rank, rank)})")
        if self._main in self.pids:
            yield from self._process(self._main, "main")
        yield from self._process(self.links, f"links of {self._topology.system.name}")
        if self.path in self._tids:
            yield from self._process(self.path, "critical path")
        if self.requests in self._tids:
            yield from self._process(self.requests, "requests")
        for (pid, tid), name in sorted(self._names.items()):
            yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}
            yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}}

    @staticmethod
    def _process(pid: int, name: str) -> Iterator[dict[str, object]]:
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": pid, "args": {"sort_index": pid}}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _slice(name: str, category: str, pid: int, tid: int, begin: int, end: int, args: str) -> Event:
    """A complete event; ``name``, ``category`` and ``args`` are JSON."""
    event = (
        f'{{"ph":"X","name":{name},"cat":{category},"pid":{pid},"tid":{tid},"ts":{begin / 1000},'
        f'"dur":{(end - begin) / 1000},"args":{args}}}'
    )
    return begin, begin - end, event


def _span_events(timeline: Timeline, tracks: _Tracks) -> Iterator[Event]:
    for span in timeline.spans:
        pid = tracks.pid(span.rank)
        tid = tracks.stream(pid, span.track, span.sip)
        args = _encode(_args(span))
        yield _slice(_encode(span.name), _encode(span.kind), pid, tid, _ns(span.begin), _ns(span.end), args)


def _args(span: Span) -> dict[str, Any]:
    args: dict[str, Any] = {"bytes": span.nbytes} if span.nbytes else {}
    if span.interval is not None:
        args["low us"], args["high us"] = (_ns(seconds) / 1000 for seconds in span.interval)
    return {**args, **{key: value for key, value in span.detail.items() if value is not None}}


def _message_events(timeline: Timeline, tracks: _Tracks, link_names: dict[int, str]) -> Iterator[Event]:
    """A slice at each end of a message, and the flow between them.

    The sender's slice is the time for which the message holds its queue. The receiver's lasts from the last byte sent
    to the data being in place, or from the previous message's being in place, if that is later.
    """
    order = sorted(timeline.messages, key=lambda message: (message.begin, message.sent))
    send_lane = _lanes(order, lambda m: (m.src, m.dst), lambda m: (_ns(m.begin), _ns(m.sent)))
    in_place_until: dict[tuple[int, int], int] = {}
    receive_begin: dict[int, int] = {}
    for message in sorted(order, key=lambda message: message.arrived):
        pair, end = (message.dst, message.src), _ns(message.arrived)
        receive_begin[id(message)] = min(end, max(_ns(message.sent), in_place_until.get(pair, 0)))
        in_place_until[pair] = end
    ends_of = {  # each rank's sends come before what it receives, both by peer
        key
        for message in order
        for key in (
            (tracks.pid(message.src), _SEND, message.dst, send_lane[id(message)]),
            (tracks.pid(message.dst), _RECEIVE, message.src, 0),
        )
    }
    for key in sorted(ends_of, key=lambda key: (key[0], key[1] == _RECEIVE, *key[2:])):
        tracks.peer(*key)
    for flow, message in enumerate(order, start=1):
        source, target = tracks.pid(message.src), tracks.pid(message.dst)
        sender = tracks.peer(source, _SEND, message.dst, send_lane[id(message)])
        receiver = tracks.peer(target, _RECEIVE, message.src, 0)
        begin, arrival = _ns(message.begin), receive_begin[id(message)]
        name = f'"{"reduce" if message.reduces else "copy"} chunk {message.chunk}"'
        collective = _encode(message.name)
        args = (
            f'{{"collective":{collective},"bytes":{message.nbytes},"chunk":{message.chunk},"from":{message.src},'
            f'"to":{message.dst}'
        )
        links = _encode([link_names[link] for link in message.links])
        yield _slice(name, '"message"', source, sender, begin, _ns(message.sent), f'{args},"links":{links}}}')
        yield _slice(name, '"message"', target, receiver, arrival, _ns(message.arrived), f"{args}}}")
        ends = f'"name":{collective},"cat":"message","id":{flow}'
        yield begin, 1, f'{{"ph":"s",{ends},"pid":{source},"tid":{sender},"ts":{begin / 1000}}}'
        yield arrival, 1, f'{{"ph":"f","bp":"e",{ends},"pid":{target},"tid":{receiver},"ts":{arrival / 1000}}}'


def _lanes(
    messages: Iterable[ChunkStep],
    key: Callable[[ChunkStep], tuple[int, int]],
    interval: Callable[[ChunkStep], tuple[int, int]],
) -> dict[int, int]:
    """Lane of each message (by identity) among those with its key, so that none overlap. Messages sorted by begin."""
    groups: dict[tuple[int, int], list[ChunkStep]] = {}
    for message in messages:
        groups.setdefault(key(message), []).append(message)
    return {
        id(message): lane
        for group in groups.values()
        for message, lane in zip(group, pack([interval(message) for message in group]), strict=True)
    }


def _link_events(timeline: Timeline, tracks: _Tracks, link_names: dict[int, str]) -> Iterator[Event]:
    """For each link that is used, the rate at which messages cross it, wherever that changes."""
    changes: dict[int, list[tuple[int, int, float]]] = {}
    for message in timeline.messages:
        if message.sent > message.begin:
            rate = message.nbytes / (message.sent - message.begin) / 1e9
            for link in message.links:
                changes.setdefault(link, []).append((_ns(message.begin), 1, rate))
                changes[link].append((_ns(message.sent), -1, -rate))
    for link, steps in sorted(changes.items()):
        steps.sort()
        name = _encode(link_names[link])
        active, rate = 0, 0.0
        for number, (at, count, change) in enumerate(steps):
            active += count
            rate = rate + change if active else 0.0  # sums of rounded rates leave a little behind
            if number + 1 == len(steps) or steps[number + 1][0] > at:
                counter = f'"ph":"C","name":{name},"pid":{tracks.links},"ts":{at / 1000}'
                yield at, 1, f'{{{counter},"args":{{"GB/s":{float(f"{rate:.6g}")}}}}}'


def _memory_events(timeline: Timeline, tracks: _Tracks) -> Iterator[Event]:
    """For each rank, the bytes allocated on its SIP, by what they are for, and the most so far, wherever they change."""
    allocated: dict[int, int] = {}
    peaks: dict[int, int] = {}
    parts: dict[int, dict[str, int]] = {}
    latest: dict[tuple[int, int], tuple[int, int, dict[str, int]]] = {}
    for change in timeline.memory():
        sip = change.sip
        now = allocated[sip] = allocated.get(sip, 0) + change.change
        peaks[sip] = max(peaks.get(sip, 0), now)
        of_sip = parts.setdefault(sip, {})
        of_sip[change.category] = of_sip.get(change.category, 0) + change.change
        latest[sip, _ns(change.at)] = now, peaks[sip], dict(of_sip)  # of several at one moment, what they come to
    for (sip, at), (now, peak, by_category) in latest.items():
        pid = tracks.pid_of_sip(sip)
        if pid is not None:
            counter = f'"pid":{pid},"ts":{at / 1000},"args"'
            yield at, 1, f'{{"ph":"C","name":"memory (bytes)",{counter}:{{"allocated":{now},"peak":{peak}}}}}'
            args = _encode({name: by_category.get(name, 0) for name in CATEGORIES if name in parts[sip]})
            yield at, 1, f'{{"ph":"C","name":"memory by use (bytes)",{counter}:{args}}}'


def _path_events(timeline: Timeline, tracks: _Tracks) -> Iterator[Event]:
    """The critical path as a track."""
    steps = [
        step for step in critical_path(timeline.spans) if step.span is not None and _ns(step.end) > _ns(step.begin)
    ]
    tid = tracks.track_of_path() if steps else 0
    for step in steps:
        assert step.span is not None
        name = _encode(f"rank {step.span.rank}: {step.span.name}")
        args = _encode({"kind": step.kind, "rank": step.span.rank, "track": step.span.track})
        yield _slice(name, '"critical path"', tracks.path, tid, _ns(step.begin), _ns(step.end), args)


def _request_events(timeline: Timeline, tracks: _Tracks) -> Iterator[Event]:
    """Requests of a serving engine as lanes; tokens of its steps, its queues, and the use of its cache as counters."""
    for span in timeline.requests:
        tid = tracks.track_of_requests(span.track)
        begin, end = _ns(span.begin), _ns(span.end)
        yield _slice(_encode(span.name), _encode(span.kind), tracks.requests, tid, begin, end, _encode(_args(span)))
    for step in timeline.engine_steps:
        at = _ns(step.at)
        counters: dict[str, dict[str, int]] = {
            "tokens of a step": {"prefill": step.prefill, "decode": step.decode},
            "requests": {"running": step.running, "waiting": step.waiting},
            **({"cache (blocks)": {"used": step.blocks_used}} if step.blocks else {}),
        }
        for name, values in counters.items():
            head = f'"ph":"C","name":{_encode(name)},"pid":{tracks.requests},"ts":{at / 1000}'
            yield at, 1, f'{{{head},"args":{_encode(values)}}}'
