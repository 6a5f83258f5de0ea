"""Bugs of public issue trackers, told again as short programs: calls that ranks make in other orders, or of other sizes.

The line that a report must name ends with ``# here``.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

N = 64


def buffers_in_another_order(fixed: bool) -> None:
    """Buffers of two sizes are broadcast in the order in which each rank lists them."""
    sizes = {"full": 256, "sliding": 128}
    listed = sorted(sizes) if fixed or dist.get_rank() == 0 else sorted(sizes, reverse=True)
    for name in listed:
        dist.broadcast(torch.ones(sizes[name], device="cuda"), 0)  # here


def best_loss_that_one_rank_knows(fixed: bool) -> None:
    """The loss is reduced to rank 0, and each rank decides by its own whether all save."""
    loss = torch.tensor([1.0 + dist.get_rank()], device="cuda")
    if fixed:
        dist.all_reduce(loss)
    else:
        dist.reduce(loss, 0)
    if loss.item() < 2.5:
        dist.barrier()  # here
    dist.all_gather_into_tensor(torch.empty(2 * N, device="cuda"), torch.ones(N, device="cuda"))


def step_of_ranks_without_overflow(fixed: bool) -> None:
    """A rank whose gradients have overflowed skips the optimizer's step, in which ranks exchange parameters."""
    gradient = torch.full((N,), float("inf") if dist.get_rank() == 1 else 1.0, device="cuda")
    overflowed = (~gradient.isfinite()).any().float()
    if fixed:
        dist.all_reduce(overflowed, op=dist.ReduceOp.MAX)
    if not overflowed.item():
        dist.broadcast(torch.ones(N, device="cuda"), 0)  # here
    dist.all_reduce(torch.ones(3, device="cuda"))


def message_shorter_than_its_room(fixed: bool) -> None:
    if dist.get_rank() == 0:
        dist.send(torch.ones(1, device="cuda"), 1)
    else:
        dist.recv(torch.zeros(1 if fixed else 3, device="cuda"), 0)  # here


def rows_of_another_width(fixed: bool) -> None:
    """All have as many rows for each other; one rank's are shorter."""
    rows = torch.ones(2, 3 if dist.get_rank() == 1 and not fixed else 4, device="cuda")
    dist.all_to_all_single(torch.empty_like(rows), rows)  # here


def columns_scattered_as_they_are(fixed: bool) -> None:
    """NCCL cuts the memory of a transposed matrix, which has another order than its elements."""
    columns = torch.ones(4, 8, device="cuda").t()
    dist.reduce_scatter_tensor(torch.empty(4, 4, device="cuda"), columns.contiguous() if fixed else columns)


def ring_of_single_messages(fixed: bool) -> None:
    """Each sends to the rank ``step`` before it, then receives; half way around that is the same rank."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, other = torch.ones(1 << 22, device="cuda"), torch.empty(1 << 22, device="cuda")
    for step in range(1, size):
        to, by = (rank - step) % size, (rank + step) % size
        if fixed:
            both = [dist.P2POp(dist.isend, mine, to), dist.P2POp(dist.irecv, other, by)]
            works = dist.batch_isend_irecv(both)
        else:
            works = [dist.isend(mine, to), dist.irecv(other, by)]  # here
        for work in works:
            work.wait()
    torch.cuda.synchronize()


def shards_of_each_ranks_own_length(fixed: bool) -> None:
    """A tensor is said to be sharded evenly, and each rank has as many tokens as it has."""
    mine = torch.ones(3 + dist.get_rank(), 4, device="cuda")
    if fixed:
        mine = nn.functional.pad(mine, (0, 0, 0, 4 - mine.shape[0]))
    mesh = init_device_mesh("cuda", (2,))
    DTensor.from_local(mine, mesh, [Shard(0)]).full_tensor()  # here


def lengths_that_one_rank_has_changed(fixed: bool) -> None:
    """Each rank lists all ranks' lengths, and one corrects an entry in its own list only."""
    lengths = [2, 1] if dist.get_rank() == 0 and not fixed else [2, 3]
    mine = torch.ones(lengths[dist.get_rank()], device="cuda")
    dist.all_gather([torch.empty(length, device="cuda") for length in lengths], mine)  # here


def norm_over_two_meshes(fixed: bool) -> None:
    """Dense parameters and experts are sharded over other ranks, and clipped together."""
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("dense", "experts"))
    layers = []
    for name in ("dense", "experts"):
        layer = nn.Linear(8, 8).cuda()
        fully_shard(layer, mesh=mesh[name])
        layer(torch.ones(1, 8, device="cuda")).sum().backward()
        layers.append(layer)
    for group in ([layer.parameters()] for layer in layers) if fixed else [[layer.parameters() for layer in layers]]:
        nn.utils.clip_grad_norm_([parameter for parameters in group for parameter in parameters], 1.0)


class _TwoResults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(x), self.second(x)


def result_left_out_of_a_static_graph(fixed: bool) -> None:
    """DDP has been promised a graph that never changes, in which it has counted a result that has no part in the loss."""
    model = DistributedDataParallel(_TwoResults().cuda(), static_graph=not fixed, find_unused_parameters=fixed)
    for _ in range(3):
        model(torch.ones(1, 8, device="cuda"))[0].sum().backward()


def gradients_that_no_hook_sees(fixed: bool) -> None:
    """``torch.autograd.grad`` of a model in DDP: nothing is summed."""
    model = DistributedDataParallel(nn.Linear(8, 1).cuda())
    loss = model(torch.full((1, 8), dist.get_rank() + 1.0, device="cuda")).sum()
    if fixed:
        loss.backward()
    else:
        torch.autograd.grad(loss, list(model.parameters()))


def groups_ended_in_another_order(fixed: bool) -> None:
    """Some ranks have a group more when a mesh is made, so that its groups have other names there, by which they are ended."""
    dist.destroy_process_group()
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    shapes = [(2, 2), (3,)] if fixed else [(3,), (2, 2)]
    for mesh in [init_device_mesh("cuda", shape) for shape in shapes]:
        for axis in range(mesh.ndim) if mesh.get_coordinate() is not None else ():
            dist.all_reduce(torch.ones(1, device="cuda"), group=mesh.get_group(axis))
    torch.cuda.synchronize()
    dist.destroy_process_group()


def buffer_left_on_the_host(fixed: bool) -> None:
    """A table of positions stays out of the module's moves: DDP gives all ranks the buffers of rank 0."""
    model = nn.Linear(8, 8).cuda().bfloat16()
    model.register_buffer("positions", torch.ones(8, device="cuda" if fixed else "cpu"))
    model = DistributedDataParallel(model)
    model(torch.ones(2, 8, device="cuda", dtype=torch.bfloat16)).sum().backward()


def tokens_exchanged_in_place(fixed: bool) -> None:
    """NCCL exchanges messages, and may receive one where another is still to be sent."""
    tokens = torch.full((2 * N,), float(dist.get_rank()), device="cuda")
    dist.all_to_all_single(torch.empty_like(tokens) if fixed else tokens, tokens)  # here


def results_gathered_on_the_host(fixed: bool) -> None:
    """The room for all ranks' results is made without a device."""
    mine = torch.ones(N, device="cuda")
    dist.all_gather([torch.empty(N, device="cuda" if fixed else "cpu") for _ in range(2)], mine)


def answers_that_end_at_their_own_token(fixed: bool) -> None:
    """Parameters are gathered for each token, and a rank whose answer has ended goes on to its score."""
    model = nn.Linear(8, 8).cuda()
    fully_shard(model, reshard_after_forward=True)
    x = torch.ones(1, 8, device="cuda")
    for token in range(4):
        with torch.no_grad():
            x = model(x)
        ended = torch.tensor(float(token > dist.get_rank()), device="cuda")
        if fixed:
            dist.all_reduce(ended, op=dist.ReduceOp.MIN)
        if ended.item():
            break
    dist.all_reduce(torch.ones(1, device="cuda"))  # here


def tokens_that_each_ranks_cache_has(fixed: bool) -> None:
    """Each rank looks up how much of a prompt its own cache has, and computes the rest."""
    found = torch.tensor([N if dist.get_rank() == 0 else N // 2], device="cuda")
    if fixed:
        dist.all_reduce(found, op=dist.ReduceOp.MIN)
    dist.all_reduce(torch.ones(2 * N - int(found), 8, device="cuda"))  # here


def neighbours_that_are_one_rank(fixed: bool) -> None:
    """Of two stages the one before is the one behind, and messages of one shape between two ranks meet in their order."""
    rank, peer = dist.get_rank(), 1 - dist.get_rank()
    results, gradients = (torch.full((N,), float(rank), device="cuda") for _ in range(2))
    from_before, from_behind = torch.empty_like(results), torch.empty_like(results)
    before = [dist.P2POp(dist.isend, gradients, peer), dist.P2POp(dist.irecv, from_before, peer)]
    behind = [dist.P2POp(dist.isend, results, peer), dist.P2POp(dist.irecv, from_behind, peer)]
    for work in dist.batch_isend_irecv([*behind, *before] if fixed and rank else [*before, *behind]):
        work.wait()
