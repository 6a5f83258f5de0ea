"""Files take what the storage of a node needs: ``torch.save``, ``torch.load``, distributed checkpoints."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import kernbench
from kernbench.topology import resolve_topology
from kernbench.trace.notes import notes_of
from kernbench.trace.rank_times import rank_times

READ, WRITE, LATENCY = 4e9, 2e9, 1e-3
SIZE = 1 << 20  # float32: 4 MiB
BYTES = 4 * SIZE


@pytest.fixture
def system(tmp_path: Path) -> str:
    path = tmp_path / "with_files.yaml"
    path.write_text(
        f"extends: dgx_h100\nsystem:\n  storage: {{read: {READ / 1e9:g} GB/s, write: {WRITE / 1e9:g} GB/s, latency: 1 ms}}\n"
    )
    return str(path)


def run(body: Callable[[int], Any], system: str, count: int = 1, *, isolation: str = "carrier", **options: Any) -> Any:
    """What ``body(rank)`` gives, by rank, and what the run says of itself."""
    found: dict[int, Any] = {}

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank % torch.cuda.device_count())
        dist.init_process_group("nccl")
        found[rank] = body(rank)
        dist.destroy_process_group()

    with kernbench.simulate(system, **options) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=count, isolation=isolation)
        return found, notes_of(ctx.simulation, rank_times(ctx.simulation)), ctx.engine.now


def took(call: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


@pytest.mark.parametrize("data", [True, False])
def test_a_file_takes_its_bytes_and_the_latency(system: str, tmp_path: Path, data: bool) -> None:
    path = tmp_path / "one.pt"

    def body(rank: int) -> Any:
        tensor = torch.zeros(SIZE)
        saved = took(lambda: torch.save({"whole": tensor, "part": tensor[:5]}, path))
        with open(tmp_path / "two.pt", "wb") as file:
            beside = took(lambda: torch.save(tensor, file))
        loaded = took(lambda: torch.load(path))
        memory = took(lambda: torch.save(tensor, io.BytesIO()))
        return saved, beside, loaded, memory

    found, notes, _ = run(body, system, enable_data=data)
    saved, beside, loaded, memory = found[0]
    assert saved == pytest.approx(LATENCY + BYTES / WRITE, rel=0.01)
    assert beside == pytest.approx(saved, rel=0.01)
    assert loaded == pytest.approx(LATENCY + BYTES / READ, rel=0.02)
    assert memory < 1e-4
    assert not any("files took no time" in note for note in notes)


def saving(folder: Path) -> Callable[[int], float]:
    def body(rank: int) -> float:
        tensor = torch.zeros(SIZE)
        dist.barrier()
        return took(lambda: torch.save(tensor, folder / f"{rank}.pt"))

    return body


def test_ranks_share_the_storage_of_their_node(system: str, tmp_path: Path) -> None:
    both, *_ = run(saving(tmp_path), system, 2)
    assert list(both.values()) == pytest.approx([LATENCY + 2 * BYTES / WRITE] * 2, rel=0.02)
    apart, *_ = run(saving(tmp_path), system, 2, devices=[0, 8], nodes=2)
    assert list(apart.values()) == pytest.approx([LATENCY + BYTES / WRITE] * 2, rel=0.02)


def test_ranks_that_are_not_run_write_too(system: str, tmp_path: Path) -> None:
    whole, *_ = run(saving(tmp_path), system, 8, enable_data=False)
    folded, *_ = run(saving(tmp_path), system, 8, enable_data=False, ranks="auto")
    assert len(folded) < 8 == len(whole)
    assert max(folded.values()) == pytest.approx(LATENCY + 8 * BYTES / WRITE, rel=0.02)
    assert max(whole.values()) == pytest.approx(LATENCY + 8 * BYTES / WRITE, rel=0.02)


def test_what_keeps_ranks_apart_changes_nothing(system: str, tmp_path: Path) -> None:
    ends = [run(saving(tmp_path), system, 2, isolation=isolation)[2] for isolation in ("carrier", "process")]
    assert ends[0] == ends[1]


def test_distributed_checkpoints(system: str, tmp_path: Path) -> None:
    def body(rank: int) -> Any:
        mesh = init_device_mesh("cuda", (2,))
        state = {"weight": distribute_tensor(torch.zeros(2 * SIZE, device="cuda"), mesh, [Shard(0)])}
        saved = took(lambda: dcp.save(state, checkpoint_id=tmp_path / "checkpoint"))
        return saved, took(lambda: dcp.load(state, checkpoint_id=tmp_path / "checkpoint"))

    found, *_ = run(body, system, 2)
    plain, *_ = run(body, "dgx_h100", 2)
    for (saved, loaded), (quick, free) in zip(found.values(), plain.values(), strict=True):
        assert saved - quick == pytest.approx(LATENCY + 2 * BYTES / WRITE, rel=0.1)
        assert loaded - free == pytest.approx(LATENCY + 2 * BYTES / READ, rel=0.1)


def test_without_a_storage_the_run_says_what_went_by(tmp_path: Path) -> None:
    found, notes, _ = run(saving(tmp_path), "dgx_h100")
    assert found[0] < 1e-4
    assert [note for note in notes if "files took no time (0.00391 GiB of tensors written, 0 GiB read)" in note]


def test_a_system_says_what_its_storage_is(system: str) -> None:
    storage = resolve_topology(system).topology_obj.system.storage
    assert storage is not None
    assert (storage.read, storage.write, storage.latency) == (READ, WRITE, LATENCY)
    assert resolve_topology("dgx_h100").topology_obj.system.storage is None
