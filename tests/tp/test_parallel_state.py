"""Who is in which group, against coordinates computed by hand."""

from __future__ import annotations

import itertools

import pytest

import kernbench
from kernbench import tp
from kernbench.tp import AlreadyInitializedError, NotInitializedError, PartitionError, comm
from kernbench.tp.rank_layout import RankLayout
from tests.tp.ranks import simulated


def coordinates(rank: int, sizes: dict[str, int], order: str) -> dict[str, int]:
    """Mixed-radix digits of a rank, the first dimension of ``order`` varying fastest."""
    result = {}
    for name in order.split("-"):
        result[name] = rank % sizes.get(name, 1)
        rank //= sizes.get(name, 1)
    return result


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "tp-cp-ep-dp-pp", "dp-tp-pp-cp", "pp-dp-cp-tp"])
@pytest.mark.parametrize("sizes", [(2, 1, 2, 2), (3, 2, 1, 2), (1, 2, 3, 1), (4, 1, 1, 2)])
@pytest.mark.parametrize("along", ["tp", "dp", "pp", "dp-cp", "tp-pp", "tp-dp-cp"])
def test_groups_are_the_ranks_whose_other_coordinates_agree(sizes, order, along):
    named = dict(zip(("tp", "cp", "dp", "pp"), sizes, strict=True))
    layout = RankLayout(named, order)
    where = [coordinates(rank, named, order) for rank in range(layout.world_size)]

    def key(rank: int) -> tuple[int, ...]:
        return tuple(number for name, number in where[rank].items() if name not in along.split("-"))

    expected = {
        tuple(rank for rank in range(layout.world_size) if key(rank) == chosen)
        for chosen in map(key, range(layout.world_size))
    }
    assert sorted(map(tuple, layout.groups(along))) == sorted(expected)


def see() -> dict[str, object]:
    def ranks(group: comm.Group) -> tuple[int, ...]:
        return tuple(comm.group_ranks(group))

    return {
        "tp": ranks(tp.get_tensor_model_parallel_group()),
        "dp": ranks(tp.get_data_parallel_group()),
        "pp": ranks(tp.get_pipeline_model_parallel_group()),
        "cp": ranks(tp.get_context_parallel_group()),
        "sp": ranks(tp.get_sequence_parallel_group()),
        "mp": ranks(tp.get_model_parallel_group()),
        "tp_dp": ranks(tp.get_tensor_and_data_parallel_group()),
        "embedding": tp.is_rank_in_embedding_group(),
        "sizes": (
            tp.get_tensor_model_parallel_world_size(),
            tp.get_data_parallel_world_size(),
            tp.get_pipeline_model_parallel_world_size(),
            tp.get_context_parallel_world_size(),
        ),
        "ranks": (
            tp.get_tensor_model_parallel_rank(),
            tp.get_data_parallel_rank(),
            tp.get_pipeline_model_parallel_rank(),
        ),
        "sources": (tp.get_tensor_model_parallel_src_rank(), tp.get_data_parallel_src_rank()),
        "stages": (tp.is_pipeline_first_stage(), tp.is_pipeline_last_stage()),
        "pipeline": (
            tp.get_pipeline_model_parallel_first_rank(),
            tp.get_pipeline_model_parallel_prev_rank(),
            tp.get_pipeline_model_parallel_next_rank(),
            tp.get_pipeline_model_parallel_last_rank(),
        ),
    }


@pytest.mark.parametrize("init", [True, False], ids=["torch.distributed", "ctx.distributed"])
def test_eight_ranks_as_tensor_2_data_2_pipeline_2(init):
    for rank, seen in enumerate(simulated(8, see, tensor=2, pipeline_model_parallel_size=2, init=init)):
        tensor, data, stage = rank % 2, rank // 2 % 2, rank // 4
        assert seen["tp"] == seen["sp"] == (rank - tensor, rank - tensor + 1)
        assert seen["dp"] == (rank - 2 * data, rank - 2 * data + 2)
        assert seen["pp"] == (rank % 4, rank % 4 + 4)
        assert seen["cp"] == (rank,)
        assert seen["mp"] == tuple(sorted(2 * data + t + 4 * p for t, p in itertools.product(range(2), range(2))))
        assert seen["tp_dp"] == tuple(range(4 * stage, 4 * stage + 4))
        assert seen["sizes"] == (2, 2, 2, 1)
        assert seen["ranks"] == (tensor, data, stage)
        assert seen["sources"] == (rank - tensor, rank - 2 * data)
        assert seen["stages"] == (stage == 0, stage == 1)
        assert seen["pipeline"] == (rank % 4, (rank + 4) % 8, (rank + 4) % 8, rank % 4 + 4)
        assert seen["embedding"]


def test_interleaved_pipeline_stages():
    def stages() -> list[tuple[bool, bool]]:
        seen = []
        for chunk in range(2):
            tp.set_virtual_pipeline_model_parallel_rank(chunk)
            seen.append((tp.is_pipeline_first_stage(False), tp.is_pipeline_last_stage(False)))
        return seen

    seen = simulated(2, stages, tensor=1, pipeline_model_parallel_size=2, virtual_pipeline_model_parallel_size=2)
    assert seen == [[(True, False), (False, False)], [(False, False), (False, True)]]


def test_state_belongs_to_the_rank():
    def body() -> bool:
        before = tp.model_parallel_is_initialized()
        tp.destroy_model_parallel()
        return before and not tp.model_parallel_is_initialized()

    assert simulated(3, body) == [True] * 3
    assert not tp.model_parallel_is_initialized()  # main is no rank


def test_a_plain_process_is_a_world_of_one():
    tp.initialize_model_parallel()
    try:
        assert tp.get_tensor_model_parallel_world_size() == tp.get_data_parallel_world_size() == 1
        assert tp.get_tensor_model_parallel_group().size() == 1
        with pytest.raises(AlreadyInitializedError, match="already initialized"):
            tp.initialize_model_parallel()
    finally:
        tp.destroy_model_parallel()


def test_uninitialized_state_says_what_to_call():
    with pytest.raises(NotInitializedError, match=r"tensor model parallel group .*initialize_model_parallel"):
        tp.get_tensor_model_parallel_group()
    with pytest.raises(AssertionError):  # what Megatron-Core raises
        tp.get_data_parallel_rank()
    assert tp.get_tensor_model_parallel_group(check_initialized=False) is None


def test_overrides_need_no_groups():
    tp.set_tensor_model_parallel_world_size(4)
    tp.set_tensor_model_parallel_rank(3)
    try:
        assert (tp.get_tensor_model_parallel_world_size(), tp.get_tensor_model_parallel_rank()) == (4, 3)
    finally:
        tp.destroy_model_parallel()


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"tensor_model_parallel_size": 3}, "world_size 4 is not divisible by tensor_model_parallel_size 3"),
        ({"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 4}, "= 8"),
        ({"virtual_pipeline_model_parallel_size": 2}, "needs pipeline_model_parallel_size >= 2"),
        ({"tensor_model_parallel_size": 2, "order": "dp-pp"}, "tp is larger than 1"),
        ({"order": "tp-xx"}, "xx is not one"),
    ],
)
def test_sizes_that_do_not_fit(sizes, words):
    def body(rank: int) -> None:
        with pytest.raises(PartitionError, match=words):
            tp.initialize_model_parallel(**sizes)

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(body, nprocs=4)
