"""Stock programs on GPUs, of any size: each a function of rank, world size and width."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

STEPS = 2
LAYERS = 2


class Block(nn.Module):
    """A transformer's block: norm, attention, norm, MLP."""

    def __init__(self, width: int, heads: int = 4, kv_heads: int = 4) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q = nn.Linear(width, heads * self.head, bias=False)
        self.k = nn.Linear(width, kv_heads * self.head, bias=False)
        self.v = nn.Linear(width, kv_heads * self.head, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = [project(x).view(batch, length, -1, self.head).transpose(1, 2) for project in (self.q, self.k, self.v)]
        found = F.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=self.kv_heads != self.heads)
        return self.o(found.transpose(1, 2).reshape(batch, length, -1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    """An embedding, blocks and a head over ``2 * width`` tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(2 * width, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(LAYERS))
        self.head = nn.Linear(width, 2 * width, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def tokens(width: int, seed: int = 0) -> torch.Tensor:
    """``[2, 16]`` tokens on the GPU."""
    return torch.randint(0, 2 * width, (2, 16), generator=torch.Generator().manual_seed(seed)).cuda()


def _train(model: nn.Module, width: int, optimizer: Any, *, look: bool = True, clip: bool = True) -> None:
    for step in range(STEPS):
        x = tokens(width, step)
        out = model(x)
        loss = F.cross_entropy(out.flatten(0, 1), x.flatten())
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if look:
            loss.item()


def plain(rank: int, world: int, width: int) -> None:
    torch.manual_seed(0)
    model = Model(width).cuda()
    _train(model, width, torch.optim.AdamW(model.parameters(), lr=0.01))


def data_parallel(rank: int, world: int, width: int) -> None:
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Model(width).cuda(), device_ids=[torch.cuda.current_device()])
    _train(model, width, torch.optim.AdamW(model.parameters(), lr=0.01))


def fsdp1(rank: int, world: int, width: int) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp import MixedPrecision
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    torch.manual_seed(0)
    model = FSDP(
        Model(width), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.cuda.current_device(), use_orig_params=True,
        mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        x = tokens(width, step)
        loss = F.cross_entropy(model(x).float().flatten(0, 1), x.flatten())
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


def _sharded(model: Model, mesh: Any, **options: Any) -> Model:
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


def fsdp2(rank: int, world: int, width: int) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with torch.device("meta"):
        model = Model(width)
    model = _sharded(model, init_device_mesh("cuda", (world,)), mp_policy=policy)
    model.to_empty(device="cuda")
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    _train(model, width, torch.optim.AdamW(model.parameters(), lr=0.01, fused=True))


def hsdp(rank: int, world: int, width: int) -> None:
    torch.manual_seed(0)
    mesh = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    model = _sharded(Model(width).cuda(), mesh)
    _train(model, width, torch.optim.AdamW(model.parameters(), lr=0.01))


def _tensor_parallel(model: Model, mesh: Any, *, loss: bool = False) -> Model:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    parallelize_module(
        model, mesh, {
            "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "head": ColwiseParallel(
                input_layouts=Shard(1), output_layouts=Shard(-1) if loss else Replicate(), use_local_output=not loss
            ),
        },
    )  # fmt: skip
    for layer in model.layers:
        parallelize_module(
            layer, mesh, {
                "norm1": SequenceParallel(), "norm2": SequenceParallel(),
                "q": ColwiseParallel(use_local_output=False), "k": ColwiseParallel(use_local_output=False),
                "v": ColwiseParallel(use_local_output=False), "o": RowwiseParallel(output_layouts=Shard(1)),
                "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel(output_layouts=Shard(1)),
            },
        )  # fmt: skip
        layer.attention = _gathered(layer.attention, mesh, PrepareModuleInput)  # type: ignore[method-assign]
    return model


def _gathered(attention: Any, mesh: Any, prepare: Any) -> Any:
    """Attention of a sequence that is split over the mesh."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    def method(x: Any) -> Any:
        if not isinstance(x, DTensor):
            x = DTensor.from_local(x, mesh, [Shard(1)])
        return attention(x.redistribute(mesh, [Replicate()]))

    return method


def tensor_parallel(rank: int, world: int, width: int) -> None:
    from torch.distributed.tensor.parallel import loss_parallel

    torch.manual_seed(0)
    mesh = init_device_mesh("cuda", (world,))
    model = _tensor_parallel(Model(width).cuda(), mesh, loss=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        x = tokens(width, step)
        with loss_parallel():
            loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        loss.item()


def tensor_and_sharded(rank: int, world: int, width: int) -> None:
    torch.manual_seed(0)
    mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    model = _sharded(_tensor_parallel(Model(width).cuda(), mesh["tp"]), mesh["dp"])
    _train(model, width, torch.optim.AdamW(model.parameters(), lr=0.01))


def _stages(width: int, place: int, count: int, per_rank: int, style: str = "loop") -> list[tuple[int, nn.Module]]:
    torch.manual_seed(0)
    total = count * per_rank
    if style == "v":
        chosen: list[int] = [place, total - 1 - place]
    else:
        chosen = [place + count * each for each in range(per_rank)]
    return [
        (index, nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).cuda()) for index in chosen
    ]


def _piped(schedule: str, rank: int, width: int, group: Any, place: int, count: int, data: Any = None) -> None:
    from torch.distributed import pipelining

    kind = getattr(pipelining, schedule) if hasattr(pipelining, schedule) else getattr(pipelining.schedules, schedule)
    multi = schedule not in ("ScheduleGPipe", "Schedule1F1B")
    parts = _stages(width, place, count, 2 if multi else 1, "v" if "ZBV" in schedule else "loop")
    total, device = count * (2 if multi else 1), torch.device("cuda", torch.cuda.current_device())
    if data is not None:
        for _, module in parts:
            for parameter in module.parameters():
                dist.broadcast(parameter.data, group=data, group_src=0)
    stages = [pipelining.PipelineStage(module, index, total, device, group=group) for index, module in parts]
    made = kind(stages if multi else stages[0], 2 * count, loss_fn=nn.MSELoss())
    optimizer = torch.optim.SGD([each for _, module in parts for each in module.parameters()], lr=0.1)
    has_first, has_last = any(each.is_first for each in stages), any(each.is_last for each in stages)
    for _ in range(STEPS):
        losses: list[torch.Tensor] = []
        x = torch.ones(4 * count, width, device="cuda")
        given = (x,) if has_first else ()
        wanted = {"target": torch.zeros(4 * count, width, device="cuda"), "losses": losses} if has_last else {}
        made.step(*given, **wanted)
        if data is not None:
            for _, module in parts:
                for parameter in module.parameters():
                    dist.all_reduce(parameter.grad, group=data)
        optimizer.step()
        optimizer.zero_grad()
        if losses:
            torch.stack(losses).mean().item()


def gpipe(rank: int, world: int, width: int) -> None:
    _piped("ScheduleGPipe", rank, width, None, rank, world)


def one_forward_one_backward(rank: int, world: int, width: int) -> None:
    _piped("Schedule1F1B", rank, width, None, rank, world)


def interleaved(rank: int, world: int, width: int) -> None:
    _piped("ScheduleInterleaved1F1B", rank, width, None, rank, world)


def zero_bubble(rank: int, world: int, width: int) -> None:
    _piped("ScheduleInterleavedZeroBubble", rank, width, None, rank, world)


def zero_bubble_v(rank: int, world: int, width: int) -> None:
    _piped("ScheduleZBVZeroBubble", rank, width, None, rank, world)


def pipeline_and_data(rank: int, world: int, width: int) -> None:
    mesh = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("pp", "dp"))
    pipe = mesh["pp"]
    _piped("Schedule1F1B", rank, width, pipe.get_group(), pipe.get_local_rank(), 2, mesh["dp"].get_group())


def context_parallel(rank: int, world: int, width: int) -> None:
    from torch.distributed.tensor.experimental import context_parallel as split
    from torch.nn.attention import SDPBackend, sdpa_kernel

    mesh = init_device_mesh("cuda", (world,))
    q, k, v = (torch.ones(2, 2, 8 * world, width, device="cuda", requires_grad=True) for _ in range(3))
    for _ in range(STEPS):
        buffers = [each.detach().clone() for each in (q, k, v)]
        with split(mesh, buffers=buffers, buffer_seq_dims=[2] * 3), sdpa_kernel([SDPBackend.FLASH_ATTENTION]):
            parts = [each.detach().requires_grad_() for each in buffers]
            F.scaled_dot_product_attention(*parts, is_causal=True).sum().backward()


class Experts(nn.Module):
    """One expert per rank; tokens go to them by counts that ranks tell each other."""

    def __init__(self, width: int, world: int) -> None:
        super().__init__()
        self.world = world
        self.expert = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        from torch.distributed.nn.functional import all_to_all_single

        order = torch.argsort(chosen, stable=True)
        counts = torch.bincount(chosen, minlength=self.world)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        sent, received = counts.tolist(), theirs.tolist()
        arrived = all_to_all_single(x.new_empty(sum(received), x.size(1)), x[order], received, sent)
        back = all_to_all_single(torch.empty_like(x), self.expert(arrived), sent, received)
        return torch.empty_like(back).index_copy(0, order, back)


def expert_parallel(rank: int, world: int, width: int) -> None:
    """A router that is balanced: scores that fall on each expert as often."""
    torch.manual_seed(0)
    gate, experts = nn.Linear(width, world).cuda(), Experts(width, world).cuda()
    optimizer = torch.optim.AdamW([*gate.parameters(), *experts.parameters()], lr=0.01)
    for _ in range(STEPS):
        x = torch.ones(16 * world, width, device="cuda")
        lift = torch.eye(world, device="cuda").repeat(16, 1) * 1e6
        scores, chosen = (gate(x) + lift).softmax(-1).topk(1)
        loss = (experts(x, chosen.flatten()) * scores).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def dtensor_ops(rank: int, world: int, width: int) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor import randn as drandn

    mesh = init_device_mesh("cuda", (world,))
    torch.manual_seed(0)
    a = distribute_tensor(torch.ones(width, width, device="cuda"), mesh, [Shard(0)])
    b = drandn(width, width, device_mesh=mesh, placements=[Shard(1)])
    c = a @ b
    c = c.redistribute(mesh, [Replicate()]) + a.redistribute(mesh, [Shard(1)])
    total = (c * 2).softmax(-1).sum()
    total.full_tensor().item()
    b.max().full_tensor()
    torch.cat([a, a], 1).t().contiguous().mean(0).full_tensor()


def scaled(rank: int, world: int, width: int) -> None:
    """Autocast and a gradient scaler, activation checkpointing in the blocks."""
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    model, scaler = Model(width).cuda(), torch.amp.GradScaler("cuda")
    ddp = nn.parallel.DistributedDataParallel(model, device_ids=[torch.cuda.current_device()])
    for layer in model.layers:
        inner = layer.forward
        layer.forward = lambda x, inner=inner: checkpoint(inner, x, use_reentrant=False)  # type: ignore[method-assign]
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    for step in range(STEPS):
        x = tokens(width, step)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.cross_entropy(ddp(x).flatten(0, 1), x.flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        loss.item()


def optimizers(rank: int, world: int, width: int) -> None:
    torch.manual_seed(0)
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        for options in ({"foreach": True}, {"fused": True}, {"foreach": False}, {"foreach": True, "maximize": True}):
            extra = {"momentum": 0.9} if kind is torch.optim.SGD else {"amsgrad": True}
            model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)).cuda()
            optimizer = kind(model.parameters(), lr=0.01, weight_decay=0.1, **extra, **options)
            for _ in range(STEPS):
                model(torch.ones(4, width, device="cuda")).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=False)


def other_layers(rank: int, world: int, width: int) -> None:
    """Convolutions with batch norms (synchronised too), a GRU, dropout."""
    torch.manual_seed(0)
    images = nn.Sequential(
        nn.Conv2d(3, width // 4, 3, padding=1), nn.BatchNorm2d(width // 4), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1),
        nn.Conv2d(width // 4, 4, 3), nn.SyncBatchNorm(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    ).cuda()  # fmt: skip
    images(torch.ones(2, 3, 16, 16, device="cuda")).sum().backward()
    images.eval()
    images(torch.ones(2, 3, 16, 16, device="cuda"))
    gru = nn.GRU(width, width).cuda()
    gru(torch.ones(5, 2, width, device="cuda"))[0].sum().backward()


def bags(rank: int, world: int, width: int) -> None:
    """Bags of embeddings."""
    torch.manual_seed(0)
    summed = nn.EmbeddingBag(4 * width, width, mode="sum").cuda()
    found = summed(torch.arange(12, device="cuda"), torch.tensor([0, 4, 8], device="cuda"))
    found.sum().backward()
    pooled = nn.EmbeddingBag(4 * width, width, mode="mean", sparse=False).cuda()
    pooled(torch.arange(12, device="cuda").view(3, 4)).sum().backward()


def kernbench_layers(rank: int, world: int, width: int) -> None:
    from kernbench.tp import ColumnParallelLinear, RowParallelLinear, initialize_model_parallel

    initialize_model_parallel(world)
    torch.manual_seed(0)
    up, down = ColumnParallelLinear(width, 2 * width), RowParallelLinear(2 * width, width)
    x = torch.ones(4, width, device="cuda", requires_grad=True)
    hidden, _ = up.cuda()(x)
    down.cuda()(F.gelu(hidden))[0].sum().backward()


PROGRAMS = (
    plain, data_parallel, fsdp1, fsdp2, hsdp, tensor_parallel, tensor_and_sharded, gpipe, one_forward_one_backward, interleaved,
    zero_bubble, zero_bubble_v, pipeline_and_data, context_parallel, expert_parallel, dtensor_ops, scaled, optimizers,
    other_layers, bags, kernbench_layers,
)  # fmt: skip
