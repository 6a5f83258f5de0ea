"""Prepares matched collectives: schedule, plan, values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from kernbench.ccl.config import AlgorithmConfig
from kernbench.ccl.lower import lower
from kernbench.ccl.movements import move
from kernbench.ccl.reduce_op import ReduceOp
from kernbench.ccl.registry import algorithm_module, build_schedule
from kernbench.ccl.schedule import IntArray, Schedule
from kernbench.errors import ConfigError
from kernbench.sim_engine.plan import TransferPlan
from kernbench.topology import Topology

_IMPLEMENTS = {"barrier": "all_reduce", "monitored_barrier": "all_reduce"}

Splits = tuple[int, ...] | tuple[tuple[int, ...], ...]
"""Elements per cell, where they are not all alike: ``[cells]``, or ``[members, cells]`` if members differ."""


@dataclass(frozen=True)
class Request:
    """A collective that is ready to run: what moves, and how long each part takes."""

    op: str
    config: AlgorithmConfig
    schedule: Schedule
    plan: TransferPlan
    root: int | None
    cell_offsets: tuple[int, ...]


class CollectiveRunner:
    """Prepares collectives on one system. Plans are kept: a training step repeats the same ones."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.request = lru_cache(maxsize=256)(self._request)

    def _request(
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
    ) -> Request:
        """Prepare ``op`` over members on ``sips``.

        Args:
            root: a member's number.
            count: elements of the work buffer, which is cut into cells of equal length.
            splits: the lengths of the cells, where they are not equal.

        Raises :class:`ConfigError` if ``config``'s algorithm implements another collective.
        """
        module = algorithm_module(config.module)
        implements = module.COLLECTIVE
        wanted = _IMPLEMENTS.get(op, op)
        if implements != wanted:
            raise ConfigError(f"algorithm {config.name} implements {implements}, not {wanted}")
        if config.topology not in module.TOPOLOGIES:
            raise ConfigError(
                f"ccl.yaml: algorithms.{config.name}: topology {config.topology}, but {config.module} works on "
                f"{', '.join(module.TOPOLOGIES)}"
            )
        schedule = build_schedule(config.module, len(sips), root)
        bounds = schedule.cell_bounds(count)
        plan = lower(
            schedule, self._topology, sips, config, counts=_counts(schedule, bounds, splits), itemsize=itemsize,
            dtype=dtype,
        )  # fmt: skip
        return Request(op, config, schedule, plan, root, tuple((bounds * itemsize).tolist()))

    @staticmethod
    def move(
        request: Request,
        inputs: Sequence[Sequence[torch.Tensor]],
        outputs: Sequence[Sequence[torch.Tensor]],
        reduction: ReduceOp | None,
    ) -> None:
        """Move the values: every member's inputs into every member's outputs, in the schedule's own order."""
        move(request.op, request.schedule, inputs, outputs, reduction, request.root)


def _counts(schedule: Schedule, bounds: IntArray, splits: Splits | None) -> IntArray:
    """``[transfers]`` elements that each transfer carries."""
    if splits is None:
        return np.diff(bounds)[schedule.cell]
    sizes = np.asarray(splits, dtype=np.int64)
    return sizes[schedule.cell] if sizes.ndim == 1 else sizes[schedule.src, schedule.cell]
