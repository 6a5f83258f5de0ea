"""Operators that are one kernel on a GPU: what is recorded, and that the values are those of what they stand for."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import kernbench


def recorded(body):
    """What ``body()`` gives in a rank, and the operations that it enqueues."""
    found = []

    def worker(rank):
        found.extend(each.cpu() for each in body())

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        names = [op.name.partition(".")[0] for op in ctx.engine.op_log.operations]
    return found, names


@pytest.mark.parametrize("format", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("shape", "normalized"), [((4, 7, 32), (32,)), ((6, 5, 8), (5, 8)), ((16,), (16,))])
@pytest.mark.parametrize("weighted", [True, False])
def test_an_rms_norm_is_one_kernel_and_its_gradient_another(format, shape, normalized, weighted):
    generator = torch.Generator().manual_seed(1)
    x, g = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    w = torch.randn(normalized, generator=generator, dtype=torch.float64)

    def gradients(device, dtype):
        leaf = x.to(dtype).to(device).requires_grad_()
        weight = w.to(dtype).to(device).requires_grad_() if weighted else None
        y = F.rms_norm(leaf, normalized, weight, 1e-5)
        wanted = [leaf, weight] if weighted else [leaf]
        return [y.detach(), *torch.autograd.grad(y, wanted, g.to(dtype).to(device))]

    exact = gradients("cpu", torch.float64)
    found, names = recorded(lambda: gradients("cuda", format))
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float64: 1e-12}[format]
    for mine, true in zip(found, exact, strict=True):
        assert mine.dtype == format
        assert torch.allclose(mine.double(), true, rtol=tolerance, atol=tolerance)
    assert names.count("_fused_rms_norm") == names.count("_fused_rms_norm_backward") == 1
    assert not {"pow", "mean", "rsqrt", "mul"} & set(names)


def test_formats_that_differ_are_composed_of_others_as_on_a_gpu():
    x = torch.ones(4, 8, dtype=torch.bfloat16)
    found, names = recorded(lambda: [F.rms_norm(x.cuda(), (8,), torch.ones(8, device="cuda"))])
    assert "rsqrt" in names
    assert "_fused_rms_norm" not in names
    assert torch.equal(found[0].float(), torch.ones(4, 8))


def test_a_host_tensor_is_the_hosts():
    def body():
        torch.ones(1, device="cuda")
        return [F.rms_norm(torch.ones(4, 8), (8,)), F.dropout(torch.ones(4), 0.5).sign().abs()]

    _, names = recorded(body)
    assert not {"_fused_rms_norm", "native_dropout"} & set(names)


def test_dropout_is_one_kernel_that_keeps_its_mask():
    def body():
        torch.manual_seed(0)
        x = torch.ones(1000, device="cuda", requires_grad=True)
        y = torch.nn.Dropout(0.25)(x)
        y.sum().backward()
        return [y.detach(), x.grad, F.dropout(x.detach(), 0.5, training=False)]

    (dropped, gradient, kept), names = recorded(body)
    assert sorted(set(dropped.tolist())) == [0.0, pytest.approx(4 / 3)]
    assert 650 < int((dropped > 0).sum()) < 850
    assert torch.equal(gradient, dropped)
    assert torch.equal(kept, torch.ones(1000))
    assert names.count("native_dropout") == names.count("native_dropout_backward") == 1
    assert "bernoulli_" not in names


def test_the_gradient_of_silu_is_one_kernel():
    def body():
        x = torch.linspace(-3, 3, 7, device="cuda").requires_grad_()
        F.silu(x).sum().backward()
        return [x.grad]

    (gradient,), names = recorded(body)
    s = torch.linspace(-3, 3, 7).sigmoid()
    assert torch.allclose(gradient, s * (1 + torch.linspace(-3, 3, 7) * (1 - s)))
    assert names.count("silu_backward") == 1
    assert "mul" not in names


def test_autocast_computes_in_32_bits_what_a_gpu_does():
    kinds = {}

    def body():
        x = torch.linspace(-1, 1, 64, device="cuda").reshape(4, 16).requires_grad_()
        layer = torch.nn.Linear(16, 8, device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = layer(x)
            results = {
                "linear": y,
                "layer_norm": F.layer_norm(y, (8,)),
                "softmax": y.softmax(-1),
                "cross_entropy": F.cross_entropy(y, torch.zeros(4, dtype=torch.long, device="cuda")),
                "pow": y**2,
                "sum": y.sum(),
                "gelu": F.gelu(y),
            }
        kinds.update({name: each.dtype for name, each in results.items()})
        results["cross_entropy"].backward()
        return [results["softmax"].detach(), torch.softmax(y.detach().float(), -1), x.grad]

    (mine, true, gradient), names = recorded(body)
    narrow = {name for name, dtype in kinds.items() if dtype is torch.bfloat16}
    assert narrow == {"linear", "gelu"}
    assert torch.equal(mine, true)
    assert gradient.abs().sum() > 0
    assert "_softmax" in names


def test_the_hosts_autocast_is_the_hosts():
    def body():
        torch.ones(1, device="cuda")
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = torch.ones(4, 8, dtype=torch.bfloat16)
            return [F.layer_norm(y, (8,)), y.softmax(-1)]

    found, _ = recorded(body)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = torch.ones(4, 8, dtype=torch.bfloat16)
        wanted = [F.layer_norm(y, (8,)), y.softmax(-1)]
    assert [each.dtype for each in found] == [each.dtype for each in wanted]


def test_a_copy_that_makes_columns_of_rows_is_slower_than_one_that_moves_rows():
    def body():
        x = torch.zeros(4096, 8, 1024, device="cuda")
        x.clone()
        x.transpose(0, 1).contiguous()  # rows of 1024 stay rows
        x.transpose(1, 2).contiguous()
        x.transpose(1, 2).clone()  # keeps the strides
        x.transpose(1, 2).to(torch.bfloat16, memory_format=torch.contiguous_format)
        x.mT.expand(4096, 1024, 8).to(torch.float64)
        return []

    def worker(rank):
        body()

    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        plain, rows, columns, kept, cast, _ = [op for op in ctx.engine.op_log.operations if op.nbytes][1:]
    assert rows.duration == kept.duration == plain.duration
    assert columns.duration / plain.duration == pytest.approx(1 / 0.41, rel=0.05)
    assert cast.duration > 0.7 * columns.duration


def test_without_data_the_same_kernels_take_the_same_time():
    def worker(rank):
        x = torch.ones(64, 512, device="cuda", requires_grad=True)
        w = torch.ones(512, device="cuda", requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = F.dropout(F.silu(F.rms_norm(x, (512,), w)), 0.5)
            loss = F.cross_entropy(
                F.linear(F.layer_norm(y, (512,)), x), torch.zeros(64, dtype=torch.long, device="cuda")
            )
        loss.backward()

    logs = []
    for data in (True, False):
        with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=1)
            logs.append([(op.name, op.nbytes, op.enqueue, op.end) for op in ctx.engine.op_log.operations])
    assert logs[0] == logs[1]
    assert {"_fused_rms_norm.default", "native_dropout.default", "silu_backward.default"} <= {op[0] for op in logs[0]}
