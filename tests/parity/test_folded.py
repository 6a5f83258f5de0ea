"""Ranks that do the same, run once: the same times, memory and bytes as if all of them ran."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

import kernbench
from tests.parity import gpu_programs

WORLD = 16


class Outcome(NamedTuple):
    """Who ran, and of each of those: peak bytes, bytes of all its operations, and the time at the end."""

    live: tuple[int, ...]
    peaks: dict[int, int]
    nbytes: dict[int, int]
    end: float
    said: str


def outcome(program: Callable[..., None], ranks: str) -> Outcome:
    with kernbench.simulate("dgx_h100", nodes=2, enable_data=False, log_limit=None, ranks=ranks) as ctx:

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank % 8)
            dist.init_process_group("nccl")
            program(rank, WORLD, 32)
            dist.destroy_process_group()

        ctx.multiprocessing.spawn(worker, nprocs=WORLD)
        found = ctx.simulation.hosts.folding
        live = tuple(range(WORLD)) if found is None else found.live
        nbytes = dict.fromkeys(live, 0)
        for op in ctx.engine.op_log.operations:
            if op.rank in nbytes:
                nbytes[op.rank] += op.nbytes
        by_sip = {ledger.sip: ledger.peak for ledger in ctx.engine.op_log.ledgers}
        peaks = {rank: by_sip[ctx.sips[rank]] for rank in live}
        return Outcome(live, peaks, nbytes, ctx.now(), str(found))


@pytest.fixture(autouse=True)
def one_step_of_one_layer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And torch does not warn, which it does once per process: a rank that does looks at the clock."""
    monkeypatch.setattr(gpu_programs, "STEPS", 1)
    monkeypatch.setattr(gpu_programs, "LAYERS", 1)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    yield
    logging.disable(before)


LAYOUTS: dict[str, tuple[Any, int]] = {
    "data_parallel": (gpu_programs.data_parallel, 2),
    "fsdp2": (gpu_programs.fsdp2, 2),
    "hsdp": (gpu_programs.hsdp, 2),
    "tensor_and_sharded": (gpu_programs.tensor_and_sharded, 2),
    "pipeline_and_data": (gpu_programs.pipeline_and_data, 4),
    "expert_parallel": (gpu_programs.expert_parallel, 2),
}

QUICK = ("data_parallel", "pipeline_and_data")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in LAYOUTS]
)
def test_folded_ranks_take_what_all_of_them_take(name):
    """Within 1 %, and not to the bit: links that several groups share carry what the groups that run send, not their
    siblings'; and ranks that are represented by others have no jitter of their own in who comes first."""
    program, count = LAYOUTS[name]
    folded, whole = outcome(program, "auto"), outcome(program, "all")
    assert len(folded.live) == count, folded.said
    assert folded.end == pytest.approx(whole.end, rel=0.01)
    for rank in folded.live:
        assert folded.peaks[rank] == whole.peaks[rank]
        assert folded.nbytes[rank] == whole.nbytes[rank]


@pytest.mark.parametrize(
    ("ranks", "message"),
    [("99", "rank 99 is not one of a world of 16"), ("x", "expected auto, all, or ranks"), ("3-1", "ranks")],
)
def test_ranks_that_are_none(ranks, message):
    with pytest.raises(kernbench.ConfigError, match=message):
        outcome(lambda rank, world, width: None, ranks)


def test_ranks_stand_in_for_others_only_without_data():
    with pytest.raises(kernbench.ConfigError, match="only without data"), kernbench.simulate("dgx_h100", ranks="auto"):
        pass


def test_a_message_to_a_rank_that_does_not_run_is_an_error_that_says_what_to_do():
    def program(rank: int, world: int, width: int) -> None:
        x = torch.ones(4, device="cuda")
        if rank == 0:
            dist.send(x, 5)
        elif rank == 5:
            dist.recv(x, 0)

    with pytest.raises(kernbench.SpawnException, match=r"needs rank 5, which is not run.*--ranks all"):
        outcome(program, "0,15")
