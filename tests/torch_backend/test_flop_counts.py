"""FLOPs of a rank: as many as torch's own FlopCounterMode counts in the same run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

import kernbench
import kernbench.cost
from kernbench.simulation.ranks.work_counts import Account
from kernbench.torch_backend.operations.flop_formulas import formula_of

WIDTH, HEADS, TOKENS, BATCH = 32, 4, 8, 2
aten = torch.ops.aten


class Layer(nn.Module):
    """A transformer's layer. ``fused``: by the attention that torch fuses, else by two products."""

    def __init__(self, fused: bool = False) -> None:
        super().__init__()
        self.fused = fused
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k, v = parts
        if self.fused:
            seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            seen = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Stack(nn.Module):
    def __init__(self, recompute: str = "", fused: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(fused) for _ in range(2))
        self.recompute = recompute

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=self.recompute == "reentrant") if self.recompute else layer(x)
        return x


def _plain(stack: nn.Module) -> nn.Module:
    return stack.cuda()


def _ddp(stack: nn.Module) -> nn.Module:
    return DistributedDataParallel(stack.cuda())


def _fsdp(stack: nn.Module) -> nn.Module:
    stack = stack.cuda()
    for layer in stack.layers:
        fully_shard(layer)
    return fully_shard(stack)


def _tensor_parallel(stack: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for layer in stack.cuda().layers:
        parallelize_module(layer, mesh, plan)
    return stack


def counted(body: Callable[[], None], world: int = 2) -> list[tuple[Account, int]]:
    """What each rank's account has after ``body``, and what torch's counter says of it."""
    found: list[Any] = [None] * world
    with kernbench.simulate("dgx_h100") as ctx:

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl")
            with FlopCounterMode(display=False) as counter:
                body()
            found[rank] = ctx.simulation.hosts.current().account, counter.get_total_flops()
            dist.destroy_process_group()

        ctx.multiprocessing.spawn(worker, nprocs=world)
    return found


def forward_backward(wrap: Callable[[nn.Module], nn.Module], stack: nn.Module) -> None:
    model = wrap(stack)
    x = torch.randn(BATCH, TOKENS, WIDTH, device="cuda", requires_grad=True)
    model(x).square().mean().backward()


@pytest.mark.parametrize("recompute", ["", "reentrant", "not reentrant"])
@pytest.mark.parametrize("wrap", [_plain, _ddp, _fsdp])
def test_as_many_as_torchs_counter(wrap: Callable[[nn.Module], nn.Module], recompute: str) -> None:
    for account, total in counted(lambda: forward_backward(wrap, Stack(recompute))):
        model, repeated = sum(account.flops.values()), sum(account.recomputed.values())
        assert model + repeated == total > 0
        if not recompute:
            assert repeated == 0
        elif recompute == "reentrant":
            assert 3 * repeated == model  # all of the forward again, and backward is twice the forward
        else:
            assert 0 < 3 * repeated < model  # it stops as soon as it has what it needs


@pytest.mark.parametrize("passes", [3, 4])
def test_dtensors_count_what_each_rank_multiplies(passes: int) -> None:
    """torch's counter sees DTensors whole; what is sharded is a half of that on each of two ranks."""
    recompute, layers = "reentrant" if passes == 4 else "", 2
    sharded = layers * passes * 2 * BATCH * TOKENS * WIDTH * (4 + 4) * WIDTH
    for account, total in counted(lambda: forward_backward(_tensor_parallel, Stack(recompute))):
        assert sum(account.flops.values()) + sum(account.recomputed.values()) == total - sharded // 2


def test_the_sum_is_that_of_the_formulas() -> None:
    """A layer of two products per linear, forward once and backward twice, by hand."""
    rows, layers = BATCH * TOKENS, 2
    linear = 2 * rows * WIDTH * WIDTH * (3 + 1 + 4 + 4)
    attention = 2 * 2 * BATCH * HEADS * TOKENS * TOKENS * (WIDTH // HEADS)
    [(account, _)] = counted(lambda: forward_backward(_plain, Stack()), 1)
    assert account.flops == {"fp32": 3 * layers * (linear + attention)}


def test_fused_attention_counts_as_it_does_on_a_gpu() -> None:
    """torch's counter has no formula for the operation that a CPU is called with: forward twice, backward five products."""
    product = 2 * BATCH * HEADS * TOKENS * TOKENS * (WIDTH // HEADS)
    [(fused, _)] = counted(lambda: forward_backward(_plain, Stack(fused=True)), 1)
    [(plain, _)] = counted(lambda: forward_backward(_plain, Stack()), 1)
    assert fused.flops["fp32"] - plain.flops["fp32"] == 2 * (2 + 5 - 6) * product


def test_a_backward_that_builds_a_graph_repeats_nothing() -> None:
    def body() -> None:
        weight = torch.randn(8, 8, device="cuda", requires_grad=True)
        x = torch.randn(4, 8, device="cuda", requires_grad=True)
        (gradient,) = torch.autograd.grad((x @ weight).square().sum(), x, create_graph=True)
        gradient.square().sum().backward()

    [(account, total)] = counted(body, 1)
    assert account.recomputed == {}
    assert sum(account.flops.values()) == total > 0


def test_formats_are_counted_apart() -> None:
    def body() -> None:
        x = torch.randn(4, 8, device="cuda")
        x @ x.t()
        with torch.autocast("cuda", torch.bfloat16):
            x @ x.t()

    [(account, _)] = counted(body, 1)
    assert account.flops == {"fp32": 2 * 4 * 8 * 4, "bf16": 2 * 4 * 8 * 4}


def test_what_torch_has_no_formula_for() -> None:
    """Products by the table, a custom operator by what is stated or by a formula of the program's."""

    @torch.library.custom_op("kbtest::gram", mutates_args=())
    def gram(x: torch.Tensor) -> torch.Tensor:
        return x @ x.t()

    @torch.library.custom_op("kbtest::gram2", mutates_args=())
    def gram2(x: torch.Tensor) -> torch.Tensor:
        return x @ x.t()

    @register_flop_formula(torch.ops.kbtest.gram2)
    def formula(x: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return 1000 * x[0]

    def stated(inputs: Any, outputs: Any) -> Any:
        return kernbench.cost.StatedWork(64, flops=777, matrix=True, dtype="bf16")

    def body() -> None:
        x = torch.randn(4, 8, device="cuda")
        torch.mv(x, x[0])
        gram(x)
        gram2(x)

    with kernbench.cost.register("kbtest::gram", stated):
        [(account, _)] = counted(body, 1)
    assert account.flops == {"fp32": 2 * 4 * 8 + 4000, "bf16": 777}


def test_what_is_on_the_host_does_not_count() -> None:
    def body() -> None:
        torch.ones(2, device="cuda")
        torch.ones(4, 4) @ torch.ones(4, 4)

    [(account, total)] = counted(body, 1)
    assert account.flops == {}
    assert total > 0


@pytest.mark.parametrize(
    ("func", "known"),
    [
        (aten.mm.default, True),
        (aten.convolution_backward.default, True),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, True),
        (aten._scaled_dot_product_flash_attention_for_cpu_backward.default, True),
        (aten.add.Tensor, False),
        (print, False),
    ],
)
def test_formulas_that_torch_has(func: Any, known: bool) -> None:
    assert (formula_of(func) is not None) == known


def test_meta_arguments_of_convolutions() -> None:
    def body() -> None:
        convolution = nn.Conv2d(3, 5, 3, padding=1).cuda()
        convolution(torch.randn(2, 3, 6, 6, device="cuda", requires_grad=True)).sum().backward()
        nn.ConvTranspose1d(3, 5, 2).cuda()(torch.randn(1, 3, 7, device="cuda"))

    [(account, total)] = counted(body, 1)
    assert sum(account.flops.values()) == total > 0


class _OwnProduct(torch.autograd.Function):
    """A product whose gradients are written by hand."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        return gradients[0] @ weight.t(), x.t() @ gradients[0]


@pytest.mark.parametrize("reentrant", [True, False])
def test_own_functions_under_checkpointing_are_repeated(reentrant: bool) -> None:
    each = 2 * 32 * 64 * 64

    def body(rank: int) -> None:
        x, weight = (torch.ones(*shape, device="cuda", requires_grad=True) for shape in ((32, 64), (64, 64)))
        checkpoint(lambda x: _OwnProduct.apply(x, weight), x, use_reentrant=reentrant).sum().backward()
        _OwnProduct.apply(x, weight).sum().backward()

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(body, nprocs=1)
        account = ctx.simulation.hosts.of_rank[0].account
    assert sum(account.flops.values()) == 6 * each
    assert sum(account.recomputed.values()) == each
