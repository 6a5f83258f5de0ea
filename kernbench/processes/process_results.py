"""What a rank's process leaves behind when its program has ended: what reports are made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernbench import stand_ins
from kernbench.cost.unmodelled import Unmodelled
from kernbench.simulation.ranks.hosts import Host
from kernbench.simulation.ranks.work_counts import Account
from kernbench.simulation.simulation import Simulation


@dataclass(eq=False)
class Legacy:
    """Of one rank.

    Attributes:
        clock, busy, sip: of its host.
        account: of its host.
        uses_gpu: whether it has used a GPU.
        stopped: whether it was stopped after its last step.
        unmodelled: operators without a model that it has called.
        uncounted: operators whose FLOPs are not counted.
        remarks: what is to be said besides.
        memories: of each SIP that it has used, what its allocator and ledger say in the end.
    """

    clock: float
    busy: float
    sip: int
    account: Account
    uses_gpu: bool
    stopped: bool
    unmodelled: Unmodelled
    uncounted: set[str]
    remarks: list[str]
    memories: dict[int, dict[str, object]] = field(default_factory=dict)

    @classmethod
    def of(cls, simulation: Simulation, host: Host) -> Legacy:
        """In the rank's process, at its end."""
        costs = simulation.op_costs
        steps = simulation.steps.of_rank.get(host.rank if host.rank is not None else -1)
        legacy = cls(
            host.clock, host.busy, host.sip, host.account, host.uses_gpu, steps is not None and steps.stopped,
            costs.unmodelled.portable(), set(costs.uncounted), [*simulation.remarks, *stand_ins.remarks()],
        )  # fmt: skip
        for memory in simulation.memories.of(host):
            memory.claim_all()
            legacy.memories[memory.ledger.sip] = memory.portable()
        return legacy

    def leave(self, simulation: Simulation, host: Host) -> None:
        """In the simulation."""
        assert host.rank is not None
        steps = simulation.steps.of_rank[host.rank]
        steps.stopped = steps.stopped or self.stopped
        host.clock, host.busy, host.sip, host.account = self.clock, self.busy, self.sip, self.account
        host.uses_gpu = self.uses_gpu
        simulation.op_costs.unmodelled.add(self.unmodelled)
        simulation.op_costs.uncounted |= self.uncounted
        for remark in self.remarks:
            simulation.remarks.setdefault(remark)
        for memory in simulation.memories.of(host):
            memory.restore(self.memories[memory.ledger.sip])
