"""Folded ranks, and calls whose answer is what ranks have that are not run: those run too, or it is refused or said."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import all_gather_tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer

import kernbench
from kernbench.simulation.ranks.folding import Axis, Folding
from kernbench.trace.notes import notes_of

WORLD = 4
SMALL = 3  # elements of tensors whose values are known


def found(program: Callable[[int], Any], ranks: str = "auto") -> tuple[dict[int, Any], str]:
    """What ``program`` gives on each rank that runs, and what the summary says of it."""
    got: dict[int, Any] = {}
    with kernbench.simulate("dgx_h100", enable_data=False, ranks=ranks) as ctx:

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl")
            got[rank] = program(rank)  # the scout's are overwritten: rank 0 runs again

        ctx.multiprocessing.spawn(worker, nprocs=WORLD)
        folding = ctx.simulation.hosts.folding
        live = range(WORLD) if folding is None else folding.live
        return {rank: got[rank] for rank in live}, "\n".join(notes_of(ctx.simulation, ()))


def test_the_root_of_a_broadcast_of_objects_runs():
    def program(rank: int) -> Any:
        box = [{"of": rank} if rank == 1 else None]
        dist.broadcast_object_list(box, src=1)
        return box

    got, said = found(program)
    assert got == {rank: [{"of": 1}] for rank in (0, 1, 3)}
    assert re.search(r"broadcast_object_list at .*test_absent_ranks.py:\d+ gives what rank 1 has", said)


def test_the_root_of_a_scatter_of_objects_runs():
    def program(rank: int) -> Any:
        out: list[Any] = [None]
        dist.scatter_object_list(out, [f"for {to}" for to in range(WORLD)] if rank == 1 else None, src=1)
        return out

    assert found(program)[0] == {rank: [f"for {rank}"] for rank in (0, 1, 3)}


@pytest.mark.parametrize("of_objects", [True, False])
def test_the_first_of_each_group_that_takes_part_runs(of_objects):
    def program(rank: int) -> Any:
        group = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dp", "tp"))["tp"].get_group()
        first = dist.get_global_rank(group, 0)
        if of_objects:
            box = [rank if rank == first else None]
            dist.broadcast_object_list(box, src=first, group=group)
            return box[0]
        values = torch.full((SMALL,), rank, device="cuda")
        dist.broadcast(values, src=first, group=group)
        return values.tolist()[0]

    assert found(program)[0] == {0: 0, 2: 2, 3: 2}


def gathered_objects(rank: int) -> Any:
    out = [None] * WORLD
    dist.all_gather_object(out, rank)
    return out


def gathered_values(rank: int) -> Any:
    out = [torch.zeros(1, dtype=torch.long, device="cuda") for _ in range(WORLD)]
    dist.all_gather(out, torch.tensor([rank], device="cuda"))
    return torch.cat(out).tolist()


def gathered_functionally(rank: int) -> Any:
    group = dist.group.WORLD
    return all_gather_tensor(torch.tensor([rank], device="cuda"), 0, group).tolist()


@pytest.mark.parametrize("program", [gathered_objects, gathered_values, gathered_functionally])
def test_ranks_whose_objects_or_known_values_are_gathered_all_run(program):
    got, said = found(program)
    assert got == {rank: [0, 1, 2, 3] for rank in range(WORLD)}
    assert re.search(r"all 4 ranks run: all_gather\w* at .*test_absent_ranks.py:\d+", said)


def test_objects_of_ranks_that_are_not_run_are_refused_with_the_ranks_to_run():
    with pytest.raises(kernbench.SpawnException, match=r"needs ranks 1-2, which are not run.*--ranks all"):
        found(gathered_objects, "0,3")

    def sent(rank: int) -> None:
        dist.broadcast_object_list([rank], src=1)

    def consolidated(rank: int) -> None:  # ZeRO sends the state of each rank as bytes of its own
        model = torch.nn.Linear(SMALL, SMALL, device="cuda")
        optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam)
        model(torch.ones(1, SMALL, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.consolidate_state_dict(to=0)

    for program in (sent, consolidated):
        with pytest.raises(kernbench.SpawnException, match=r"needs rank 1, which is not run.*--ranks 0-1,3, or all"):
            found(program, "0,3")


def test_known_values_of_ranks_that_are_not_run_are_said_to_be_others():
    said = found(gathered_values, "0,3")[1]
    assert re.search(r"all_gather at .*: ranks 1-2, not run, are taken to have the values of rank 3", said)


def test_values_that_steer_nothing_keep_ranks_folded():
    def program(rank: int) -> int:
        whole = torch.zeros(WORLD << 12, device="cuda")
        dist.all_gather_into_tensor(whole, torch.zeros(1 << 12, device="cuda"))
        return rank

    assert sorted(found(program)[0]) == [0, 3]


def test_a_checkpoint_has_the_shards_of_all_ranks(tmp_path):
    import torch.distributed.checkpoint as dcp

    def program(rank: int) -> None:
        layer = torch.nn.Linear(6, 10, bias=False).cuda()
        fully_shard(layer)
        dcp.save({"weight": layer.weight}, checkpoint_id=tmp_path)
        dcp.load({"weight": layer.weight}, checkpoint_id=tmp_path)

    got, said = found(program)
    assert sorted(got) == [0, 3]
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    chunks = metadata.state_dict_metadata["weight"].chunks
    rows = [(index[0].start, index[0].stop - index[0].start) for index in _slices(torch.arange(10).chunk(WORLD))]
    assert [(chunk.offsets[0], chunk.sizes[0]) for chunk in chunks if chunk.sizes[0]] == rows
    files = {
        index.offset[0]: stored.relative_path for index, stored in metadata.storage_data.items() if index.offset[0] < 10
    }
    assert files == {start: f"__{rank}_0.distcp" for rank, (start, _) in enumerate(rows)}
    assert re.search(r"checkpoint at .*test_absent_ranks.py:\d+: shards of ranks that are not run", said)


def _slices(parts: Any) -> list[tuple[slice]]:
    return [(slice(int(part[0]), int(part[-1]) + 1),) for part in parts]


def test_roots_of_roots_run():
    """Rank 5 of a 2 x 2 x 2 mesh gets from the first of its row, and that one from the first of its column."""
    row, column = Axis(1, 2), Axis(2, 2)
    scout = Folding(8, (0,), frozenset({row, column, Axis(4, 2)}), scouting=True)
    scout.need_root(0, 0, (0, 1), "a call")
    scout.need_root(0, 0, (0, 2), "another")
    assert scout.refined().live == (0, 4, 5, 6, 7)


def test_a_sum_of_known_values_is_the_same_on_all_ranks_that_run():
    """Rank 3 brings its own for ranks 1 and 2, and receives into it: 0 + 3 + 3 + 3."""

    def program(rank: int) -> float:
        total = torch.tensor([float(rank)], device="cuda")
        dist.all_reduce(total)
        return float(total)

    got, said = found(program)
    assert got == {0: 9.0, 3: 9.0}
    assert re.search(r"all_reduce at .*: ranks 1-2, not run, are taken to have the values of rank 3", said)


def test_members_of_a_group_that_is_laid_out_as_none_of_rank_0s_run():
    def program(rank: int) -> int:
        pairs = [dist.new_group([first, first + 1]) for first in (0, 2)]
        odd = dist.new_group([1, 3])
        values = torch.ones(1 << 20, device="cuda")
        dist.all_reduce(values, group=pairs[rank // 2])
        if rank % 2:
            dist.all_reduce(values, group=odd)
        return rank

    got, said = found(program)
    assert sorted(got) == [0, 1, 3]
    assert re.search(r"new_group at .* is of ranks 1, 3, as rank 0 has none", said)
