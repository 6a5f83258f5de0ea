"""Times of calls by a GPU's events, a real one's or a simulated one's; and options that name sets of cases."""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Collection, Sequence

import torch


def events(count: int) -> list[torch.cuda.Event]:
    """Events that have their times."""
    return [torch.cuda.Event(enable_timing=True) for _ in range(count)]


def between(marks: Sequence[torch.cuda.Event]) -> float:
    """Median seconds from one event to the next, once the device has come to the last."""
    torch.cuda.synchronize()
    return statistics.median(first.elapsed_time(second) * 1e-3 for first, second in itertools.pairwise(marks))


def captured(call: Callable[[], object], times: int, stream: torch.cuda.Stream | None = None) -> torch.cuda.CUDAGraph:
    """A graph of ``times`` of a call that has been called before; ``stream``: on which it is captured, None: torch's own."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(times):
            call()
    return graph


def of_replays(graph: torch.cuda.CUDAGraph, replays: int) -> float:
    """Median seconds of a replay, after one that is not counted."""
    graph.replay()
    marks = events(replays + 1)
    for mark in marks[:-1]:
        mark.record()
        graph.replay()
    marks[-1].record()
    return between(marks)


def names_of(sets: Collection[str]) -> Callable[[str], list[str]]:
    """The type of an option that takes names of ``sets``, by commas."""

    def parsed(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in sets]
        if unknown:
            raise argparse.ArgumentTypeError(f"no set {', '.join(unknown)}; there are {', '.join(sets)}")
        return names

    return parsed
