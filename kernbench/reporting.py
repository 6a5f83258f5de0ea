"""What a program says of itself to who simulates it: batches and steps. On real devices these do nothing.

    import kernbench

    for batch in loader:
        kernbench.report_batch(tokens=global_batch_size * sequence_length)
        ...

Importing this imports nothing else, so that a program may keep the calls wherever it runs.
"""

from __future__ import annotations

import sys
from typing import Any


def report_batch(*, tokens: int = 0, samples: int = 0) -> None:
    """Say how much is trained on: what the **whole job** works on here, over all ranks together.

    What is given between two steps is added up, so a program that accumulates gradients may call it for each microbatch. Every
    rank may call it, and one is enough: of a step, the largest of the ranks' sums counts, and if they differ that is said.

    Args:
        tokens: of all ranks, such as global batch size times sequence length.
        samples: of all ranks: the global batch size.

    Raises:
        ValueError: one is negative or no whole number.
    """
    for name, value in (("tokens", tokens), ("samples", samples)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"report_batch({name}={value!r}): expected a whole number of {name}, at least 0")
    simulation = _current_simulation()
    if simulation is not None:
        account = simulation.hosts.current().account
        account.tokens += tokens
        account.samples += samples


def report_step() -> None:
    """Say that a step ends here, in every rank: for programs without an optimizer of torch's, or whose steps are others.

    Once a rank has called it, its optimizers are not counted. ``kernbench run --steps`` stops a program here.
    """
    simulation = _current_simulation()
    if simulation is not None:
        simulation.steps.tell()


def _current_simulation() -> Any:
    """The simulation whose rank runs, None outside: then the module that knows it is not imported."""
    known = sys.modules.get("kernbench.simulation.active_simulation")
    return None if known is None else known.current_simulation()
