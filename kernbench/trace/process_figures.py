"""Figures of a program's processes that are no ranks, each with a GPU of its own: what one writes, what a run prints of all.

Each has a simulation of its own; the run that has started them reads their figures from a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel, ConfigDict, ValidationError

from kernbench.memory.limits import format_size
from kernbench.plurals import counted
from kernbench.simulation.simulation import Simulation
from kernbench.trace.memory_report import fullest_of_ranks
from kernbench.trace.notes import notes_of
from kernbench.trace.rank_times import TIME_HEADS, rank_times

_SHOWN = 16
"""Processes that are printed one by one, the slowest first."""

OWN_CLOCKS = (
    "processes that are no ranks and used GPUs have a clock each, from the first use of a GPU on: nothing waits for another "
    "process in virtual time, and the memory of a GPU is counted for each process alone"
)


class ProcessFigures(BaseModel):
    """Where the time of one process went (virtual seconds), and its memory.

    Attributes:
        name: as ``multiprocessing`` calls it; of another program, its file.
        pid: of the process.
        ended: whether these are the figures of its end; False: of its beginning, all are 0.
        gpu: number of the GPU on which it needed most memory, as it counts them.
        allocated_bytes, reserved_bytes: at the peak, as ``torch.cuda.max_memory_allocated`` and ``max_memory_reserved`` say.
        notes: what was assumed, estimated or not modelled.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    pid: int
    ended: bool = False
    seconds: float = 0.0
    compute: float = 0.0
    communication: float = 0.0
    host: float = 0.0
    idle: float = 0.0
    gpu: int = 0
    allocated_bytes: int = 0
    reserved_bytes: int = 0
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, simulation: Simulation, name: str, pid: int) -> ProcessFigures:
        """Those of a simulation's only rank, up to now."""
        times = rank_times(simulation)
        (time,) = times
        memory = fullest_of_ranks(simulation).get(time.rank)
        gpu, allocated, reserved = (0, 0, 0) if memory is None else (memory.device, memory.peak, memory.peak_reserved)
        return cls(
            name=name, pid=pid, ended=True, seconds=time.total, compute=time.compute, communication=time.communication,
            host=time.host, idle=time.idle, gpu=gpu, allocated_bytes=allocated, reserved_bytes=reserved,
            notes=notes_of(simulation, times),
        )  # fmt: skip


def written(figures: ProcessFigures) -> bytes:
    """A line of the file in which processes write."""
    return figures.model_dump_json().encode() + b"\n"


def read(lines: bytes) -> list[ProcessFigures]:
    """What processes have written, the last of each, by name; a line that none of them can have written is left out."""
    found: dict[int, ProcessFigures] = {}
    for line in lines.splitlines():
        try:
            figures = ProcessFigures.model_validate_json(line)
        except ValidationError:
            continue
        found[figures.pid] = figures
    return sorted(found.values(), key=lambda each: (each.name, each.pid))


def process_lines(found: Sequence[ProcessFigures], *, races: bool = False) -> Iterator[str]:
    """A table of them, line by line, and what must be said beside it; nothing if there are none.

    ``races``: whether races of ranks are collected, which those of these processes are not."""
    if not found:
        return
    yield f"\n{counted(len(found), 'process', 'processes')} with a GPU of {'its' if len(found) == 1 else 'their'} own"
    ended = sorted((each for each in found if each.ended), key=lambda each: -each.seconds)
    width = max((len(each.name) for each in ended[:_SHOWN]), default=0)
    for each in ended[:_SHOWN]:
        shares = (each.compute, each.communication, each.idle, each.host)
        parts = (share / each.seconds if each.seconds else 0.0 for share in shares)
        of_time = ", ".join(f"{name} {part:.1%}" for name, part in zip(TIME_HEADS[2:], parts, strict=True))
        peak = f"{format_size(each.allocated_bytes)} allocated on GPU {each.gpu}"
        yield f"{each.name:>{width}} {each.seconds * 1e3:12.4f} ms: {of_time}; {peak}"
    if len(ended) > _SHOWN:
        yield f"and {len(ended) - _SHOWN} quicker ones"
    if lost := len(found) - len(ended):
        yield f"no figures of {counted(lost, 'process', 'processes')}: killed, or still running"
    yield OWN_CLOCKS
    if races:
        yield "races within them are not collected: --races error has each stop at its first"
    yield from dict.fromkeys(note for each in found for note in each.notes)
