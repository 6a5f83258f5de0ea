"""What is known about an operation before its arguments are."""

from __future__ import annotations

import pytest
import torch

from kernbench.torch_backend.operations.operators import COMPUTE, TRANSFER, VIEW, TorchOperator

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("func", "name", "kind"),
    [
        (aten.add.Tensor, "add", COMPUTE),
        (aten.add_.Tensor, "add_", COMPUTE),
        (aten.mm.default, "mm", COMPUTE),
        (aten.view.default, "view", VIEW),
        (aten._to_copy.default, "_to_copy", TRANSFER),
        (aten.empty.memory_format, "empty", COMPUTE),
    ],
)
def test_names_and_kinds(func, name, kind):
    operation = TorchOperator(func)
    assert (operation.name, operation.kind, operation.title) == (name, kind, func.__name__)
    assert operation.allocates == (name == "empty")


def test_what_computes_an_overload():
    """Contract: ``OpOverload._op`` does what calling the overload does, with positional and keyword arguments."""
    x, y = torch.arange(4.0), torch.arange(4.0) + 1
    operation = TorchOperator(aten.add.Tensor)
    assert torch.equal(operation.call(x, y, alpha=2), torch.tensor([2.0, 5.0, 8.0, 11.0]))
    assert operation.call(x, y).tolist() == aten.add.Tensor(x, y).tolist()


def test_an_attention_says_whether_it_is_causal():
    operation = TorchOperator(aten._scaled_dot_product_flash_attention_for_cpu.default)
    names = [argument.name for argument in aten._scaled_dot_product_flash_attention_for_cpu.default._schema.arguments]
    before = [None] * names.index("is_causal")
    assert operation.is_flagged((), {"is_causal": True})
    assert operation.is_flagged((*before, True), None)
    assert not operation.is_flagged(tuple(before), {})
    assert not TorchOperator(aten.mm.default).is_flagged((), {"is_causal": True})
