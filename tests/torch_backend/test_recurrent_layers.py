"""Recurrent layers on simulated GPUs: cuDNN's one operator, with the values and gradients that torch has on the CPU."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

import kernbench

KINDS = ("LSTM", "GRU", "RNN")
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers, both ways": {"num_layers": 2, "bidirectional": True},
    "batch first": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "no bias": {"bias": False},
}
OF_ONE_KIND = [
    ("RNN", {"nonlinearity": "relu", "num_layers": 2}),
    ("LSTM", {"proj_size": 3, "num_layers": 2, "bidirectional": True}),
    ("LSTM", {"proj_size": 3, "bias": False}),
]


def on_one_gpu(worker, **options) -> Any:
    with kernbench.simulate("dgx_h100", **options) as ctx:
        found: list[Any] = []
        ctx.multiprocessing.spawn(lambda rank: found.append(worker()), nprocs=1)
        return found[0], ctx


def results(made: Any) -> list[Tensor]:
    out, states = made
    flat = out.data if isinstance(out, PackedSequence) else out
    return [flat, *(states if isinstance(states, tuple) else (states,))]


def computed(layer: nn.Module, x: Tensor, lengths: Tensor | None) -> list[Tensor]:
    """Outputs, last states, and gradients of a sum of them of which each element has its own weight."""
    x = x.clone().requires_grad_()
    given = x if lengths is None else pack_padded_sequence(x, lengths, batch_first=layer.batch_first)
    made = results(layer(given))
    sum((each * torch.arange(each.numel(), device=each.device).view_as(each).cos()).sum() for each in made).backward()
    return [each.detach().cpu() for each in (*made, x.grad, *(weight.grad for weight in layer.parameters()))]


@pytest.mark.parametrize("packed", [False, True], ids=["padded", "packed"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [*((kind, options) for kind in KINDS for options in OPTIONS.values()), *OF_ONE_KIND],
)
def test_values_and_gradients_are_the_cpus(kind, options, packed):
    torch.manual_seed(0)
    layer = getattr(nn, kind)(5, 8, dtype=torch.float64, **options)
    x = torch.randn((3, 6, 5) if layer.batch_first else (6, 3, 5), dtype=torch.float64)
    lengths = torch.tensor([6, 4, 1]) if packed else None
    expected = computed(layer, x, lengths)
    layer.zero_grad()
    found, ctx = on_one_gpu(lambda: computed(layer.cuda(), x.cuda(), lengths))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    names = [op.name for op in ctx.engine.op_log.operations]
    assert names.count("_cudnn_rnn.default") == names.count("_cudnn_rnn_backward.default") == 1


def test_what_is_dropped_between_layers_is_dropped_in_the_gradient():
    def worker():
        layer = nn.GRU(4, 4, 2, dropout=0.5, dtype=torch.float64).cuda()
        x = torch.randn(3, 2, 4, dtype=torch.float64, device="cuda", requires_grad=True)
        state = torch.cuda.get_rng_state()

        def again(given):
            torch.cuda.set_rng_state(state)
            return layer(given)[0]

        assert not torch.equal(layer(x)[0], layer(x)[0])
        return torch.autograd.gradcheck(again, x)

    assert on_one_gpu(worker)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_without_data_times_and_memory_are_the_same(kind):
    def worker():
        layer = getattr(nn, kind)(64, 128, 2, bidirectional=True).cuda()
        x = torch.randn(20, 16, 64, device="cuda", requires_grad=True)
        layer(x)[0].sum().backward()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()

    (with_data, first), (without, second) = on_one_gpu(worker), on_one_gpu(worker, enable_data=False)
    assert with_data == without
    assert first.now() == second.now()


def test_steps_of_packed_sequences_wait_for_one_another():
    """As many rows in more steps take longer."""

    def worker():
        layer, times = nn.LSTM(32, 512).cuda(), []
        for lengths in ([40] * 16, [500] + [10] * 14):
            rows = torch.randn(max(lengths), len(lengths), 32, device="cuda")
            packed = pack_padded_sequence(rows, torch.tensor(lengths))
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            marks[0].record()
            layer(packed)
            marks[1].record()
            torch.cuda.synchronize()
            times.append(marks[0].elapsed_time(marks[1]))
        return times

    (short, long), _ = on_one_gpu(worker)
    assert 8 < long / short < 16  # 500 steps beside 40


def test_a_layer_that_is_evaluated_has_no_gradient():
    def worker():
        layer = nn.LSTM(4, 4).cuda().eval()
        with pytest.raises(RuntimeError, match="cudnn RNN backward can only be called in training mode"):
            layer(torch.randn(3, 2, 4, device="cuda"))[0].sum().backward()
        return True

    assert on_one_gpu(worker)[0]


def test_a_gradient_has_none_of_its_own():
    def worker():
        layer = nn.GRU(4, 4).cuda()
        x = torch.randn(3, 2, 4, device="cuda", requires_grad=True)
        (grad,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
        with pytest.raises(RuntimeError, match="_cudnn_rnn_backward"):
            grad.sum().backward()
        with torch.backends.cudnn.flags(enabled=False):  # composed of operators that have
            (grad,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
            grad.sum().backward()
        return x.grad is not None

    assert on_one_gpu(worker)[0]


def test_autocast_computes_in_16_bits():
    def worker():
        layer, x = nn.LSTM(4, 4).cuda(), torch.randn(3, 2, 4, device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            out, (state, cell) = layer(x)
        out.float().sum().backward()
        return out.dtype, state.dtype, cell.dtype, layer.weight_hh_l0.grad.dtype

    assert on_one_gpu(worker)[0] == (torch.float16, torch.float16, torch.float16, torch.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_on_several_devices_are_refused(kind):
    def worker():
        layer, x = getattr(nn, kind)(4, 4), torch.randn(3, 2, 4)
        with pytest.raises(RuntimeError, match="found input tensor at cuda:0 and parameter tensor at cpu"):
            layer(x.cuda())
        with pytest.raises(RuntimeError, match="found input tensor at cpu and parameter tensor at cuda:0"):
            layer.cuda()(x)
        state = torch.zeros(1, 2, 4)
        with pytest.raises(RuntimeError, match="found input tensor at cuda:0 and hidden tensor at cpu"):
            layer(x.cuda(), (state, state) if kind == "LSTM" else state)
        return True

    assert on_one_gpu(worker)[0]


def test_functional_transforms_compose_it_of_operators():
    def worker():
        layer, x = nn.GRU(4, 4).cuda(), torch.randn(3, 2, 4, device="cuda")
        weights = dict(layer.named_parameters())
        found = torch.func.grad(lambda given: torch.func.functional_call(layer, given, (x,))[0].sum())(weights)
        layer(x)[0].sum().backward()
        for name, weight in weights.items():
            torch.testing.assert_close(found[name].cpu(), weight.grad.cpu())
        return True

    assert on_one_gpu(worker)[0]


def test_without_cudnn_steps_wait_for_one_another_too():
    """The CPU has one operator for a layer of an LSTM, which is no quicker for that."""

    def worker():
        layer, x = nn.LSTM(64, 512).cuda(), torch.randn(50, 8, 64, device="cuda", requires_grad=True)
        times = []
        for enabled in (True, False):
            with torch.backends.cudnn.flags(enabled=enabled):
                torch.cuda.synchronize()
                began = time.perf_counter()
                layer(x)[0].sum().backward()
                torch.cuda.synchronize()
                times.append(time.perf_counter() - began)
        return times

    (with_it, without), _ = on_one_gpu(worker)
    assert without == pytest.approx(with_it, rel=0.25)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("enable_data", [True, False])
def test_gradients_of_weights_are_on_the_gpu(kind, enable_data):
    """The operator gives them in a list within a tuple."""

    def worker():
        layer = getattr(nn, kind)(5, 8).cuda()
        layer(torch.randn(6, 3, 5, device="cuda"))[0].sum().backward()
        return {str(weight.grad.device) for weight in layer.parameters()}

    assert on_one_gpu(worker, enable_data=enable_data)[0] == {"cuda:0"}
