"""SGLang's collectives of its own between the GPUs of a node, whose kernels read and write the memory of their peers.

All-reduces are compiled from CUDA sources while it runs, in one step or two, by writing to peers, by reading from them, or
through the switch; all-gathers of logits are written through the switch by a Triton kernel. In CUDA graphs others are NCCL's,
whose library SGLang calls itself. Each is posted as a collective by the direct algorithm that its kernel is, or by NCCL's, and
SGLang's Python chooses it, as on hardware. Ranks may be processes, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from kernbench.ccl.reduce_op import ReduceOp
from kernbench.cost.peer_access import BLOCK_THREADS, FEW_BLOCKS
from kernbench.errors import KernbenchError
from kernbench.simulation.matching.groups import Communicator, Signature
from kernbench.torch_backend.symmetric_memory.buffers import SymmetricMemory, current
from kernbench.torch_backend.symmetric_memory.operations import post

Tensor = torch.Tensor

_ALGORITHMS = {
    "1shot_push": "one_shot_push", "2shot_push": "two_shot_push", "1shot_pull": "one_shot_pull",
    "2shot_pull": "two_shot_pull",
}  # fmt: skip
"""By SGLang's names."""

_VECTOR, _MOST_THREADS = 16, 1024
"""Bytes that a thread loads at once, and threads of a block where there is enough to do."""

_IN_SWITCH, _GATHERED_IN_SWITCH = "multimem_allreduce", "nvls_allgather"


class _Group:
    """What stands for a communicator of SGLang's.

    Attributes:
        rank, world_size: of the caller, and how many there are.
        push_blocks, pull_blocks: most that a kernel runs on which writes to its peers, or reads from them.
    """

    def __init__(self, group: dist.ProcessGroup, push_blocks: int = 0, pull_blocks: int = 0) -> None:
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.push_blocks, self.pull_blocks = push_blocks, pull_blocks
        self._ranks = tuple(dist.get_process_group_ranks(group))

    def members(self, memory: SymmetricMemory, name: str) -> Communicator:
        """The communicator of the simulation."""
        simulation = memory.simulation
        me = simulation.hosts.current_rank()
        return simulation.world.communicators.of(me, name, self._ranks, False).peers


class _NoHandles:
    """What stands for SGLang's exchange of handles of captured inputs: a captured call knows its tensors."""

    def destroy(self) -> None:
        """There are none."""


def reduce_in_peers(module: ModuleType) -> None:
    """``sglang.srt.distributed.device_communicators.custom_all_reduce_v2``."""
    own: Any = module
    reducer = getattr(own, "CustomAllReduceV2", None)
    if reducer is None:
        return
    allocate, bytes_of_a_semaphore = (getattr(own, name) for name in ("_allocate_symmetric_memory", "_SEMAPHORE_BYTES"))

    def init_workspace(self: Any) -> None:
        config, slots = self.config, 2 * self.world_size
        semaphores = bytes_of_a_semaphore * config.num_pull_blocks if self.pull_enabled else 0
        nbytes = slots * self.max_push_size + self.max_pull_size + semaphores
        self._symm_tensor, memory = allocate(nbytes, device=self.device, group=self.group)
        self.has_multicast = int(memory.multicast_ptr) != 0
        self._push_counter = torch.zeros(config.num_push_blocks, dtype=torch.int32, device=self.device)
        if not self.has_multicast or not self.pull_enabled:
            self.config = config._replace(num_mc_blocks=None)
        self.obj = _Group(self.group, config.num_push_blocks, config.num_pull_blocks)

    def reduce(
        comm: _Group, input: Tensor, algo: Any, *, graph_params: object = None, use_multicast: bool = False
    ) -> Tensor:
        return _reduced(comm, input, algo.algo_name, use_multicast)

    def register(self: Any) -> None:
        self._graph_inputs.clear()

    for name, method in (("_init_workspace", init_workspace), ("_register_graph_inputs", register)):
        setattr(reducer, name, method)
    own.custom_all_reduce, own.IPCManager = reduce, _NoHandles
    own.get_all_reduce_module = lambda dtype, world_size: SimpleNamespace(
        all_reduce=lambda comm, input, name, row, multicast: _reduced(comm, input, name, multicast)
    )


def gather_in_switch(module: ModuleType) -> None:
    """``sglang.srt.distributed.device_communicators.triton_symm_mem_ag``."""
    own: Any = module
    if not callable(getattr(own, "all_gather_inner", None)):
        return

    def all_gather(
        state: Any, hidden_states: Tensor, tp_hidden_dim: int, skip_entry_sync: bool = False, safe: bool = True
    ) -> Tensor:
        out = state.comm_buff[: len(hidden_states), :tp_hidden_dim]
        signature = Signature(
            "all_gather", tuple(hidden_states.shape), hidden_states.dtype, None, None, _GATHERED_IN_SWITCH
        )
        _post(_Group(state.group), "gathered logits", signature, [hidden_states], list(out.chunk(state.world_size, 1)))
        return out.clone() if safe else out

    own.all_gather_inner = all_gather


def communicate_in_graphs(module: ModuleType) -> None:
    """``sglang.srt.distributed.device_communicators.pynccl``: SGLang's communicator of NCCL's library, which it turns on where
    CUDA graphs are captured."""
    own: Any = module
    communicator = getattr(own, "PyNcclCommunicator", None)
    if communicator is None:
        return
    begin = communicator.__init__

    def init(self: Any, group: Any, device: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, group, device, *args, **kwargs)  # without the library it is not available
        if self.world_size > 1 and not self.available and isinstance(group, dist.ProcessGroup):
            self.available = True
            self.device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
            self.peers = _Group(group)

    def reduce(self: Any, given: Tensor, out: Tensor | None = None, op: Any = dist.ReduceOp.SUM) -> Tensor | None:
        if self.disabled:
            return None
        out = torch.empty_like(given) if out is None else out
        _by_library(self.peers, "all_reduce", given.shape, op, [given], [out])
        return out

    def reduce_in_place(self: Any, tensor: Tensor, op: Any = dist.ReduceOp.SUM) -> None:
        reduce(self, tensor, tensor, op)

    def gather(self: Any, out: Tensor, given: Tensor, sizes: list[int] | None = None) -> None:
        if not self.disabled:
            _require_equal(sizes)
            _by_library(self.peers, "all_gather", given.shape, None, [given], _parts(out, given))

    def scatter(
        self: Any, out: Tensor, given: Tensor, op: Any = dist.ReduceOp.SUM, sizes: list[int] | None = None
    ) -> None:
        if not self.disabled:
            _require_equal(sizes)
            _by_library(self.peers, "reduce_scatter", out.shape, op, _parts(given, out), [out])

    communicator.__init__ = init
    communicator.all_reduce, communicator.outplace_all_reduce = reduce_in_place, reduce
    communicator.all_gather, communicator.reduce_scatter = gather, scatter
    for name in ("send", "recv", "broadcast", "all_to_all_single"):
        setattr(communicator, name, _refusing(name))


def _parts(whole: Tensor, part: Tensor) -> list[Tensor]:
    """``whole``, cut into members' parts of the shape of ``part``."""
    return [each.view(part.shape) for each in whole.view(-1).split(part.numel())]


def _require_equal(sizes: list[int] | None) -> None:
    if sizes is not None and len({*sizes}) > 1:
        raise NotImplementedError(f"SGLang's collectives in CUDA graphs whose parts have several sizes ({sizes})")


def _refusing(name: str) -> Any:
    def refuse(self: Any, *args: object, **kwargs: object) -> None:
        if not self.disabled:
            raise NotImplementedError(f"SGLang's {name} by NCCL's library in a CUDA graph has no stand-in")

    return refuse


def _by_library(
    peers: _Group, kind: str, shape: Sequence[int], op: Any, inputs: list[Tensor], outputs: list[Tensor]
) -> None:
    """By the algorithm that NCCL takes."""
    if op is not None and op != dist.ReduceOp.SUM:
        raise NotImplementedError(f"SGLang's {kind} by NCCL's library in a CUDA graph adds up: not {op}")
    reduction = None if op is None else ReduceOp.SUM.value
    algorithm = _memory().simulation.ccl_config.algorithm_for(kind)
    _post(peers, "PyNccl", Signature(kind, tuple(shape), inputs[0].dtype, reduction, None, algorithm), inputs, outputs)


def _reduced(peers: _Group, inp: Tensor, name: str, multicast: bool) -> Tensor:
    """The sum of every member's ``inp``."""
    out = torch.empty_like(inp)
    algorithm = _IN_SWITCH if multicast else _ALGORITHMS[name]
    most = peers.push_blocks if name.endswith("push") else peers.pull_blocks
    threads = min(inp.nbytes // _VECTOR, most * _MOST_THREADS)
    signature = Signature(
        "all_reduce", tuple(inp.shape), inp.dtype, ReduceOp.SUM.value, None, algorithm,
        max(threads // BLOCK_THREADS, FEW_BLOCKS),
    )  # fmt: skip
    _post(peers, "custom all-reduce", signature, [inp], [out])
    return out


def _memory() -> SymmetricMemory:
    memory = current()
    if memory is None:
        raise KernbenchError("SGLang's collectives between GPUs are for ranks: there is no simulated GPU here")
    return memory


def _post(peers: _Group, name: str, signature: Signature, inputs: list[Tensor], outputs: list[Tensor]) -> None:
    memory = _memory()
    post(memory.simulation, peers.members(memory, name), signature, inputs, outputs)
