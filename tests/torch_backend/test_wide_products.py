"""Values of 16-bit products: in 32 bits and rounded once where the CPU has no engine for them."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import kernbench
from kernbench.torch_backend.gpu.kernels import wide_products


@pytest.fixture(params=(torch.bfloat16, torch.float16), ids=("bf16", "fp16"))
def format(request, monkeypatch):
    monkeypatch.setattr(wide_products, "slow_formats", lambda: frozenset((torch.bfloat16, torch.float16)))
    return request.param


def _operands(format):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shape, generator=generator).to(format)
        for shape in ((40, 300), (300, 50), (50,), (6, 40, 300), (6, 300, 50), (2, 8, 12, 12), (4, 8, 3, 3))
    ]


def _products(given):
    a, b, bias, batch_a, batch_b, image, weight = given
    return {
        "mm": lambda: a @ b,
        "addmm": lambda: torch.addmm(bias, a, b),
        "bmm": lambda: batch_a @ batch_b,
        "baddbmm": lambda: torch.baddbmm(bias, batch_a, batch_b),
        "linear": lambda: F.linear(a, b.t(), bias),
        "convolution": lambda: F.conv2d(image, weight),
    }


def _on_a_gpu(given, exact):
    found = {}

    def worker(rank):
        there = [each.cuda() for each in given]
        found.update({name: compute().cpu() for name, compute in _products(there).items()})

    with kernbench.simulate("dgx_h100", exact_dtype=exact) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    return found


def test_products_on_a_gpu_are_those_of_32_bits_rounded_once(format):
    given = _operands(format)
    wanted = _products([each.float() for each in given])
    for name, result in _on_a_gpu(given, exact=False).items():
        assert result.dtype == format
        assert torch.equal(result, wanted[name]().to(format)), name


def test_exact_dtype_keeps_the_cpus_own(format):
    given = _operands(format)
    for name, result in _on_a_gpu(given, exact=True).items():
        assert torch.equal(result, _products(given)[name]()), name


def test_a_gradient_of_a_wide_product_has_the_format_of_its_operand(format):
    a, b, *_, image, weight = _operands(format)
    gradients = []

    def worker(rank):
        there = [each.cuda().requires_grad_() for each in (a, b, image, weight)]
        ((there[0] @ there[1]).sum() + F.conv2d(there[2], there[3]).sum()).backward()
        gradients.extend(each.grad.cpu() for each in there)

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    assert all(each.dtype == format for each in gradients)
    row = b.float().sum(1).to(format)
    assert torch.allclose(gradients[0], row.expand_as(a), rtol=2e-2, atol=2e-2)


def test_tensors_of_the_context_and_of_the_host(format):
    a, b, *_ = _operands(format)
    wide = (a.float() @ b.float()).to(format)

    def worker(rank, torch):
        x, y = torch.from_numpy(a.float().numpy()).to(a.dtype), torch.from_numpy(b.float().numpy()).to(b.dtype)
        assert ((x @ y).float().numpy() == wide.float().numpy()).all()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=1)

    def on_host(rank):
        torch.ones(1, device="cuda")
        assert torch.equal(a @ b, own)

    own = a @ b
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(on_host, nprocs=1)


def test_a_format_is_slow_where_the_cpu_has_no_engine_for_it(monkeypatch):
    wide_products.slow_formats.cache_clear()
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    assert wide_products.slow_formats() == {torch.float16}
    wide_products.slow_formats.cache_clear()
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert wide_products.slow_formats() == {torch.float16, torch.bfloat16}
    wide_products.slow_formats.cache_clear()


def _sums(given):
    a, x, factors = given
    normed = x.clone().requires_grad_()
    weight, bias = (torch.ones_like(x[0], requires_grad=True) for _ in range(2))
    F.layer_norm(normed, x.shape[1:], weight, bias).backward(a.repeat(6, 1))
    table = torch.zeros_like(x[:3], requires_grad=True)
    F.embedding(torch.arange(240, device=x.device) % 3, table).backward(x)
    bags = torch.zeros_like(x[:3], requires_grad=True)
    F.embedding_bag(torch.arange(240, device=x.device).view(2, 120) % 3, bags, mode="sum").backward(x[:2])
    rows = x.repeat(8, 1) - 40  # the sum of their losses is more than fp16 has
    labels = torch.arange(len(rows), device=x.device) % rows.shape[1]
    images = rows.flatten()[: 8 * 3 * 100].view(8, 3, 10, 10) - 80
    return {
        "layer_norm": lambda: torch.cat([normed.grad, weight.grad[None], bias.grad[None]]),
        "embedding": lambda: table.grad,
        "embedding_bag": lambda: bags.grad,
        "nll_loss": lambda: F.nll_loss(rows, labels),
        "nll_loss of images": lambda: F.nll_loss(images, labels.view(8, 240)[:, :100].view(8, 10, 10) % 3),
        "prod": lambda: factors.prod(0),
    }


def test_sums_on_a_gpu_are_kept_in_32_bits(format):
    """The CPU's own gradients of a norm's weights are 8 to 16 roundings off, its products of a column 40 to 80."""
    a, _, _, rows, _, _, _ = _operands(format)
    x = rows.flatten(0, 1)  # 240 of them
    given, found = [a, x, (1 + x.float() / 8).to(format)], {}

    def worker(rank):
        found.update({name: compute().cpu() for name, compute in _sums([each.cuda() for each in given]).items()})

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    for name, compute in _sums([each.double() for each in given]).items():
        wanted = compute()
        error = (found[name].double() - wanted).abs().max() / wanted.abs().max()
        assert found[name].dtype == format
        assert error < 2 * torch.finfo(format).eps, name


def test_products_whose_result_has_a_format_of_its_own(format):
    a, b, *_ = _operands(format)
    more = torch.linspace(-3, 3, 50)
    wanted = a.double() @ b.double()
    with kernbench.simulated_gpu("dgx_h100") as ctx:
        a, b, more = a.cuda(), b.cuda(), more.cuda()
        room = torch.empty(40, 50, device="cuda")
        found = {
            "mm": torch.mm(a, b, out_dtype=torch.float32),
            "bmm": torch.bmm(a[None], b[None], out_dtype=torch.float32)[0],
            "addmm": torch.addmm(more, a, b, out_dtype=torch.float32) - more,
            "baddbmm": torch.baddbmm(more, a[None], b[None], beta=0, out_dtype=torch.float32)[0],
            "out": torch.mm(a, b, out_dtype=torch.float32, out=room),
        }
        assert found["out"] is room
        for name, result in found.items():
            assert result.is_cuda
            assert result.dtype is torch.float32
            torch.testing.assert_close(result.cpu().double(), wanted, rtol=1e-5, atol=1e-4, msg=name)
        assert torch.mm(a, b, out_dtype=format).equal(a @ b)
        with pytest.raises(RuntimeError, match="out_dtype must be"):
            torch.mm(a, b, out_dtype=torch.float64)
        names = [op.name for op in ctx.engine.op_log.operations]
    assert {"mm.dtype", "bmm.dtype", "addmm.dtype", "baddbmm.dtype", "mm.dtype_out"} <= set(names)
    with pytest.raises(NotImplementedError):
        torch.mm(torch.ones(2, 2).to(format), torch.ones(2, 2).to(format), out_dtype=torch.float32)
