"""What a rank computes with the layers, for any kind of rank: functions that return named tensors.

A name ends in how its parts belong together over the ranks: ``|same`` (all ranks have it), ``|0`` or ``|-1`` (concatenate
along that dimension).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from kernbench import tp
from tests.tp.ranks import fill, fixed, part

Tensors = dict[str, torch.Tensor]
FEATURES = 24  # divides by 1 2 3 4 8
OUTPUTS = 48


def joined(results: Sequence[Tensors]) -> Tensors:
    """The whole tensors from every rank's parts; what should be the same on all ranks must be, bit for bit."""
    whole = {}
    for name in results[0]:
        key, how = name.rsplit("|", 1)
        parts = [result[name] for result in results]
        if how == "same":
            for rank, other in enumerate(parts):
                assert torch.equal(other, parts[0]), f"{key}: rank {rank} differs from rank 0"
            whole[key] = parts[0]
        else:
            whole[key] = torch.cat(parts, int(how))
    return whole


def assert_matches(found: Tensors, expected: Tensors, tolerance: float = 2e-6) -> None:
    """Element by element, relative to the largest element of each tensor."""
    assert found.keys() == expected.keys()
    for name, value in found.items():
        scale = expected[name].abs().max().clamp(min=1e-6)
        torch.testing.assert_close(
            value.double() / scale,
            expected[name].double() / scale,
            rtol=0,
            atol=tolerance,
            msg=lambda m, n=name: f"{n}: {m}",
        )


def _weights(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    return fixed(OUTPUTS, FEATURES, seed=1, dtype=dtype), fixed(OUTPUTS, seed=2, dtype=dtype)


def column(gather_output: bool, bias: bool, activation: str | None, dtype: torch.dtype = torch.float32) -> Tensors:
    """A column-parallel layer: ``[6, 2, FEATURES] -> [6, 2, OUTPUTS]``."""
    layer = tp.ColumnParallelLinear(
        FEATURES, OUTPUTS, bias=bias, gather_output=gather_output, activation=activation, dtype=dtype
    )
    weight, whole_bias = _weights(dtype)
    fill(layer.weight, weight, 0)
    fill(layer.bias, whole_bias, 0)
    x = fixed(6, 2, FEATURES, dtype=dtype).requires_grad_()
    y, none = layer(x)
    assert none is None
    grad = fixed(6, 2, OUTPUTS, seed=3, dtype=dtype)
    y.backward(grad if gather_output else part(grad, -1))
    result = {
        f"y|{'same' if gather_output else -1}": y.detach(), "dx|same": x.grad, "dw|0": layer.weight.grad
    }  # fmt: skip
    return {**result, "db|0": layer.bias.grad} if bias else result


def column_reference(bias: bool, activation: str | None, dtype: torch.dtype = torch.float32) -> Tensors:
    """The same by torch alone, in double precision."""
    weight, whole_bias = (tensor.double().requires_grad_() for tensor in _weights(dtype))
    x = fixed(6, 2, FEATURES, dtype=dtype).double().requires_grad_()
    y = nn.functional.linear(x, weight, whole_bias if bias else None)
    if activation == "gelu":
        y = nn.functional.gelu(y)
    y.backward(fixed(6, 2, OUTPUTS, seed=3, dtype=dtype).double())
    result = {"y": y.detach(), "dx": x.grad, "dw": weight.grad}
    return {**result, "db": whole_bias.grad} if bias else result


def row(input_is_parallel: bool, bias: bool, dtype: torch.dtype = torch.float32) -> Tensors:
    """A row-parallel layer: ``[6, 2, OUTPUTS] -> [6, 2, FEATURES]``."""
    layer = tp.RowParallelLinear(OUTPUTS, FEATURES, bias=bias, input_is_parallel=input_is_parallel, dtype=dtype)
    fill(layer.weight, _weights(dtype)[0].t(), 1)
    fill(layer.bias, fixed(FEATURES, seed=2, dtype=dtype), None)
    x = fixed(6, 2, OUTPUTS, dtype=dtype)
    x = (part(x, -1) if input_is_parallel else x).requires_grad_()
    y, none = layer(x)
    assert none is None
    y.backward(fixed(6, 2, FEATURES, seed=3, dtype=dtype))
    result = {
        "y|same": y.detach(), f"dx|{-1 if input_is_parallel else 'same'}": x.grad, "dw|-1": layer.weight.grad
    }  # fmt: skip
    return {**result, "db|same": layer.bias.grad} if bias else result


def row_reference(bias: bool, dtype: torch.dtype = torch.float32) -> Tensors:
    """The same by torch alone, in double precision."""
    weight = _weights(dtype)[0].t().double().contiguous().requires_grad_()
    whole_bias = fixed(FEATURES, seed=2, dtype=dtype).double().requires_grad_()
    x = fixed(6, 2, OUTPUTS, dtype=dtype).double().requires_grad_()
    y = nn.functional.linear(x, weight, whole_bias if bias else None)
    y.backward(fixed(6, 2, FEATURES, seed=3, dtype=dtype).double())
    result = {"y": y.detach(), "dx": x.grad, "dw": weight.grad}
    return {**result, "db": whole_bias.grad} if bias else result


def mlp(sequence_parallel: bool) -> Tensors:
    """Column, gelu, row; with sequence parallelism on this rank's part of the sequence of 24."""
    config = tp.TransformerConfig(FEATURES, 4, sequence_parallel=sequence_parallel, init_method_std=0.2)
    layer = tp.ParallelMLP(config)
    x = fixed(24, 2, FEATURES)
    grad = fixed(24, 2, FEATURES, seed=3)
    if sequence_parallel:
        x, grad = part(x, 0), part(grad, 0)
    x.requires_grad_()
    y = layer(x)
    y.backward(grad)
    tp.finalize_model_grads([layer])
    where = "0" if sequence_parallel else "same"
    return {
        f"y|{where}": y.detach(), f"dx|{where}": x.grad, "dw1|0": layer.linear_fc1.weight.grad,
        "db1|0": layer.linear_fc1.bias.grad, "dw2|-1": layer.linear_fc2.weight.grad, "db2|same": layer.linear_fc2.bias.grad,
    }  # fmt: skip


def embedding() -> Tensors:
    """A vocabulary of OUTPUTS words: ``[5, 7] -> [5, 7, FEATURES]``."""
    layer = tp.VocabParallelEmbedding(OUTPUTS, FEATURES)
    fill(layer.weight, _weights(torch.float32)[0], 0)
    words = torch.randint(0, OUTPUTS, (5, 7), generator=torch.Generator().manual_seed(0))
    y = layer(words)
    y.backward(fixed(5, 7, FEATURES, seed=3))
    return {"y|same": y.detach(), "dw|0": layer.weight.grad}


def cross_entropy(smoothing: float) -> Tensors:
    """Losses ``[5, 7]`` of logits over OUTPUTS words."""
    logits = part(fixed(5, 7, OUTPUTS, scale=4.0), -1).requires_grad_()
    target = torch.randint(0, OUTPUTS, (5, 7), generator=torch.Generator().manual_seed(0))
    loss = tp.vocab_parallel_cross_entropy(logits, target, smoothing)
    loss.backward(fixed(5, 7, seed=3))
    return {"loss|same": loss.detach(), "dlogits|-1": logits.grad}


def gpt(sequence_parallel: bool, steps: int, groups: int = 8) -> Tensors:
    """Losses, last gradients and last weights of a small GPT trained by plain gradient descent."""
    config = tp.TransformerConfig(
        32, 8, num_layers=2, num_query_groups=groups, vocab_size=40, max_sequence_length=16,
        sequence_parallel=sequence_parallel, init_method_std=0.2,
    )  # fmt: skip
    model = tp.GPTModel(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    source = torch.Generator().manual_seed(0)
    losses = []
    for _ in range(steps):
        words = torch.randint(0, 40, (2, 17), generator=source)
        optimizer.zero_grad()
        loss = model(words[:, :-1], words[:, 1:]).mean()
        loss.backward()
        tp.finalize_model_grads([model])
        optimizer.step()
        losses.append(loss.detach())
    result = {"losses|same": torch.stack(losses)}
    for name, param in model.named_parameters():
        dim = param.partition_dim if getattr(param, "tensor_model_parallel", False) else "same"
        result[f"{name}.grad|{dim}"] = param.grad
        result[f"{name}|{dim}"] = param.detach()
    return result
