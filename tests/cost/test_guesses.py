"""Operators that are counted by their bytes: none of torch's is, without being named, or having been looked at."""

from __future__ import annotations

import torch

from kernbench.cost.op_costs import OpCosts
from kernbench.cost.operator import Kind, Model
from kernbench.cost.operators import OPERATORS, find
from kernbench.topology import load_device

ELEMENTWISE = frozenset(
    """__irshift__ _add_relu _amp_update_scale _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo
    _fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_channel_affine_backward
    _fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_tensor_affine_backward _prelu_kernel
    _prelu_kernel_backward _transform_bias_rescale_qkv abs addr binary_cross_entropy binary_cross_entropy_backward
    binary_cross_entropy_with_logits copysign elu_backward eq fake_quantize_per_channel_affine_cachemask
    fake_quantize_per_tensor_affine_cachemask floor_divide gcd ge glu glu_backward glu_backward_jvp glu_jvp gt
    hardshrink_backward hardsigmoid_backward hardswish hardswish_backward hardtanh_backward heaviside huber_loss
    huber_loss_backward lcm le leaky_relu_backward linalg_cross log_sigmoid_backward log_sigmoid_forward lt masked_fill
    masked_scatter_backward mish mish_backward mse_loss mse_loss_backward multinomial ne polar quantize_per_channel
    quantize_per_tensor rrelu_with_noise rrelu_with_noise_backward rsub smooth_l1_loss smooth_l1_loss_backward
    soft_margin_loss soft_margin_loss_backward softplus_backward softshrink_backward threshold threshold_backward
    xlogy""".split()  # noqa: SIM905
)
"""What is done element by element although torch does not tag it so, as the sources of its CUDA kernels have it."""


def untagged() -> set[str]:
    """Operators with a kernel that are priced as elementwise ones, and that torch does not say are."""
    found = set()
    for name in torch._C._dispatch_get_all_op_names():
        has = torch._C._dispatch_has_kernel_for_dispatch_key
        if not name.startswith("aten::") or not (has(name, "CPU") or has(name, "CompositeExplicitAutograd")):
            continue
        base, _, overload = name.removeprefix("aten::").partition(".")
        row = find(name)
        if "out" in overload or base.startswith("_foreach_") or row is None or row.guessed:
            continue
        if row.kind is Kind.COMPUTE and row.model is Model.TRAFFIC and row.pace == "pointwise":
            func = getattr(getattr(torch.ops.aten, base), overload or "default")
            if torch.Tag.pointwise not in func.tags:
                found.add(base.rstrip("_") if not base.endswith("__") else base)
    return found


def test_what_is_priced_as_elementwise_is_elementwise() -> None:
    """An operator that is a composition, a sort or a loop of its own must have a model, or be a guess that is named."""
    assert untagged() - ELEMENTWISE == set()


def test_a_guess_is_named_at_each_call_and_its_gradient_with_it() -> None:
    costs, x = OpCosts(load_device("h100_sxm")), ((64, 1024), torch.float32)
    guessed = [name for name, row in OPERATORS.items() if row.guessed]
    assert {"ctc_loss", "histogram", "segment_reduce", "fractional_max_pool2d"} <= set(guessed)
    for name in guessed:
        assert not costs.is_known(name)
        for _ in range(2):
            assert costs.of(name, (x,), (x,)).seconds > 0
    assert [(each.name, each.calls) for each in costs.unmodelled.operators] == [(name, 2) for name in guessed]
    assert not costs.is_known("_ctc_loss_backward")
    assert costs.is_known("max_pool2d_with_indices_backward")
