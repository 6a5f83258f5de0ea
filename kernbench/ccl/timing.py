"""How long one collective takes by itself, without a program around it."""

from __future__ import annotations

from kernbench.sim_engine import GraphEngine, Operation
from kernbench.sim_engine.plan import TransferPlan
from kernbench.topology import Topology


def plan_seconds(topology: Topology, plan: TransferPlan) -> float:
    """Seconds until the last member has ended, all having begun at once; the plan's own transfers may meet on links."""
    engine = GraphEngine(topology, enable_data=False)
    parts = [
        Operation(plan.name, "collective", rank=member, sip=member, stream="comm", enqueue=0.0)
        for member in range(plan.members)
    ]
    engine.submit_collective(plan, parts, [()] * plan.members)
    engine.run()
    return max((part.end or 0.0 for part in parts), default=0.0)
