"""What must be said of a run beside its figures: who stood in for whom, what was assumed, estimated, or not modelled."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.simulation.simulation import Simulation
from kernbench.trace.rank_times import RankTime

INTERRUPTED = "interrupted by {}: figures are those up to there"
"""Of a run that a signal has ended."""


def notes_of(simulation: Simulation, times: Sequence[RankTime]) -> tuple[str, ...]:
    """What to say of a simulation whose ranks took ``times``, in sentences, each once."""
    folding = simulation.hosts.folding
    computed = {line.rank: line.compute for line in times}
    device = simulation.topology.device
    generic = not device.product and any(host.uses_gpu for host in simulation.hosts.of_rank.values())
    return (
        *([INTERRUPTED.format(simulation.interrupted)] if simulation.interrupted else ()),
        *(
            [
                f"no GPU: on this system `cuda` is a {device.description or device.name}, and times are its own; "
                "--system dgx_h100 has GPUs (kernbench systems lists others)"
            ]
            if generic
            else ()
        ),
        *(() if folding is None else (str(folding), *folding.calls, *folding.unlike(computed))),
        *simulation.op_costs.unmodelled.sentences,
        *simulation.assumptions.notes,
        *simulation.jitter.sentences(len(times) if folding is None else folding.world),
        *simulation.disks.sentences(),
        *simulation.remarks,
        *filter(None, (simulation.engine.op_log.note,)),
    )
