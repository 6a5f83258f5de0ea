"""Prepares matched collectives: algorithm, schedule, plan, values."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from kernbench.ccl.closed_form import closed_form_plan, closed_form_seconds
from kernbench.ccl.config import AUTO, AlgorithmConfig, CclConfig, Fidelity
from kernbench.ccl.lower import lower, lower_library, paced
from kernbench.ccl.movements import move
from kernbench.ccl.placement import Placement
from kernbench.ccl.protocols import ProtocolCosts
from kernbench.ccl.reduce_op import PREMULTIPLIED_AVERAGE, Reduction
from kernbench.ccl.registry import algorithm_module, build_schedule, require_reduction
from kernbench.ccl.schedule import CannotServeError, IntArray, Schedule, Way
from kernbench.ccl.selection import VARIABLES, Selection, select
from kernbench.collective_kinds import KINDS
from kernbench.cost.peer_access import FEW_BLOCKS
from kernbench.errors import ConfigError
from kernbench.sim_engine.plan import TransferPlan, member_ends
from kernbench.topology import Topology

Splits = tuple[int, ...] | tuple[tuple[int, ...], ...]
"""Elements per chunk, where they are not all alike: ``[chunks]``, or ``[members, chunks]`` if members differ."""

Environ = tuple[tuple[str, str], ...]
"""What a rank's environment says to the library, by :data:`kernbench.ccl.selection.VARIABLES`."""

MOST_STEPPED = 1 << 20
"""Transfers, as a ring or an exchange of all with all would have them, up to which ``auto`` steps through them."""


def library_environ() -> Environ:
    """The library's variables in the present environment."""
    return tuple((name, os.environ[name]) for name in VARIABLES if name in os.environ)


@dataclass(frozen=True)
class Request:
    """A collective that is ready to run: what moves, and how long each part takes.

    Attributes:
        op: the collective.
        config: the entry of ``ccl.yaml`` that serves.
        plan: its transfers in time.
        root: a member's number, None without one.
        chunk_offsets: ``[chunks + 1]`` offset of each chunk in a member's buffer, bytes.
        build: makes the schedule; of a closed form it is only needed for values.
        selection: what the library would run, on systems that have one.
        fidelity: how the time was found: ``stepped`` or ``closed_form``.
        note: why something else serves than what was asked for, empty if nothing.
    """

    op: str
    config: AlgorithmConfig
    plan: TransferPlan
    root: int | None
    chunk_offsets: tuple[int, ...]
    build: Callable[[], Schedule]
    selection: Selection | None
    fidelity: str
    note: str

    @cached_property
    def schedule(self) -> Schedule:
        """Who sends which chunk to whom, made when it is first asked for."""
        return self.build()

    @cached_property
    def described(self) -> dict[str, object]:
        """What the op log says of it."""
        detail: dict[str, object] = {
            "algorithm": self.config.name, "backpressure": self.config.backpressure, "steps": len(self.plan),
            "fidelity": self.fidelity,
        }  # fmt: skip
        if self.selection is not None:
            detail |= {"protocol": self.selection.choice.protocol, "channels": self.selection.choice.channels}
        if self.note:
            detail["fallback"] = self.note
        return detail

    @cached_property
    def seconds(self) -> float:
        """How long it takes if all members come at once and nothing else is on the links."""
        return max(member_ends(self.plan, [0.0] * self.plan.members))

    @property
    def channels(self) -> int:
        """Blocks that the library runs it as on each SIP; 0 where no library was asked."""
        return 0 if self.selection is None else self.selection.choice.channels


_KEPT_PLAN = 1 << 13
"""Transfers up to which a plan is kept with its system; a simulation keeps its own plans whatever their size."""

_KEPT_PLANS = 256

_KEPT_RUNNERS = 4


def shared_runner(topology: Topology, config: CclConfig) -> CollectiveRunner:
    """The runner of a system and a configuration, which simulations of one process share with its small plans."""
    kept: list[tuple[CclConfig, CollectiveRunner]] = topology.notes.setdefault("collectives", [])
    for known, runner in kept:
        if known is config:
            return runner
    runner = CollectiveRunner(topology, config.select)
    kept.append((config, runner))
    del kept[:-_KEPT_RUNNERS]
    return runner


class CollectiveRunner:
    """Prepares collectives on one system.

    Args:
        topology: the system.
        entry: gives the entry of ``ccl.yaml`` of a name.
    """

    def __init__(self, topology: Topology, entry: Callable[[str], AlgorithmConfig]) -> None:
        self._topology = topology
        self._entry = entry
        self._kept: dict[tuple[Any, ...], Request] = {}

    @property
    def has_library(self) -> bool:
        """Whether the system's description leaves the choice to the vendor's library: its costs are that one's."""
        return self._topology.system.ccl.algorithm == AUTO

    def request(
        self,
        *,
        op: str,
        config: AlgorithmConfig,
        sips: tuple[int, ...],
        root: int | None,
        count: int,
        itemsize: int,
        dtype: str,
        splits: Splits | None = None,
        environ: Environ = (),
        fidelity: Fidelity = "auto",
        reduction: str | None = None,
        blocks: int = FEW_BLOCKS,
    ) -> Request:
        """Prepare ``op`` over members on ``sips``.

        Args:
            root: a member's number.
            count: elements of the work buffer, which is cut into chunks of equal length.
            splits: the lengths of the chunks, where they are not equal.
            environ: what the users' environment says to the library.
            fidelity: how to find the time.
            reduction: its name, for collectives that reduce.
            blocks: of a kernel whose ranks read each other's buffers, of 512 threads each.

        Raises :class:`ConfigError` if ``config``'s algorithm implements another collective.
        """
        asked = (op, config, sips, root, count, itemsize, dtype, splits, environ, fidelity, reduction, blocks)
        found = self._kept.get(asked)
        if found is not None:
            return found
        wanted = KINDS[op].runs_as or op
        if config.name != AUTO:
            _check(config, wanted)
        where = Placement.of(self._topology, sips)
        nbytes = _library_bytes(wanted, count, len(sips), splits) * itemsize
        notes: list[str] = []
        switches = _in_switches(reduction, environ)
        served, selection = self._choose(config, wanted, nbytes, where, switches, notes, blocks)
        closed = self._closed_seconds(served, selection, wanted, where, nbytes, dtype, fidelity, notes)
        chunks = None if selection is None else selection.chunks

        def build() -> Schedule:
            return build_schedule(served.module, len(sips), root, where, chunks)

        try:
            require_reduction(algorithm_module(served.module), reduction)
            if closed is None:
                schedule = build()
                if splits is not None and schedule.scratch:
                    raise CannotServeError(f"{served.name}: chunks of different lengths")
        except CannotServeError as error:
            default = KINDS[wanted].fallback
            if served.name == default:
                raise
            again = self.request(
                op=op, config=self._entry(default), sips=sips, root=root, count=count, itemsize=itemsize, dtype=dtype,
                splits=splits, environ=environ, fidelity=fidelity, reduction=reduction, blocks=blocks,
            )  # fmt: skip
            return self._keep(asked, replace(again, note="; ".join([*notes, f"{error}; {default} instead"])))
        if closed is not None:
            plan = closed_form_plan(served.name, len(sips), closed)
            offsets: tuple[int, ...] = (0, count * itemsize)
        else:
            counts = _counts(schedule, count, splits)
            plan = self._stepped(schedule, sips, served, selection, wanted, nbytes, counts, itemsize, dtype)
            bounds = schedule.chunk_bounds(count) * itemsize
            offsets = (*bounds.tolist(), *(int(bounds[chunk]) for chunk in schedule.scratch))
        how = "stepped" if closed is None else "closed_form"
        costs = selection if self.has_library else None
        return self._keep(asked, Request(op, served, plan, root, offsets, build, costs, how, "; ".join(notes)))

    def _keep(self, asked: tuple[object, ...], found: Request) -> Request:
        """Remember a request whose plan is small, and give it back."""
        if len(found.plan) <= _KEPT_PLAN:
            if len(self._kept) >= _KEPT_PLANS:
                self._kept.clear()
            self._kept[asked] = found
        return found

    def _choose(
        self,
        config: AlgorithmConfig,
        wanted: str,
        nbytes: int,
        where: Placement,
        environ: Environ,
        notes: list[str],
        blocks: int,
    ) -> tuple[AlgorithmConfig, Selection | None]:
        """The entry that serves, and what the library would run, where there is one or it is asked for."""
        automatic = config.name == AUTO
        if not automatic and not self.has_library:
            return config, None
        system = self._topology.system
        try:
            if automatic:
                selection = select(system, wanted, nbytes, where, environ=dict(environ))
                if selection.note:
                    notes.append(selection.note)
                return self._entry(selection.entry), selection
            name = _LIBRARY_NAMES.get(config.name)
            if name is not None:
                try:
                    return config, select(system, wanted, nbytes, where, algorithm=name, blocks=blocks)
                except ConfigError:
                    pass  # the library would not run it here: its steps cost what those of its default do
            default = "ring" if KINDS[wanted].laps else None
            plain = select(system, wanted, nbytes, where, algorithm=default if len(where.node) > 1 else None)
            return config, plain.without_seconds() if plain.entry != config.name else plain
        except ConfigError as error:
            if automatic:
                fallback = KINDS[wanted].fallback
                notes.append(f"{error}; {fallback} instead")
                return self._entry(fallback), None
            return config, None

    def _closed_seconds(
        self,
        config: AlgorithmConfig,
        selection: Selection | None,
        wanted: str,
        where: Placement,
        nbytes: int,
        dtype: str,
        fidelity: Fidelity,
        notes: list[str],
    ) -> float | None:
        """Seconds of the closed form, if it is to be used."""
        if fidelity == "stepped" or (fidelity == "auto" and where.members**2 <= MOST_STEPPED):
            return None
        if self.has_library:
            found = None if selection is None else selection.seconds
        else:
            found = closed_form_seconds(self._topology, config, where, nbytes, dtype)
        if found is None and fidelity == "closed_form":
            notes.append(f"{config.name} has no closed form here: stepped instead")
        return found

    def _stepped(
        self,
        schedule: Schedule,
        sips: Sequence[int],
        config: AlgorithmConfig,
        selection: Selection | None,
        wanted: str,
        nbytes: int,
        counts: IntArray,
        itemsize: int,
        dtype: str,
    ) -> TransferPlan:
        if selection is None or not self.has_library or not len(schedule):
            return lower(schedule, self._topology, sips, config, counts=counts, itemsize=itemsize, dtype=dtype)
        algorithm, protocol = selection.choice.algorithm, selection.choice.protocol
        if protocol != "multicast" and selection.world.generation.nvls_share and (schedule.way >= Way.UP).any():
            algorithm, protocol = "nvls", "simple"  # whatever the library would run instead
        costs = ProtocolCosts.of(selection.world, algorithm, protocol, wanted, nbytes, selection.chunks)
        plan = lower_library(schedule, self._topology, sips, costs, counts=counts, itemsize=itemsize)
        return plan if selection.seconds is None else paced(plan, selection.seconds)

    @staticmethod
    def move(
        request: Request,
        inputs: Sequence[Sequence[torch.Tensor]],
        outputs: Sequence[Sequence[torch.Tensor]],
        reduction: Reduction | None,
    ) -> None:
        """Move the values: every member's inputs into every member's outputs, in the schedule's own order."""
        move(request.op, request.schedule, inputs, outputs, reduction, request.root)


def _in_switches(reduction: str | None, environ: Environ) -> Environ:
    """What the environment says, and that switches do not average floats for NCCL (``ncclNvlsSupported``,
    ``src/include/device.h`` of 2.27); named algorithms are taken literally."""
    if reduction != PREMULTIPLIED_AVERAGE.value or any(name == "NCCL_ALGO" for name, _ in environ):
        return environ
    return (*environ, ("NCCL_ALGO", "^nvls,nvls_tree"))


_LIBRARY_NAMES = {entry: name for kind in KINDS.values() for name, entries in kind.library.items() for entry in entries}


def _check(config: AlgorithmConfig, wanted: str) -> None:
    module = algorithm_module(config.module)
    implements = module.COLLECTIVE
    if implements != wanted:
        raise ConfigError(f"algorithm {config.name} implements {implements}, not {wanted}")
    if config.topology not in module.TOPOLOGIES:
        raise ConfigError(
            f"ccl.yaml: algorithms.{config.name}: topology {config.topology}, but {config.module} works on "
            f"{', '.join(module.TOPOLOGIES)}"
        )


def _library_bytes(wanted: str, count: int, members: int, splits: Splits | None) -> int:
    """Elements of nccl-tests' size column: the whole buffer of a member, what it gets of an all-to-all not counted."""
    if splits is not None:
        total = int(np.asarray(splits).sum())
        return total // members if isinstance(splits[0], tuple) else total
    return count // 2 if KINDS[wanted].exchanges else count


def _counts(schedule: Schedule, count: int, splits: Splits | None) -> IntArray:
    """``[transfers]`` elements that each transfer carries."""
    if splits is None:
        return schedule.slot_lengths(count)[schedule.chunk]
    sizes = np.asarray(splits, dtype=np.int64)
    return sizes[schedule.chunk] if sizes.ndim == 1 else sizes[schedule.src, schedule.chunk]
