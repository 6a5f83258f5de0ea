"""The options of :func:`kernbench.simulate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.defaults import DEFAULT_SYSTEM, LOG_LIMIT
from kernbench.options import kinds
from kernbench.options.record import Checked, option

if TYPE_CHECKING:
    from kernbench.ccl.config import CclConfig
    from kernbench.scheduler import HostEffects
    from kernbench.topology import TopologyHandle


@dataclass(frozen=True)
class SimulateOptions(Checked):
    """The arguments of :func:`kernbench.simulate`, which the command line and marks of tests have, too."""

    system: str | Path | TopologyHandle | None = option(
        kinds.SYSTEM, None, "System to run on: a shipped one's name (see `kernbench systems`), a YAML file or, in Python, a "
        "handle.", "--system", metavar="NAME|FILE", shown=f"{DEFAULT_SYSTEM}, generic accelerators", mark=True,
    )  # fmt: skip
    world_size: int | None = option(
        kinds.COUNT, None, "Ranks that the program will use, at most; checked against the system now, instead of when they are "
        "spawned.",
    )  # fmt: skip
    nodes: int | None = option(
        kinds.COUNT, None, "Nodes: the system's node is repeated this many times, also that of a handle.", "--nnodes",
        shown="the system's own", mark=True,
    )  # fmt: skip
    enable_data: bool = option(
        kinds.FLAG, True, "Compute values. Without, time and memory alone are modelled, at real size, and values only where "
        "they are small and follow from known ones (docs/real_size.md).", "--data/--no-data", mark=True,
    )  # fmt: skip
    seed: int = option(
        kinds.SEED, 0, "Seeds the ranks' random generators, the random policy and jitter.", "--seed", mark=True
    )
    policy: str = option(
        kinds.choice("round_robin", "random"), "round_robin", "Which runnable rank goes first.", mark=True
    )
    devices: Sequence[int] | range | int | str = option(kinds.DEVICES, "all", "The SIPs that ranks may drive.")
    correlation_id: str = option(kinds.TEXT, "", "A name for this run, in reports and traces.")
    ccl: CclConfig | Path | str | None = option(
        kinds.COLLECTIVES, None, "Configuration of collectives, or its file; by default the ccl.yaml in the working directory "
        "over the shipped one.",
    )  # fmt: skip
    plugins: Sequence[object] = option(
        kinds.LIST, (), "Objects, modules or references that take part in this simulation, besides the plugins that are "
        "installed (docs/plugins.md). On the command line: --plugin.",
    )  # fmt: skip
    options: Mapping[str, object] | None = option(
        kinds.MAPPING, None, "Values of the plugins' options. On the command line each is an option."
    )
    log_limit: int | None = option(
        kinds.COUNT_OR_ALL, LOG_LIMIT, "Operations that the op log keeps, the last ones; None: all.", none=True
    )
    memory_limit: int | str = option(
        kinds.LIMIT, "device", "Bytes, also as 80GB, that each process may reserve for tensors on a GPU; device: what it has, "
        "less what CUDA and its libraries take; off: any number.", "--memory-limit", metavar="SIZE|off",
    )  # fmt: skip
    host_effects: HostEffects | None = option(
        kinds.EFFECTS, None, "What the simulation may do to the process while ranks run; by default all of it.",
        variable="KERNBENCH_HOST_EFFECTS",
    )  # fmt: skip
    unknown: str = option(
        kinds.choice("assume", "error"), "assume", "Without data, what a look at a value that was not computed gets: a neutral "
        "one, which is said once per line, or an error.", "--unknown",
    )  # fmt: skip
    ranks: str = option(
        kinds.RANKS, "all", "Without data, the ranks to run (0,8-11); the others are taken to do what these do "
        "(docs/real_size.md). auto: one of each class of ranks that do the same.", "--ranks", metavar="auto|all|LIST",
    )  # fmt: skip
    exact_dtype: bool = option(
        kinds.FLAG, False, "Compute products of 16-bit floats as this CPU does by itself, also where it is many times faster "
        "in 32 bits, rounded once (the default there).", "--exact-dtype",
    )  # fmt: skip
    fill_uninitialized: str = option(
        kinds.choice("off", "nan", "0xAA"), "off", "Fill the memory that torch.empty and its kin give: NaN and the largest "
        "value of integers, as torch.utils.deterministic does, or 0xAA in every byte.", "--fill-uninitialized",
    )  # fmt: skip
    races: bool | str | None = option(
        kinds.RACES, None, "Look for accesses to the same memory that nothing orders, and for reads of unwritten memory "
        "(docs/order.md): stop at the first (error, True), or collect and print them (warn).", "--races", alone="error",
        variable="KERNBENCH_RACES",
    )  # fmt: skip
    memory: str = option(
        kinds.choice("strong", "weak"), "strong", "What a read sees that nothing orders behind a write: what was written last "
        "or, weak, what was there before, as it may on hardware; with a schedule, as that says (docs/order.md).", "--memory",
    )  # fmt: skip
    jitter: float = option(
        kinds.SHARE, 0.0, "Standard deviation of the time that the kernels of a rank take, as a share (0.02), between ranks "
        "and from step to step; drawn from the seed.", "--jitter", metavar="SHARE",
    )  # fmt: skip
    stragglers: Mapping[int, float] | None = option(
        kinds.PACES, None, "Ranks whose kernels take so many times as long: {3: 1.2}; on the command line 3:1.2, which may be "
        "repeated.",
        "--straggler", many=True,
    )  # fmt: skip
    schedule: str | None = option(
        kinds.instance("a text: default, random:SEED, or what kernbench explore has printed", str), None,
        "What goes first where several things could (docs/order.md): default, random:SEED, or what kernbench explore has "
        "printed.", "--schedule", metavar="STRING", variable="KERNBENCH_SCHEDULE",
    )  # fmt: skip
    stop_after_steps: int | None = option(
        kinds.COUNT, None, "Stop the ranks after so many optimizer steps, as sys.exit() in all of them would.", "--steps",
        metavar="K",
    )  # fmt: skip
