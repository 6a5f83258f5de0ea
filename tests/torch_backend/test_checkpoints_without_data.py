"""``torch.save``, ``torch.load`` and distributed checkpoints of tensors that have no values: no bytes are written of them."""

from __future__ import annotations

import os
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
from kernbench.errors import KernbenchError
from kernbench.torch_backend.features.checkpoint_files import UNKNOWN

LARGE = 1 << 24


def save(path: Path) -> None:
    large = torch.randn(LARGE, device="cuda")
    torch.save(
        {"large": large, "view": large[:10], "small": torch.arange(8, device="cuda"), "host": torch.ones(5000)}, path
    )


def on_disk(path: Path) -> int:
    return os.stat(path).st_blocks * 512


def on_a_rank(body: Callable[[], None], *, data: bool) -> tuple[str, ...]:
    """Run ``body`` as a program of one rank; what the run says of itself."""
    with kernbench.simulate(enable_data=data) as ctx:
        ctx.multiprocessing.spawn(lambda rank: body(), nprocs=1)
        return ctx.simulation.assumptions.notes


@pytest.mark.parametrize("options", [{}, {"mmap": True}, {"weights_only": False}, {"map_location": "cpu"}], ids=str)
def test_what_is_unknown_is_not_written_and_unknown_when_it_is_loaded(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "saved.pt"

    def body() -> None:
        save(path)
        loaded = torch.load(path, **options)
        assert loaded["large"].shape == (LARGE,)
        assert "?" in repr(loaded["large"].sum().item())
        assert loaded["view"].untyped_storage().data_ptr() == loaded["large"].untyped_storage().data_ptr()
        assert loaded["small"].tolist() == list(range(8))
        assert loaded["host"].sum().item() == 5000

    notes = on_a_rank(body, data=False)
    assert [f"{4 * LARGE:,} bytes" in note for note in notes if note.startswith("checkpoints")] == [True]
    assert path.stat().st_size > 4 * LARGE
    assert on_disk(path) < 1 << 17


def test_a_program_with_data_does_not_load_what_has_no_values(tmp_path: Path) -> None:
    path = tmp_path / "saved.pt"
    on_a_rank(lambda: save(path), data=False)

    def body() -> None:
        with pytest.raises(KernbenchError, match="written by a run without data"):
            torch.load(path)

    on_a_rank(body, data=True)


def test_with_data_files_are_torchs(tmp_path: Path) -> None:
    path = tmp_path / "saved.pt"

    def body() -> None:
        torch.save(torch.arange(8.0, device="cuda"), path)
        assert torch.load(path).tolist() == list(map(float, range(8)))

    assert not on_a_rank(body, data=True)
    assert not torch._C.PyTorchFileReader(str(path)).has_record(UNKNOWN)


def test_distributed_checkpoints(tmp_path: Path) -> None:
    def body(rank: int) -> None:
        dist.init_process_group("nccl")
        torch.cuda.set_device(rank)
        mesh = init_device_mesh("cuda", (2,))
        small = torch.arange(8, device="cuda")
        dcp.save(
            {"large": distribute_tensor(torch.empty(LARGE, device="cuda"), mesh, [Shard(0)]), "small": small},
            checkpoint_id=tmp_path / "saved",
        )
        loaded = {
            "large": distribute_tensor(torch.zeros(LARGE, device="cuda"), mesh, [Shard(0)]),
            "small": torch.zeros_like(small),
        }
        dcp.load(loaded, checkpoint_id=tmp_path / "saved")
        assert torch.equal(loaded["small"], small)
        assert "?" in repr(loaded["large"].to_local())

    with kernbench.simulate(enable_data=False) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=2)
    files = list((tmp_path / "saved").glob("*.distcp"))
    assert sum(each.stat().st_size for each in files) > 4 * LARGE
    assert sum(map(on_disk, files)) < 1 << 17
