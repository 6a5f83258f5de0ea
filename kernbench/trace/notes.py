"""What must be said of a run beside its figures: who stood in for whom, what was assumed, estimated, or not modelled."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.simulation.simulation import Simulation
from kernbench.trace.rank_times import RankTime


def notes_of(simulation: Simulation, times: Sequence[RankTime]) -> tuple[str, ...]:
    """What to say of a simulation whose ranks took ``times``, in sentences, each once."""
    folding = simulation.hosts.folding
    return (
        *(() if folding is None else (str(folding), *folding.unlike({line.rank: line.compute for line in times}))),
        *simulation.op_costs.unmodelled.sentences,
        *simulation.assumptions.notes,
        *simulation.remarks,
        *filter(None, (simulation.engine.op_log.note,)),
    )
