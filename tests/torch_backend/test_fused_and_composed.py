"""What a GPU composes where a CPU has one kernel, and the other way round: values, and what is recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kernbench
from kernbench.trace import summary


def recorded(worker: Callable[[], None], *, data: bool = True) -> tuple[Counter[str], tuple[str, ...]]:
    """How often each operation took time, and what the summary says is not modelled."""
    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(lambda rank: worker(), nprocs=1)
        names = Counter(str(op.name).partition(".")[0] for op in ctx.engine.op_log.operations if op.duration)
        return names, summary(ctx).unmodelled


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_an_encoder_s_fast_path_is_its_products_attention_and_norms(norm_first: bool, padded: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, "gelu", batch_first=True, norm_first=norm_first).eval()
    x, mask = torch.randn(2, 8, 64), torch.zeros(2, 8, dtype=torch.bool)
    mask[1, 5:] = padded
    given = mask if padded else None
    with torch.no_grad():
        wanted = layer(x, src_key_padding_mask=given)
    found: list[Tensor] = []

    def worker() -> None:
        layer.cuda()
        with torch.no_grad():
            found.append(layer(x.cuda(), src_key_padding_mask=None if given is None else given.cuda()).cpu())

    names, unmodelled = recorded(worker)
    torch.testing.assert_close(found[0][~mask], wanted[~mask])
    assert unmodelled == ()
    assert "_transformer_encoder_layer_fwd" not in names
    assert names["native_layer_norm"] == 2
    products = sum(names[each] for each in ("addmm", "mm", "bmm", "_addmm_activation"))
    assert products == (6 if padded else 4)
    assert any("attention" in name for name in names) is not padded


def test_attention_of_another_sequence_has_its_weights_averaged() -> None:
    torch.manual_seed(0)
    layer, x, y = nn.MultiheadAttention(32, 4, batch_first=True).eval(), torch.randn(2, 8, 32), torch.randn(2, 6, 32)
    with torch.no_grad():
        wanted = [layer(x, x, x), layer(x, y, y)]
    found: list[Any] = []

    def worker() -> None:
        layer.cuda()
        with torch.no_grad():
            found.extend([layer(x.cuda(), *2 * [each.cuda()]) for each in (x, y)])
            found[:] = [tuple(each.cpu() for each in pair) for pair in found]

    recorded(worker)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell])
def test_a_cell_is_two_products_and_one_kernel(kind: Any, bias: bool) -> None:
    torch.manual_seed(0)
    cell = kind(8, 16, bias=bias)
    given = [torch.randn(3, 8), torch.randn(3, 16), torch.randn(3, 16)]

    def gradients(device: str) -> list[Tensor]:
        x, h, c = (each.to(device).requires_grad_() for each in given)
        state = (h, c) if kind is nn.LSTMCell else h
        for _ in range(2):
            state = cell(x, state)
        parts = state if isinstance(state, tuple) else (state,)
        loss = sum(part.sin().sum() for part in parts)
        found = torch.autograd.grad(loss, [x, h, *cell.parameters()])
        return [each.cpu() for each in (*parts, *found)]

    wanted = [each.detach() for each in gradients("cpu")]
    found: list[Tensor] = []

    def worker() -> None:
        cell.cuda()
        found.extend(each.detach() for each in gradients("cuda"))

    names, _ = recorded(worker)
    torch.testing.assert_close(found, wanted)
    one = "_thnn_fused_gru_cell" if kind is nn.GRUCell else "_thnn_fused_lstm_cell"
    assert names[one] == 2
    assert names["sigmoid"] == names["sigmoid_"] == names["tanh"] == 0
    assert sum(count for name, count in names.items() if name.startswith(one + "_backward")) == 2


def test_a_cell_without_data_and_what_torch_refuses() -> None:
    def worker() -> None:
        cell = nn.GRUCell(256, 512, device="cuda")
        out = cell(torch.empty(64, 256, device="cuda"), torch.empty(64, 512, device="cuda"))
        assert out.shape == (64, 512)
        out.sum().backward()
        with pytest.raises(RuntimeError):
            cell(torch.empty(64, 255, device="cuda"), torch.empty(64, 512, device="cuda"))

    names, _ = recorded(worker, data=False)
    assert names["_thnn_fused_gru_cell"] == 1


def test_an_operator_of_torch_of_which_only_bytes_are_known_is_named() -> None:
    def worker() -> None:
        x = torch.ones(1, 1 << 16, device="cuda")
        for _ in range(3):
            torch.renorm(x, 2, 0, 1.0)
        torch.cuda.synchronize()

    _, unmodelled = recorded(worker)
    assert len(unmodelled) == 1, unmodelled
    assert "renorm" in unmodelled[0]
    assert "counted by its bytes (3 calls" in unmodelled[0]


def test_a_norm_that_is_not_trained_takes_less_time() -> None:
    def seconds(trained: bool) -> float:
        def worker() -> None:
            model = nn.BatchNorm2d(64, device="cuda").train(trained)
            with torch.no_grad():
                model(torch.empty(64, 64, 112, 112, device="cuda"))

        with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
            ctx.multiprocessing.spawn(lambda rank: worker(), nprocs=1)
            return sum(op.duration for op in ctx.engine.op_log.operations if "batch_norm" in str(op.name))

    assert 0 < seconds(False) < 0.6 * seconds(True)


def test_a_convolution_s_workspace_is_part_of_the_peak() -> None:
    """An H100 with cuDNN 9 has 187.9 MiB for this one, and gives it back; large blocks are not split to the byte."""
    peaks: list[float] = []

    def worker() -> None:
        layer = nn.Conv1d(128, 256, 3, padding=1, bias=False, device="cuda")
        x = torch.empty(8, 128, 16000, device="cuda")
        with torch.no_grad():
            layer(x)
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            y = layer(x)
        peaks.append((torch.cuda.max_memory_allocated() - before - y.nbytes) / 2**20)

    recorded(worker, data=False)
    assert peaks == [pytest.approx(187.9, abs=2)]


@pytest.mark.parametrize("data", [True, False])
def test_autocast_of_a_gpu_leaves_pools_of_volumes_in_16_bits(data: bool) -> None:
    formats = []

    def worker() -> None:
        x = torch.ones(2, 3, 4, 8, 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        with torch.autocast("cuda", torch.bfloat16):
            for pool in (nn.MaxPool3d(2), nn.AvgPool3d(2), nn.ReplicationPad3d(1), nn.AdaptiveAvgPool3d(2)):
                y = pool(x)
                formats.append(y.dtype)
                y.sum().backward()

    names, _ = recorded(worker, data=data)
    assert formats == 4 * [torch.bfloat16]
    assert names["max_pool3d_with_indices"] == 1
