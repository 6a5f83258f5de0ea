"""Bugs of public issue trackers, told again as short programs of several ranks: wrong as they stand, right when ``fixed``.

The line that a report must name ends with ``# here``.
"""

from __future__ import annotations

import contextlib
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _symmetric_memory as symm_mem
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

N = 64


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)).cuda()


def metrics_with_other_names(fixed: bool) -> None:
    """A metric that only some ranks have seen is reduced by these alone."""
    metrics = {"loss": torch.ones((), device="cuda")}
    if fixed or dist.get_rank() == 0:
        metrics["accuracy"] = torch.ones((), device="cuda")
    for value in metrics.values():
        dist.all_reduce(value)  # here
    dist.all_gather_into_tensor(torch.empty(2 * N, device="cuda"), torch.ones(N, device="cuda"))


def loss_reduced_by_one_rank(fixed: bool) -> None:
    """Inside of ``if rank == 0``, as the last thing of the program."""
    loss = torch.ones((), device="cuda")
    if fixed or dist.get_rank() == 0:
        dist.all_reduce(loss)  # here
    if dist.get_rank() == 0:
        print(float(loss))


def group_of_each_nodes_own_ranks(fixed: bool) -> None:
    """Every rank makes the group that it is in, and none of the others."""
    mine = dist.get_rank() // 2
    groups = {}
    for node in (0, 1) if fixed else (mine,):
        groups[node] = dist.new_group([2 * node, 2 * node + 1])  # here
    dist.all_reduce(torch.ones(N, device="cuda"), group=groups[mine])


def group_made_by_its_members(fixed: bool) -> None:
    if fixed or dist.get_rank() < 2:
        group = dist.new_group([0, 1])  # here
        if dist.get_rank() < 2:
            dist.all_reduce(torch.ones(N, device="cuda"), group=group)
    dist.barrier()


def state_dict_of_one_rank(fixed: bool) -> None:
    """The whole state is gathered, which all ranks must do, for a file that one writes."""
    model = FullyShardedDataParallel(_model(), use_orig_params=True)
    if fixed or dist.get_rank() == 0:
        model.state_dict()  # here
    dist.barrier()


def norm_of_one_rank(fixed: bool) -> None:
    """The norm of sharded gradients is a collective, here under a condition."""
    model = _model()
    fully_shard(model)
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    if fixed or dist.get_rank() == 0:
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # here
        print(norm.full_tensor().item() > 0)
    dist.barrier()


def lengths_that_differ(fixed: bool) -> None:
    """Ranks gather as many rows as each has."""
    rows = torch.ones(3 if fixed else 3 + dist.get_rank(), 4, device="cuda")
    gathered = [torch.empty_like(rows) for _ in range(2)]
    dist.all_gather(gathered, rows)  # here


def sums_that_differ_in_size(fixed: bool) -> None:
    dist.all_reduce(torch.ones(N if fixed else N + dist.get_rank(), device="cuda"))  # here


def rank_that_calls_another_collective(fixed: bool) -> None:
    x = torch.ones(N, device="cuda")
    if fixed or dist.get_rank() != 2:
        dist.all_reduce(x)  # here
    else:
        dist.all_gather_into_tensor(torch.empty(4 * N, device="cuda"), x)


def both_send_first(fixed: bool) -> None:
    peer = 1 - dist.get_rank()
    mine, theirs = torch.ones(1 << 22, device="cuda"), torch.empty(1 << 22, device="cuda")
    if fixed:
        ops = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
    else:
        dist.send(mine, peer)  # here
        dist.recv(theirs, peer)
    torch.cuda.synchronize()


def stages_that_send_before_they_receive(fixed: bool) -> None:
    """Two stages on each rank: a forward's output goes one way while another's comes the other way."""
    rank = dist.get_rank()
    out, back = torch.ones(1 << 22, device="cuda"), torch.empty(1 << 22, device="cuda")
    for _ in range(2):
        if fixed and rank == 1:
            dist.recv(back, 1 - rank)
            dist.send(out, 1 - rank)
        else:
            dist.send(out, 1 - rank)  # here
            dist.recv(back, 1 - rank)
    torch.cuda.synchronize()


def all_that_is_received_in_one_batch(fixed: bool) -> None:
    """A skip connection: rank 2 gets from 0 and from 1 at once, while 1 sends only behind what 2 would send it."""
    rank = dist.get_rank()
    x, y = torch.ones(1 << 20, device="cuda"), torch.ones(1 << 20, device="cuda")
    dist.barrier()  # makes the communicator of the batches
    if rank == 0:
        dist.send(x, 1)
        dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 2)])
    elif rank == 1:
        dist.recv(x, 0)
        if not fixed:
            dist.recv(y, 2)  # here
        dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 2)])
    else:
        ops = [dist.P2POp(dist.irecv, x, 0), dist.P2POp(dist.irecv, y, 1)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        torch.cuda.synchronize()
        if not fixed:
            dist.send(y, 1)
    torch.cuda.synchronize()


def batches_that_differ_in_number(fixed: bool) -> None:
    """One rank's share of the data is a batch longer."""
    model = DistributedDataParallel(_model())
    for _ in range(2 if fixed else 2 + dist.get_rank()):
        model(torch.ones(2, 8, device="cuda")).sum().backward()  # here
    torch.cuda.synchronize()


def validation_that_begins_early(fixed: bool) -> None:
    """Whose loader is empty first reduces the validation's loss, while the others' gradients wait for its."""
    model = DistributedDataParallel(_model())
    for _ in range(2 if fixed else 2 + dist.get_rank()):
        model(torch.ones(2, 8, device="cuda")).sum().backward()
    dist.all_reduce(torch.ones(1, device="cuda"))  # here


class _HalfUsed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, both: bool) -> torch.Tensor:
        return self.used(x) + self.unused(x) if both else self.used(x)


def parameters_without_gradients(fixed: bool) -> None:
    model = DistributedDataParallel(_HalfUsed().cuda())
    for _ in range(2):
        model(torch.ones(2, 8, device="cuda"), fixed).sum().backward()  # here


def last_step_without_gradients(fixed: bool) -> None:
    """In the only step a bucket never becomes whole: nothing is summed, and nothing complains."""
    model = DistributedDataParallel(_HalfUsed().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.full((2, 8), 1.0 + dist.get_rank(), device="cuda"), fixed).sum().backward()  # here
    optimizer.step()


def accumulated_without_the_last(fixed: bool) -> None:
    """``no_sync`` is left for the first micro-batch of a step, not for its last."""
    model = DistributedDataParallel(_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for index in range(2):
        summed = (index + 1) % 2 == 0 if fixed else index % 2 == 0
        with contextlib.nullcontext() if summed else model.no_sync():
            model(torch.full((2, 8), 1.0 + dist.get_rank() + index, device="cuda")).sum().backward()  # here
    optimizer.step()


class _Swap(torch.autograd.Function):
    """All-to-all of rows, forwards and backwards."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous())
        return out

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(grad)
        dist.all_to_all_single(out, grad.contiguous())  # here
        return out


def expert_without_tokens(fixed: bool) -> None:
    """A rank whose experts got nothing returns fresh memory, so its backward pass does not come through the exchange."""
    x = torch.ones(4, 8, device="cuda", requires_grad=True)
    tokens = _Swap.apply(x)
    idle = dist.get_rank() == 1
    done = torch.zeros(4, 8, device="cuda", requires_grad=True) if idle and not fixed else tokens * (not idle)
    done.sum().backward()
    dist.barrier()


def batch_that_is_skipped(fixed: bool) -> None:
    """A rank that catches its error goes on with the next batch, alone."""
    model = DistributedDataParallel(_model())
    for index in range(2):
        try:
            if index == 0 and dist.get_rank() == 1 and not fixed:
                raise torch.cuda.OutOfMemoryError("a long sequence")
            model(torch.ones(2, 8, device="cuda")).sum().backward()  # here
        except torch.cuda.OutOfMemoryError:
            continue
    torch.cuda.synchronize()


def ranks_on_one_gpu(fixed: bool) -> None:
    torch.cuda.set_device(dist.get_rank() if fixed else 0)
    dist.all_reduce(torch.ones(N, device="cuda"))  # here
    torch.cuda.synchronize()


def barrier_on_the_first_gpu(fixed: bool) -> None:
    """The first collective of all is a barrier, and it is not known which GPU is whose."""
    torch.cuda.set_device(0)
    if fixed:
        torch.cuda.set_device(dist.get_rank())
    dist.barrier()  # here


def norm_on_the_host(fixed: bool) -> None:
    total = torch.ones(1, device="cuda" if fixed else "cpu")
    dist.all_reduce(total)  # here


def experts_by_each_ranks_data(fixed: bool) -> None:
    """Experts are sharded each by itself, and a rank gathers only those that its tokens want."""
    experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4)).cuda()
    for expert in experts:
        fully_shard(expert)
    x = torch.ones(2, 8, device="cuda")
    for number in range(4) if fixed else (0, 1) if dist.get_rank() == 0 else (2,):
        x = experts[number](x)
    x.sum().backward()  # here


def layer_of_some_ranks_batches(fixed: bool) -> None:
    """A batch without images leaves out the layers of images, of which each rank has a part."""
    images, text = (fully_shard(nn.Linear(8, 8).cuda()) for _ in range(2))
    x = torch.ones(2, 8, device="cuda")
    if fixed or dist.get_rank() == 0:
        x = x + images(x)
    text(x).sum().backward()  # here


def barrier_of_all_but_one(fixed: bool) -> None:
    if fixed or dist.get_rank() != dist.get_world_size() - 1:
        dist.barrier()  # here


def group_destroyed_after_an_error(fixed: bool) -> None:
    """The rank that fails takes its group down in ``finally``, while the others communicate: what is told is its error."""
    try:
        if dist.get_rank() == 1 and not fixed:
            raise ValueError("no such batch")
        dist.all_reduce(torch.ones(N, device="cuda"))
    finally:
        dist.destroy_process_group()


def preparation_longer_than_the_timeout(fixed: bool) -> None:
    """One rank prepares the data, the others wait for it in a barrier, for ten minutes."""
    ready = dist.new_group(timeout=timedelta(minutes=60 if fixed else 10))
    if dist.get_rank() == 0:
        time.sleep(20 * 60)
    dist.barrier(ready)  # here


def columns_sent_as_they_are(fixed: bool) -> None:
    columns = torch.ones(8, 8, device="cuda")[:, 2:4]
    if fixed:
        columns = columns.contiguous()
    dist.send(columns, 1) if dist.get_rank() == 0 else dist.recv(columns, 0)


def one_tensor_for_all_results(fixed: bool) -> None:
    """Each rank's part comes to the same memory, where the last one stays."""
    size = dist.get_world_size()
    parts = [torch.empty(5, device="cuda") for _ in range(size)] if fixed else [torch.empty(5, device="cuda")] * size
    dist.all_gather(parts, torch.full((5,), float(dist.get_rank()), device="cuda"))


def messages_in_another_order(fixed: bool) -> None:
    """Two tensors of one shape change places: nothing tells one from the other."""
    first, second = torch.zeros(N, device="cuda"), torch.ones(N, device="cuda")
    if dist.get_rank() == 0:
        dist.send(first, 1)
        dist.send(second, 1)
    else:
        for x in (first, second) if fixed else (second, first):
            dist.recv(x, 0)  # here


def message_that_is_not_received(fixed: bool) -> None:
    """One rank sends, and goes on; what is sent fits into the library's buffer."""
    x = torch.zeros(4, device="cuda")
    if dist.get_rank() == 0:
        dist.isend(x, 1)  # here
    elif fixed:
        dist.irecv(x, 0)
    torch.cuda.synchronize()


def mean_of_means(fixed: bool) -> None:
    """Losses per token are averaged over ranks that have different numbers of tokens."""
    tokens = torch.tensor(3.0 + dist.get_rank(), device="cuda")
    loss = torch.tensor(2.0 + dist.get_rank(), device="cuda")
    if fixed:
        loss = loss * tokens
        dist.all_reduce(tokens)
    dist.all_reduce(loss)
    print(float(loss / tokens if fixed else loss / 2))  # here


def checkpoint_that_one_rank_finds(fixed: bool) -> None:
    """Each rank looks for itself whether a shared file is there yet, and the state is broadcast if it is."""
    there = [dist.get_rank() == 0]
    if fixed:
        dist.broadcast_object_list(there)
    if there[0]:
        dist.broadcast_object_list([{"step": 3}] if dist.get_rank() == 0 else [None])  # here
    dist.barrier()


def messages_before_all_have_met(fixed: bool) -> None:
    """Two ranks of three exchange first in a group, and the third waits until they have."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    if fixed:
        dist.barrier()
    if rank == 2:
        store.wait(["exchanged"])
        return
    mine, other = torch.zeros(4, device="cuda"), torch.empty(4, device="cuda")
    batch = [dist.P2POp(dist.isend, mine, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()  # here
    torch.cuda.synchronize()
    store.set("exchanged", "yes")


def sum_that_another_stream_waits_for(fixed: bool) -> None:
    """The collective's memory is given back when one stream has waited for it, and is another's."""
    mine, side = torch.cuda.current_stream(), torch.cuda.Stream()
    gradient = torch.full((1 << 20,), 1.0, device="cuda")
    side.wait_stream(mine)
    with torch.cuda.stream(side):
        dist.all_reduce(gradient, async_op=True).wait()
        if fixed:
            gradient.record_stream(side)
        del gradient
    torch.full((1 << 20,), 2.0, device="cuda")  # here
    torch.cuda.synchronize()


def symmetric_sums_of_two_streams(fixed: bool) -> None:
    """Two halves of a symmetric buffer are summed on two streams, whose kernels wait for their peers by the same words."""
    group = dist.group.WORLD.group_name
    buffer = symm_mem.empty(64, device="cuda").fill_(1.0)
    symm_mem.rendezvous(buffer, group)
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    first.wait_stream(torch.cuda.current_stream())
    second.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(first):
        torch.ops.symm_mem.one_shot_all_reduce(buffer[:32], "sum", group)
    if fixed:
        second.wait_stream(first)
    with torch.cuda.stream(second):
        torch.ops.symm_mem.one_shot_all_reduce(buffer[32:], "sum", group)  # here


def message_in_a_batch_on_one_side(fixed: bool) -> None:
    """Received in a batch, and sent by itself: NCCL has a communicator for each of them."""
    rank = dist.get_rank()
    dist.barrier()
    value = torch.full((N,), float(rank), device="cuda")
    if rank == 0:
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, value, 1)]):
            work.wait()
    elif fixed:
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, value, 0)]):
            work.wait()
    else:
        dist.send(value, 0)  # here
    assert value.tolist() == [1.0] * N


def messages_of_two_types(fixed: bool) -> None:
    """A rank's loss is of 64 bits, and what receives it of 32."""
    rank = dist.get_rank()
    given = torch.ones(2, device="cuda", dtype=torch.float64 if rank and not fixed else torch.float32)
    got = torch.zeros(2, device="cuda")
    exchange = [dist.P2POp(dist.isend, given, 1 - rank), dist.P2POp(dist.irecv, got, 1 - rank)]
    for work in dist.batch_isend_irecv(exchange):  # here
        work.wait()
    assert got.tolist() == [1.0, 1.0]


def column_summed_by_gloo(fixed: bool) -> None:
    """Gloo takes what lies behind a column's first element for the column."""
    group = dist.new_group(backend="gloo")
    column = torch.arange(6.0).view(3, 2)[:, 0]
    if fixed:
        column = column.contiguous()
    dist.all_reduce(column, group=group)  # here
    assert column.tolist() == [0.0, 4.0, 8.0]
