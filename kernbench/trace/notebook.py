"""What a notebook shows of a simulation: a table of its ranks, their memory, the timeline's picture, its notes."""

from __future__ import annotations

from typing import Protocol

from kernbench.notebook_html import block, folded, paragraph, picture, preformatted, table
from kernbench.plurals import counted
from kernbench.sim_engine.engine import GraphEngine
from kernbench.simulation.simulation import Simulation
from kernbench.topology.units import DURATION
from kernbench.trace.memory_report import memory_lines
from kernbench.trace.notes import notes_of
from kernbench.trace.picture import timeline_picture
from kernbench.trace.rank_tables import table_lines
from kernbench.trace.rank_times import TIME_HEADS, rank_times, time_rows
from kernbench.trace.timeline import HasEngine, Timeline


class Shown(HasEngine, Protocol):
    """A context, as far as a notebook shows it."""

    engine: GraphEngine
    simulation: Simulation


def context_html(ctx: Shown) -> str:
    """What has run so far; nothing is run or waited for."""
    times = rank_times(ctx.simulation)
    timeline = Timeline.of(ctx)
    system = ctx.engine.topology.system.name
    if not timeline.spans:
        return block(paragraph(f"kernbench on {system}: nothing has taken time yet", bold=True))
    parts = [
        paragraph(f"kernbench on {system}: {counted(len(times), 'rank')}, {DURATION.format(timeline.end)}", bold=True)
    ]
    lines = [*table_lines(time_rows(times), "slowest", "quickest")]
    parts.append(table((*TIME_HEADS, ""), ((line.name, *line.cells, line.mark) for line in lines)))
    parts.append(picture(timeline_picture(timeline), "timeline"))
    if memory := "\n".join(memory_lines(ctx)):
        parts.append(folded("memory", preformatted(memory)))
    parts += [paragraph(note) for note in notes_of(ctx.simulation, times)]
    return block(*parts)
