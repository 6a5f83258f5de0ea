"""Functions that torch traces as they run (``make_fx``, ``torch.func.linearize``): the graph and the time are those of data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import kernbench


def _product(x: Tensor) -> Tensor:
    return (x @ x).sin() + torch.ones(x.size(0), device="cuda")


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("width", [4, 256])
def test_a_linearised_function_is_the_forward_derivative(width: int, data: bool) -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=data):
        x, along = torch.randn(width, width, device="cuda"), torch.randn(width, width, device="cuda")
        result, linear = torch.func.linearize(_product, x)
        expected, tangent = torch.func.jvp(_product, (x,), (along,))
        assert (result.shape, result.device) == (expected.shape, expected.device)
        found = linear(along)
        assert (found.shape, found.device) == (tangent.shape, tangent.device)
        if data:
            torch.testing.assert_close(found, tangent)


def _traced(function: Any, data: bool) -> tuple[str, list[tuple[str, float, float]]]:
    with kernbench.simulated_gpu("dgx_h100", enable_data=data) as ctx:
        x = torch.ones(256, 256, device="cuda")
        graph = make_fx(function)(x)
        assert graph(x).device == x.device
        return graph.code, [(each.name, each.start, each.end) for each in ctx.engine.op_log.operations]


@pytest.mark.parametrize("transform", [lambda f: f, torch.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())])
def test_a_traced_function_is_carried_out_once(transform: Any) -> None:
    function = transform(lambda x: (x[None] @ x[:, None]).sin() if transform is torch.vmap else _product(x))
    code, operations = _traced(function, data=True)
    assert _traced(function, data=False) == (code, operations)
    assert [name for name, *_ in operations].count("sin.default") == 2  # traced, and run again


@pytest.mark.parametrize("data", [True, False])
def test_a_traced_function_keeps_its_moves(data: bool) -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=data) as ctx:
        there, back = make_fx(lambda x: x.cuda() * 2)(torch.ones(3)), make_fx(lambda x: x.cpu() * 2)
        assert there(torch.ones(3)).device == torch.device("cuda", 0)
        assert back(torch.ones(3, device="cuda"))(torch.ones(3, device="cuda")).device == torch.device("cpu")
        copies = [each.name for each in ctx.engine.op_log.operations if " to " in each.name]
        assert copies == ["host to device"] * 2 + ["device to host"] * 2


def _placed(x: Tensor) -> Tensor:
    """It asks its argument where it is, in each of torch's ways."""
    assert (x.is_cuda, x.is_cpu, x.get_device()) == (True, False, x.device.index)
    return (torch.arange(x.shape[0], device=x.device)[:, None] * x).sum()


@pytest.mark.parametrize("data", [True, False], ids=["data", "no-data"])
@pytest.mark.parametrize(
    "transform", [torch.func.grad, lambda f: lambda x: torch.vmap(f)(x[None])], ids=["grad", "vmap"]
)
def test_a_compiled_transform_knows_where_its_arguments_are(transform: Any, data: bool) -> None:
    with kernbench.simulated_gpu("dgx_h100", enable_data=data):
        x = torch.ones(3, 2, device="cuda")
        found = torch.compile(transform(_placed), fullgraph=True, backend="aot_eager")(x)
        assert found.device == x.device
        if data:
            torch.testing.assert_close(found, transform(_placed)(x))
