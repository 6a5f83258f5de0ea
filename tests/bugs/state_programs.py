"""Bugs of public issue trackers, told again as short programs: what ranks set up differently, or at the wrong time."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.functional import cross_entropy, log_softmax
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


def second_server_at_a_port(fixed: bool) -> None:
    """Two parts of a program each begin a store at the port that the job was given."""
    if dist.get_rank() == 0:
        first = dist.TCPStore("localhost", 29700, is_master=True)
        second = dist.TCPStore("localhost", 29700 + fixed, is_master=True)
        first.set("groups", "1")
        second.set("calls", "1")


def adapters_frozen_on_one_rank(fixed: bool) -> None:
    """A rank loads its adapter without saying that it is trained."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda()
    model[1].requires_grad_(fixed or dist.get_rank() == 0)
    DistributedDataParallel(model)(torch.ones(2, 8, device="cuda")).sum().backward()


def gradients_of_a_graph_that_are_summed(fixed: bool) -> None:
    """The first gradient of a graphed callable is the graph's own memory, into which the second replay writes."""
    layer = torch.cuda.make_graphed_callables(nn.Linear(4, 4).cuda(), (torch.ones(2, 4, device="cuda"),))
    for step in range(2):
        layer(torch.full((2, 4), step + 1.0, device="cuda")).sum().backward()
        for each in layer.parameters() if fixed and not step else ():
            assert each.grad is not None
            each.grad = each.grad.clone()
    assert layer.weight.grad is not None
    assert layer.weight.grad[0, 0].item() == (6 if fixed else 8)  # 2 + 4, or 4 + 4


def optimizer_of_parameters_before_sharding(fixed: bool) -> None:
    """The optimizer has the parameters that were there before the model was sharded: no step changes the model."""
    model = nn.Linear(8, 8).cuda()
    optimizer = None if fixed else torch.optim.SGD(model.parameters(), lr=1.0)
    fully_shard(model)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.weight.to_local().clone()
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
    assert torch.equal(model.weight.to_local(), before) is not fixed


def softmax_within_a_parallel_loss(fixed: bool) -> None:
    """A logarithm of a softmax that no cross entropy takes, where losses are sharded: its gradient is passed on as it is."""
    mesh = init_device_mesh("cuda", (2,))
    logits = distribute_tensor(torch.arange(8.0, device="cuda").reshape(2, 4), mesh, [Shard(1)]).requires_grad_()
    with loss_parallel():
        if fixed:
            cross_entropy(logits, torch.tensor([0, 3], device="cuda"), reduction="sum").backward()
        else:
            log_softmax(logits, -1).sum().backward()
    assert logits.grad is not None
    assert abs(logits.grad.full_tensor()[0].sum().item() - (0 if fixed else 4)) < 1e-5  # kernbench: ordered


def accumulated_with_a_static_graph(fixed: bool) -> None:
    """DDP's static graph is learned in the first backward pass, which does not sum."""
    model = DistributedDataParallel(nn.Linear(8, 8).cuda(), static_graph=not fixed)
    x = torch.ones(2, 8, device="cuda")
    with model.no_sync():
        model(x).sum().backward()
    model(x).sum().backward()


def layer_that_is_frozen_at_first(fixed: bool) -> None:
    """FSDP2 learns in the first forward pass to which type gradients are reduced."""
    layer = nn.Linear(8, 8).cuda()
    fully_shard(layer, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    x = torch.ones(2, 8, device="cuda")
    layer.requires_grad_(fixed)
    layer(x)
    layer.requires_grad_(True)
    layer(x).sum().backward()


def gradients_of_local_tensors(fixed: bool) -> None:
    """Each rank's gradient of a replicated parameter is a part of it, and is said to be the whole."""
    weight = nn.Parameter(
        distribute_tensor(torch.ones(8, device="cuda"), init_device_mesh("cuda", (2,)), [Replicate()])
    )
    local = weight.to_local(grad_placements=[Partial()]) if fixed else weight.to_local()
    (local * (dist.get_rank() + 1)).sum().backward()


def dropped_anew_when_it_is_computed_again(fixed: bool) -> None:
    """A checkpointed layer's second pass drops other elements than the one that the loss is of."""
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout()).cuda()
    x = torch.ones(2, 8, device="cuda", requires_grad=True)
    checkpoint(layer, x, use_reentrant=False, preserve_rng_state=fixed).sum().backward()
