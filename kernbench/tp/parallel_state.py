"""Who talks to whom: Megatron-Core's ``parallel_state``, by its names, for every rank of its own.

    initialize_model_parallel(tensor_model_parallel_size=4)
    get_tensor_model_parallel_group(), get_tensor_model_parallel_rank(), get_data_parallel_world_size(), ...

Works in simulated ranks, in real processes and, as a world of one, in a plain process. Groups of the same ranks are made
once and shared.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kernbench.tp import comm
from kernbench.tp.comm import Group
from kernbench.tp.errors import AlreadyInitializedError, NotInitializedError, PartitionError
from kernbench.tp.per_rank import PerRank
from kernbench.tp.rank_layout import RankLayout

__all__ = [
    "destroy_model_parallel",
    "get_context_parallel_global_ranks",
    "get_context_parallel_group",
    "get_context_parallel_rank",
    "get_context_parallel_world_size",
    "get_data_parallel_group",
    "get_data_parallel_rank",
    "get_data_parallel_src_rank",
    "get_data_parallel_world_size",
    "get_embedding_group",
    "get_model_parallel_group",
    "get_model_parallel_src_rank",
    "get_pipeline_model_parallel_first_rank",
    "get_pipeline_model_parallel_group",
    "get_pipeline_model_parallel_last_rank",
    "get_pipeline_model_parallel_next_rank",
    "get_pipeline_model_parallel_prev_rank",
    "get_pipeline_model_parallel_rank",
    "get_pipeline_model_parallel_world_size",
    "get_position_embedding_group",
    "get_sequence_parallel_group",
    "get_sequence_parallel_rank",
    "get_sequence_parallel_world_size",
    "get_tensor_and_context_parallel_group",
    "get_tensor_and_context_parallel_rank",
    "get_tensor_and_context_parallel_world_size",
    "get_tensor_and_data_parallel_group",
    "get_tensor_model_parallel_group",
    "get_tensor_model_parallel_rank",
    "get_tensor_model_parallel_src_rank",
    "get_tensor_model_parallel_world_size",
    "get_virtual_pipeline_model_parallel_rank",
    "get_virtual_pipeline_model_parallel_world_size",
    "initialize_model_parallel",
    "is_initialized",
    "is_pipeline_first_stage",
    "is_pipeline_last_stage",
    "is_rank_in_embedding_group",
    "is_rank_in_position_embedding_group",
    "model_parallel_is_initialized",
    "set_data_parallel_rank",
    "set_pipeline_model_parallel_rank",
    "set_pipeline_model_parallel_world_size",
    "set_tensor_model_parallel_rank",
    "set_tensor_model_parallel_world_size",
    "set_virtual_pipeline_model_parallel_rank",
    "set_virtual_pipeline_model_parallel_world_size",
]

_LABELS = {
    "tp": "tensor model parallel",
    "pp": "pipeline model parallel",
    "dp": "data parallel",
    "cp": "context parallel",
    "dp-cp": "data parallel with context parallel",
    "tp-pp": "model parallel",
    "tp-dp": "tensor and data parallel",
    "tp-dp-cp": "tensor, data and context parallel",
    "tp-cp": "tensor and context parallel",
    "embedding": "embedding",
    "position_embedding": "position embedding",
}


@dataclass
class _Members:
    """The group of one kind that this rank is in."""

    ranks: list[int]
    group: Group


@dataclass
class _ParallelState:
    """What one rank knows.

    Attributes:
        layout: None until initialised.
        members: kind -> this rank's group; kinds that this rank is no member of are missing.
        embedding: kinds of embedding group -> ranks of this rank's pipeline in it.
        overrides: world sizes and ranks that ``set_*`` has fixed, by (kind, "size" | "rank").
        virtual_size, virtual_rank: of the interleaved pipeline schedule.
    """

    layout: RankLayout | None = None
    members: dict[str, _Members] = field(default_factory=dict)
    embedding: dict[str, list[int]] = field(default_factory=dict)
    overrides: dict[tuple[str, str], int] = field(default_factory=dict)
    virtual_size: int | None = None
    virtual_rank: int | None = None


_states: PerRank[_ParallelState] = PerRank(_ParallelState)


def initialize_model_parallel(
    tensor_model_parallel_size: int = 1,
    pipeline_model_parallel_size: int = 1,
    virtual_pipeline_model_parallel_size: int | None = None,
    *,
    context_parallel_size: int = 1,
    order: str = "tp-cp-dp-pp",
) -> None:
    """Make the groups. Every rank of the world calls this with the same sizes; what they leave over is data parallelism.

    Args:
        tensor_model_parallel_size: ranks that share each layer's weights.
        pipeline_model_parallel_size: consecutive parts of the layers.
        virtual_pipeline_model_parallel_size: model chunks per stage of an interleaved schedule; needs a pipeline.
        context_parallel_size: ranks that share each sequence.
        order: from the dimension whose ranks are neighbours to the one whose ranks are farthest apart.

    Raises:
        PartitionError: the world is not a multiple of the sizes' product.
        AlreadyInitializedError: this rank has not called :func:`destroy_model_parallel` since.
    """
    state = _states.get()
    if state.layout is not None:
        raise AlreadyInitializedError(
            f"rank {comm.world_rank()}: model parallelism is already initialized; call destroy_model_parallel() first"
        )
    state.layout = layout = _layout(
        tensor_model_parallel_size, pipeline_model_parallel_size, context_parallel_size, order
    )
    if virtual_pipeline_model_parallel_size is not None:
        if pipeline_model_parallel_size < 2:
            state.layout = None
            raise PartitionError(
                "virtual_pipeline_model_parallel_size needs pipeline_model_parallel_size >= 2, "
                f"got {pipeline_model_parallel_size}"
            )
        state.virtual_size, state.virtual_rank = virtual_pipeline_model_parallel_size, 0
    made: dict[tuple[int, ...], Group] = {}
    me = comm.world_rank()

    def join(kind: str, groups: list[list[int]]) -> None:
        for ranks in groups:
            key = tuple(ranks)
            if key not in made:
                made[key] = comm.new_group(ranks)
            if me in ranks:
                state.members[kind] = _Members(ranks, made[key])

    for kind in ("tp", "pp", "dp", "cp", "dp-cp", "tp-pp", "tp-dp", "tp-dp-cp", "tp-cp"):
        join(kind, layout.groups(kind))
    pipelines = layout.groups("pp")
    embedding = [sorted({ranks[0], ranks[-1]}) for ranks in pipelines]
    position = [[ranks[0]] for ranks in pipelines]
    join("embedding", embedding)
    join("position_embedding", position)
    mine = next(index for index, ranks in enumerate(pipelines) if me in ranks)
    state.embedding = {"embedding": embedding[mine], "position_embedding": position[mine]}


def _layout(tensor: int, pipeline: int, context: int, order: str) -> RankLayout:
    world = comm.world_size()
    model = tensor * pipeline * context
    if min(tensor, pipeline, context) < 1 or world % model:
        raise PartitionError(
            f"rank {comm.world_rank()}: world_size {world} is not divisible by tensor_model_parallel_size {tensor} x "
            f"pipeline_model_parallel_size {pipeline} x context_parallel_size {context} = {model}"
        )
    return RankLayout({"tp": tensor, "cp": context, "dp": world // model, "pp": pipeline}, order)


def destroy_model_parallel() -> None:
    """Forget the groups of this rank."""
    _states.reset()


def model_parallel_is_initialized() -> bool:
    """Whether :func:`initialize_model_parallel` has been called on this rank."""
    return _states.get().layout is not None


is_initialized = model_parallel_is_initialized


# -- groups ----------------------------------------------------------------------------------------------------------


def _members(kind: str) -> _Members:
    state = _states.get()
    found = state.members.get(kind)
    if found is not None:
        return found
    if state.layout is None:
        raise NotInitializedError(
            f"rank {comm.world_rank()}: {_LABELS[kind]} group is not initialized; call initialize_model_parallel() first"
        )
    raise NotInitializedError(f"rank {comm.world_rank()} is not in the {_LABELS[kind]} group")


def _group(kind: str, check_initialized: bool) -> Group:
    if not check_initialized and kind not in _states.get().members:
        return None
    return _members(kind).group


def _size(kind: str) -> int:
    fixed = _states.get().overrides.get((kind, "size"))
    return len(_members(kind).ranks) if fixed is None else fixed


def _rank(kind: str) -> int:
    fixed = _states.get().overrides.get((kind, "rank"))
    return _members(kind).ranks.index(comm.world_rank()) if fixed is None else fixed


def get_model_parallel_group(check_initialized: bool = True) -> Group:
    """The ranks that hold one copy of the model."""
    return _group("tp-pp", check_initialized)


def get_tensor_model_parallel_group(check_initialized: bool = True) -> Group:
    """The ranks that share each layer's weights."""
    return _group("tp", check_initialized)


def get_pipeline_model_parallel_group(check_initialized: bool = True) -> Group:
    """The stages of this rank's pipeline."""
    return _group("pp", check_initialized)


def get_data_parallel_group(with_context_parallel: bool = False) -> Group:
    """The ranks that hold the same weights and see other data."""
    return _members("dp-cp" if with_context_parallel else "dp").group


def get_context_parallel_group(check_initialized: bool = True) -> Group:
    """The ranks that share each sequence."""
    return _group("cp", check_initialized)


def get_context_parallel_global_ranks(check_initialized: bool = True) -> list[int]:
    """World ranks of :func:`get_context_parallel_group`."""
    return list(_members("cp").ranks)


def get_sequence_parallel_group(check_initialized: bool = True) -> Group:
    """The ranks that share the activations between the parallel layers: as in Megatron, the tensor parallel group."""
    return _group("tp", check_initialized)


def get_embedding_group(check_initialized: bool = True) -> Group:
    """First and last stage of this rank's pipeline, which tie their embeddings."""
    return _group("embedding", check_initialized)


def get_position_embedding_group(check_initialized: bool = True) -> Group:
    """First stage of this rank's pipeline."""
    return _group("position_embedding", check_initialized)


def get_tensor_and_data_parallel_group(check_initialized: bool = True, with_context_parallel: bool = False) -> Group:
    """The ranks of one pipeline stage."""
    return _group("tp-dp-cp" if with_context_parallel else "tp-dp", check_initialized)


def get_tensor_and_context_parallel_group(check_initialized: bool = True) -> Group:
    """The ranks that share a sequence, its activations and its weights."""
    return _group("tp-cp", check_initialized)


# -- sizes and ranks -------------------------------------------------------------------------------------------------


def get_tensor_model_parallel_world_size() -> int:
    """Ranks in this rank's tensor parallel group."""
    return _size("tp")


def get_tensor_model_parallel_rank() -> int:
    """This rank's place in its tensor parallel group."""
    return _rank("tp")


def get_pipeline_model_parallel_world_size() -> int:
    """Ranks in this rank's pipeline parallel group."""
    return _size("pp")


def get_pipeline_model_parallel_rank() -> int:
    """This rank's place in its pipeline parallel group."""
    return _rank("pp")


def get_data_parallel_world_size(with_context_parallel: bool = False) -> int:
    """Ranks in this rank's data parallel group."""
    return _size("dp-cp" if with_context_parallel else "dp")


def get_data_parallel_rank(with_context_parallel: bool = False) -> int:
    """This rank's place in its data parallel group."""
    return _rank("dp-cp" if with_context_parallel else "dp")


def get_context_parallel_world_size() -> int:
    """Ranks in this rank's context parallel group."""
    return _size("cp")


def get_context_parallel_rank() -> int:
    """This rank's place in its context parallel group."""
    return _rank("cp")


def get_sequence_parallel_world_size() -> int:
    """Ranks in this rank's sequence parallel group."""
    return _size("tp")


def get_sequence_parallel_rank() -> int:
    """This rank's place in its sequence parallel group."""
    return _rank("tp")


def get_tensor_and_context_parallel_world_size() -> int:
    """Ranks in this rank's tensor and context parallel group."""
    return _size("tp-cp")


def get_tensor_and_context_parallel_rank() -> int:
    """This rank's place in its tensor and context parallel group."""
    return _rank("tp-cp")


def set_tensor_model_parallel_world_size(world_size: int) -> None:
    """Fix what the getter answers, without groups: to build or load a shard offline."""
    _states.get().overrides["tp", "size"] = world_size


def set_tensor_model_parallel_rank(rank: int) -> None:
    """Fix what the getter answers, without groups."""
    _states.get().overrides["tp", "rank"] = rank


def set_pipeline_model_parallel_world_size(world_size: int) -> None:
    """Fix what the getter answers, without groups."""
    _states.get().overrides["pp", "size"] = world_size


def set_pipeline_model_parallel_rank(rank: int) -> None:
    """Fix what the getter answers, without groups."""
    _states.get().overrides["pp", "rank"] = rank


def set_data_parallel_rank(rank: int) -> None:
    """Fix what the getter answers, without groups."""
    _states.get().overrides["dp", "rank"] = rank


# -- sources ---------------------------------------------------------------------------------------------------------


def get_tensor_model_parallel_src_rank() -> int:
    """World rank of the first member of this rank's tensor group."""
    return _members("tp").ranks[0]


def get_model_parallel_src_rank() -> int:
    """World rank of the first member of this rank's copy of the model."""
    return _members("tp-pp").ranks[0]


def get_data_parallel_src_rank(with_context_parallel: bool = False) -> int:
    """World rank of the first member of this rank's data group."""
    return _members("dp-cp" if with_context_parallel else "dp").ranks[0]


# -- pipeline --------------------------------------------------------------------------------------------------------


def get_pipeline_model_parallel_first_rank() -> int:
    """World rank of the first stage."""
    return _members("pp").ranks[0]


def get_pipeline_model_parallel_last_rank() -> int:
    """World rank of the last stage."""
    return _members("pp").ranks[-1]


def get_pipeline_model_parallel_next_rank() -> int:
    """World rank of the stage after this one; the first after the last."""
    ranks = _members("pp").ranks
    return ranks[(_rank("pp") + 1) % len(ranks)]


def get_pipeline_model_parallel_prev_rank() -> int:
    """World rank of the stage before this one; the last before the first."""
    ranks = _members("pp").ranks
    return ranks[(_rank("pp") - 1) % len(ranks)]


def get_virtual_pipeline_model_parallel_world_size() -> int | None:
    """Model chunks per stage, None without an interleaved schedule."""
    return _states.get().virtual_size


def get_virtual_pipeline_model_parallel_rank() -> int | None:
    """The chunk that is running."""
    return _states.get().virtual_rank


def set_virtual_pipeline_model_parallel_rank(rank: int | None) -> None:
    """Say which chunk is running."""
    _states.get().virtual_rank = rank


def set_virtual_pipeline_model_parallel_world_size(world_size: int | None) -> None:
    """Say how many chunks a stage has."""
    _states.get().virtual_size = world_size


def _chunk_is(number: int, ignore_virtual: bool, vp_stage: int | None) -> bool:
    """Whether the running chunk is the ``number``-th (-1: the last), where there are chunks."""
    state = _states.get()
    if ignore_virtual or state.virtual_size is None:
        return True
    chunk = state.virtual_rank if vp_stage is None else vp_stage
    return chunk == number % state.virtual_size


def is_pipeline_first_stage(ignore_virtual: bool = True, vp_stage: int | None = None) -> bool:
    """Whether this is the first stage (and, unless ignored, its first chunk)."""
    return _chunk_is(0, ignore_virtual, vp_stage) and _rank("pp") == 0


def is_pipeline_last_stage(ignore_virtual: bool = True, vp_stage: int | None = None) -> bool:
    """Whether this is the last stage (and, unless ignored, its last chunk)."""
    return _chunk_is(-1, ignore_virtual, vp_stage) and _rank("pp") == _size("pp") - 1


def is_rank_in_embedding_group(ignore_virtual: bool = True, vp_stage: int | None = None) -> bool:
    """Whether this rank holds a word embedding (and, unless ignored, its chunk does)."""
    ranks = _states.get().embedding.get("embedding", [])
    rank = comm.world_rank()
    if rank not in ranks or ignore_virtual:
        return rank in ranks
    if rank == ranks[0] and is_pipeline_first_stage(False, vp_stage):
        return True
    return rank == ranks[-1] and is_pipeline_last_stage(False, vp_stage)


def is_rank_in_position_embedding_group() -> bool:
    """Whether this rank holds a position embedding."""
    return comm.world_rank() in _states.get().embedding.get("position_embedding", [])
