"""Runs matched collectives: schedule, plan, values, log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from kernbench.ccl.config import AlgorithmConfig
from kernbench.ccl.lower import lower
from kernbench.ccl.reduce_op import ReduceOp
from kernbench.ccl.registry import algorithm_module, build_schedule
from kernbench.ccl.schedule import Schedule
from kernbench.ccl.values import run_all_reduce, run_copies
from kernbench.errors import ConfigError
from kernbench.sim_engine.plan import TransferPlan
from kernbench.topology import Topology

_IMPLEMENTS = {"barrier": "all_reduce"}


@dataclass(frozen=True)
class Request:
    """A collective that is ready to run: what moves, and how long each part takes."""

    op: str
    config: AlgorithmConfig
    schedule: Schedule
    plan: TransferPlan


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
    ) -> Request:
        """Prepare ``op`` over members on ``sips``; ``root`` is a member's number.

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
        plan = lower(schedule, self._topology, sips, config, count=count, itemsize=itemsize, dtype=dtype)
        return Request(op, config, schedule, plan)

    @staticmethod
    def move(
        request: Request, sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], reduction: ReduceOp | None
    ) -> None:
        """Move the values: ``members`` sources into as many targets, in the schedule's own order."""
        if request.op == "barrier":
            return
        flat_targets = [_flat(target) for target in targets]
        same = all(source is target for source, target in zip(sources, targets, strict=True))
        flat_sources = flat_targets if same else [_flat(source) for source in sources]
        with torch.no_grad():
            if reduction is None:
                run_copies(request.schedule, flat_sources, flat_targets)
            else:
                run_all_reduce(request.schedule, flat_sources, flat_targets, reduction)
            for target, flat in zip(targets, flat_targets, strict=True):
                if flat.data_ptr() != target.data_ptr():
                    target.copy_(flat.view(target.shape))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as ``[count]``: a view where it is contiguous, else a copy that the caller writes back."""
    return tensor.detach().reshape(-1)
