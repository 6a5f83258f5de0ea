"""The modules of the stand-in for ``flash_attn`` besides its attention: values against definitions in numpy, or torch's own."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import kernbench
from kernbench.stand_ins import stand_in_for, standing_in


@pytest.fixture
def module() -> Iterator[Callable[[str], ModuleType]]:
    with standing_in(["flash_attn"]):
        yield lambda name: importlib.import_module(f"flash_attn.{name}")


def drawn(*shape: int, seed: int = 1, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def numbers(x: torch.Tensor) -> Any:
    return x.detach().double().numpy()


def normed(x: Any, weight: Any, bias: Any, eps: float, rms: bool) -> Any:
    if not rms:
        x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight + (0 if bias is None else bias)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "given", [set(), {"bias"}, {"residual"}, {"residual", "x1", "rowscale"}, {"weight1", "residual"}]
)
@pytest.mark.parametrize("zero_centred", [False, True])
def test_a_sum_is_normalised_and_carried_on(module, rms, dtype, given, zero_centred):
    norms = module("ops.triton.layer_norm")
    x, x1, residual = (drawn(3, 5, 8, seed=seed, dtype=dtype) for seed in range(3))
    weight, weight1, bias = (drawn(8, seed=seed, dtype=dtype) for seed in range(3, 6))
    rowscale = drawn(3, 5, seed=7, dtype=dtype)
    options: dict[str, Any] = {"x1": x1, "residual": residual, "rowscale": rowscale, "weight1": weight1}
    options = {name: value for name, value in options.items() if name in given}
    found = (norms.rms_norm_fn if rms else norms.layer_norm_fn)(
        x, weight, bias if "bias" in given else None, **options, eps=1e-3, prenorm=True, residual_in_fp32=True,
        zero_centered_weight=zero_centred,
    )  # fmt: skip
    total = numbers(x) * (numbers(rowscale)[..., None] if "rowscale" in given else 1)
    total = total + (numbers(x1) if "x1" in given else 0) + (numbers(residual) if "residual" in given else 0)
    more = 1.0 if zero_centred else 0.0
    exact = [normed(total, numbers(weight) + more, numbers(bias) if "bias" in given else None, 1e-3, rms)]
    if "weight1" in given:
        exact.append(normed(total, numbers(weight1) + more, None, 1e-3, rms))
    carried = dtype if "residual" in given else torch.float32
    assert [each.dtype for each in found] == [dtype] * len(exact) + [carried]
    for value, wanted in zip(found, [*exact, total], strict=True):
        near = 2e-2 if dtype == torch.bfloat16 else 1e-5
        np.testing.assert_allclose(numbers(value), wanted, rtol=near, atol=near)


def test_layers_of_norms(module):
    x, residual = drawn(4, 6), drawn(4, 6, seed=2)
    for name, rms in (("ops.rms_norm", True), ("ops.layer_norm", False)):
        layer = getattr(module(name), "DropoutAddRMSNorm" if rms else "DropoutAddLayerNorm")(6, prenorm=True, p=0.5)
        assert {each for each, _ in layer.named_parameters()} == {"weight"} | (set() if rms else {"bias"})
        out, total = layer.eval()(x, residual)
        np.testing.assert_allclose(numbers(total), numbers(x) + numbers(residual), rtol=1e-6)
        np.testing.assert_allclose(numbers(out), normed(numbers(total), 1.0, None, 1e-5, rms), rtol=1e-5, atol=1e-6)
    for layer in (module("ops.rms_norm").RMSNorm(6), module("ops.triton.layer_norm").RMSNorm(6)):
        np.testing.assert_allclose(numbers(layer(x)), normed(numbers(x), 1.0, None, 1e-5, True), rtol=1e-5, atol=1e-6)


def test_dropout_of_a_norm_keeps_what_its_mask_says(module):
    torch.manual_seed(0)
    ones = torch.ones(64, 64)
    _, total, kept, _ = module("ops.triton.layer_norm").layer_norm_fn(
        ones, torch.ones(64), None, dropout_p=0.25, prenorm=True, return_dropout_mask=True
    )
    assert torch.equal(total, kept * (1 / 0.75))
    assert 0.7 < kept.float().mean() < 0.8


def turned(x: Any, at: Any, frequencies: Any, interleaved: bool) -> Any:
    """Pairs as complex numbers, ``[..., heads, size]``; ``at``: positions."""
    rotated = 2 * len(frequencies)
    first, second = (
        (x[..., 0:rotated:2], x[..., 1:rotated:2]) if interleaved
        else (x[..., : rotated // 2], x[..., rotated // 2 : rotated])
    )  # fmt: skip
    pairs = (first + 1j * second) * np.exp(1j * at[..., None, None] * frequencies)
    out = x.copy()
    if interleaved:
        out[..., 0:rotated:2], out[..., 1:rotated:2] = pairs.real, pairs.imag
    else:
        out[..., :rotated] = np.concatenate((pairs.real, pairs.imag), -1)
    return out


FREQUENCIES = 1 / 10000.0 ** (np.arange(0, 6, 2) / 6)
ANGLES = torch.outer(torch.arange(20.0), torch.tensor(FREQUENCIES, dtype=torch.float32))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding_is_a_turn_of_complex_numbers(module, interleaved):
    rotary = module("layers.rotary")
    x, cos, sin = drawn(2, 5, 3, 8), ANGLES.cos(), ANGLES.sin()
    for offsets in (0, 4, torch.tensor([3, 9])):
        at = np.arange(5)[None] + (np.full(2, offsets) if isinstance(offsets, int) else offsets.numpy())[:, None]
        out = rotary.apply_rotary_emb(x, cos, sin, interleaved, seqlen_offsets=offsets)
        np.testing.assert_allclose(numbers(out), turned(numbers(x), at, FREQUENCIES, interleaved), rtol=1e-4, atol=1e-5)
    plain = rotary.apply_rotary_emb_torch(x, cos[:5], sin[:5], interleaved)
    torch.testing.assert_close(rotary.apply_rotary_emb_func(x, cos, sin, interleaved), plain)
    sequences = drawn(7, 3, 8)
    out = rotary.apply_rotary_emb(
        sequences, cos, sin, interleaved, cu_seqlens=torch.tensor([0, 3, 7], dtype=torch.int32), max_seqlen=4
    )
    at = np.array([0, 1, 2, 0, 1, 2, 3])
    np.testing.assert_allclose(
        numbers(out), turned(numbers(sequences), at, FREQUENCIES, interleaved), rtol=1e-4, atol=1e-5
    )


def test_rotary_embedding_in_place_and_its_gradient(module):
    rotary = module("layers.rotary")
    layer = rotary.RotaryEmbedding(6)
    at = np.arange(5)[None].repeat(2, 0)
    for heads, of_keys in ((3, None), (4, 2)):
        leaf = drawn(2, 5, 3, 3, 8) if of_keys is None else drawn(2, 5, heads + 2 * of_keys, 8)
        leaf.requires_grad_()
        qkv = leaf * 1
        out = layer(qkv, num_heads_q=None if of_keys is None else heads)
        assert out is qkv
        parts = out.unbind(2) if of_keys is None else out.split((heads, of_keys, of_keys), 2)
        before = leaf.unbind(2) if of_keys is None else leaf.split((heads, of_keys, of_keys), 2)
        for part, was in zip(parts[:2], before[:2], strict=True):
            np.testing.assert_allclose(
                numbers(part), turned(numbers(was), at, FREQUENCIES, False), rtol=1e-4, atol=1e-5
            )
        assert torch.equal(parts[2], before[2])
        out.backward(out.detach().clone())  # a turn's adjoint is the turn back
        torch.testing.assert_close(leaf.grad, leaf.detach(), rtol=1e-4, atol=1e-5)
    q, kv = drawn(2, 5, 4, 8), drawn(2, 5, 2, 2, 8)
    exact = turned(numbers(q), at + 3, FREQUENCIES, False), turned(numbers(kv[:, :, 0]), at + 3, FREQUENCIES, False)
    q, kv = layer(q, kv, seqlen_offset=3)
    np.testing.assert_allclose(numbers(q), exact[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(numbers(kv[:, :, 0]), exact[1], rtol=1e-4, atol=1e-5)


def losses_of(logits: Any, labels: Any, smoothing: float, scale: float, square: float) -> tuple[Any, Any]:
    scores = logits * scale
    lse = np.log(np.exp(scores).sum(-1))
    right = np.array([scores[row, label] if label >= 0 else 0 for row, label in enumerate(labels)])
    z = np.where(labels == -100, 0, square * lse**2)
    return np.where(labels == -100, 0, lse - smoothing * scores.mean(-1) - (1 - smoothing) * right) + z, z


SETTINGS = [(0.0, 1.0, 0.0), (0.1, 1.0, 0.0), (0.0, 0.5, 1e-2), (0.2, 2.0, 1e-1)]


@pytest.mark.parametrize(("smoothing", "scale", "square"), SETTINGS)
def test_losses_and_their_gradients(module, smoothing, scale, square):
    cross_entropy = module("losses.cross_entropy")
    logits, labels = drawn(4, 6).double().requires_grad_(), torch.tensor([2, -100, 5, 0])
    settings = {"label_smoothing": smoothing, "logit_scale": scale, "lse_square_scale": square}
    exact, z = losses_of(numbers(logits), labels.numpy(), smoothing, scale, square)
    each = cross_entropy.CrossEntropyLoss(reduction="none", return_z_loss=True, **settings)(logits, labels)
    np.testing.assert_allclose(numbers(each[0]), exact, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(numbers(each[1]), z, rtol=1e-5, atol=1e-7)
    mean = cross_entropy.CrossEntropyLoss(**settings)(logits, labels)
    assert mean.item() == pytest.approx(exact.sum() / 3, rel=1e-5)
    mean.backward()
    for row, column in np.ndindex(4, 6):
        step = np.zeros((4, 6))
        step[row, column] = 1e-6
        up, down = (losses_of(numbers(logits) + s * step, labels.numpy(), smoothing, scale, square)[0] for s in (1, -1))
        assert logits.grad[row, column].item() == pytest.approx((up.sum() - down.sum()) / 2e-6 / 3, abs=1e-5)


def test_losses_of_logits_in_parts(module):
    logits, labels = drawn(4, 6), torch.tensor([2, -100, 5, 0])
    loss = module("ops.triton.cross_entropy").cross_entropy_loss
    found: dict[int, tuple[Any, Any, Any]] = {}

    def part(rank: int) -> None:
        dist.init_process_group("nccl")
        mine = logits[:, 3 * rank : 3 * rank + 3].cuda().requires_grad_()
        each, z = loss(mine, labels.cuda(), None, 0.1, 2.0, 0.01, process_group=dist.group.WORLD)
        each.sum().backward()
        found[rank] = each.detach().cpu(), z.cpu(), mine.grad.cpu()  # type: ignore[union-attr]

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(part, nprocs=2)
    exact, z = losses_of(numbers(logits), labels.numpy(), 0.1, 2.0, 0.01)
    whole = logits.clone().requires_grad_()
    loss(whole, labels, None, 0.1, 2.0, 0.01)[0].sum().backward()
    for each, of_square, _ in found.values():
        np.testing.assert_allclose(numbers(each), exact, rtol=1e-5)
        np.testing.assert_allclose(numbers(of_square), z, rtol=1e-5)
    torch.testing.assert_close(torch.cat([grad for _, _, grad in found.values()], 1), whole.grad)


def test_a_gradient_in_the_logits_place(module):
    logits, labels = drawn(4, 6), torch.tensor([2, 1, 5, 0])
    wanted = logits.clone().requires_grad_()
    torch.nn.functional.cross_entropy(wanted, labels).backward()
    leaf = logits.clone().requires_grad_()
    held = leaf * 1
    module("losses.cross_entropy").CrossEntropyLoss(inplace_backward=True)(held, labels).backward()
    torch.testing.assert_close(leaf.grad, wanted.grad)
    torch.testing.assert_close(held.detach(), wanted.grad)


@pytest.mark.parametrize("use_flash_attn", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_a_layer_is_torchs(module, use_flash_attn, causal):
    mha = module("modules.mha")
    torch.manual_seed(2)
    layer = mha.MHA(16, 4, causal=causal, use_flash_attn=use_flash_attn)
    torchs = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        torchs.in_proj_weight.copy_(layer.Wqkv.weight)
        torchs.in_proj_bias.copy_(layer.Wqkv.bias)
        torchs.out_proj.load_state_dict(layer.out_proj.state_dict())
    x = drawn(2, 5, 16)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    torch.testing.assert_close(layer(x), torchs(x, x, x, attn_mask=mask, need_weights=False)[0])
    assert {name for name, _ in layer.named_parameters()} == {
        f"{part}.{kind}" for part in ("Wqkv", "out_proj") for kind in ("weight", "bias")
    }


def test_attention_of_fewer_heads_and_of_sequences(module):
    mha = module("modules.mha")
    torch.manual_seed(2)
    few = mha.MHA(16, 4, num_heads_kv=2, causal=True, use_flash_attn=True, rotary_emb_dim=4)
    many = mha.MHA(16, 4, causal=True, use_flash_attn=True, rotary_emb_dim=4, checkpointing=True)
    with torch.no_grad():  # each head of keys and values twice
        for own, others in ((many.Wqkv.weight, few.Wqkv.weight), (many.Wqkv.bias, few.Wqkv.bias)):
            q, k, v = others.split((16, 8, 8))
            doubled = [each.unflatten(0, (2, 4)).repeat_interleave(2, 0).flatten(0, 1) for each in (k, v)]
            own.copy_(torch.cat((q, *doubled)))
        many.out_proj.load_state_dict(few.out_proj.state_dict())
    x = drawn(2, 5, 16)
    torch.testing.assert_close(few(x), many(x))
    inner = mha.FlashSelfAttention(causal=True)
    qkv = drawn(2, 5, 3, 4, 8)
    ends = torch.tensor([0, 5, 10], dtype=torch.int32)
    rows = inner(qkv.flatten(0, 1), cu_seqlens=ends, max_seqlen=5)
    torch.testing.assert_close(rows.unflatten(0, (2, 5)), inner(qkv))
    cross = mha.FlashCrossAttention()(qkv[:, :3, 0], qkv[:, :, 1:])
    torch.testing.assert_close(cross, mha.CrossAttention()(qkv[:, :3, 0], qkv[:, :, 1:]))
    for option in ({"mixer_subset": 1}, {"inference_params": 1}):
        with pytest.raises(NotImplementedError, match=f"the stand-in for .* has no {next(iter(option))}"):
            few(x, **option)


def test_slopes_are_those_of_the_paper(module):
    slopes = module("modules.mha").get_alibi_slopes
    assert slopes(8) == pytest.approx([2.0**-n for n in range(1, 9)])
    assert slopes(12) == pytest.approx([2.0**-n for n in range(1, 9)] + [2.0**-n for n in (0.5, 1.5, 2.5, 3.5)])


def test_gates(module):
    mlp, x = module("modules.mlp"), drawn(3, 6)
    gated = mlp.GatedMlp(6, activation=torch.nn.functional.silu)
    assert gated.fc2.in_features == 128  # 16, rounded up
    hidden = numbers(x) @ numbers(gated.fc1.weight).T + numbers(gated.fc1.bias)
    value, gate = hidden[:, :128], hidden[:, 128:]
    out = value * gate / (1 + np.exp(-gate)) @ numbers(gated.fc2.weight).T + numbers(gated.fc2.bias)
    np.testing.assert_allclose(numbers(gated(x)), out, rtol=1e-4, atol=1e-5)
    silu = numbers(x) / (1 + np.exp(-numbers(x)))
    np.testing.assert_allclose(numbers(module("ops.activations").swiglu(x, x)), silu * numbers(x), rtol=1e-5, atol=1e-6)
    fused = module("ops.fused_dense").FusedMLP(6, 12, activation="sqrelu")
    hidden = np.maximum(numbers(x) @ numbers(fused.fc1.weight).T + numbers(fused.fc1.bias), 0) ** 2
    out = hidden @ numbers(fused.fc2.weight).T + numbers(fused.fc2.bias)
    np.testing.assert_allclose(numbers(fused(x)), out, rtol=1e-4, atol=1e-5)


def test_what_it_lacks_it_says(module):
    package = module("flash_attn_interface")
    with pytest.raises(
        ModuleNotFoundError, match=r"has no flash_attn\.ops\.nothing; what it has is .*flash_attn\.layers\.rotary"
    ):
        module("ops.nothing")
    with pytest.raises(AttributeError, match="has no flash_attn_nothing; what it has is flash_attn_func, "):
        package.flash_attn_nothing  # noqa: B018
    assert not hasattr(package, "flash_attn_nothing")
    with pytest.raises(ImportError) as refused:
        exec("from flash_attn.layers.rotary import nothing")
    said = stand_in_for(refused.value)
    assert said is not None
    assert said.startswith(
        "what the stand-in for flash_attn.layers.rotary has is RotaryEmbedding, apply_rotary, apply_rotary_emb"
    )
    with pytest.raises(ModuleNotFoundError, match=r"has no flash_attn\.nothing; what it has is"):
        exec("from flash_attn import nothing")


def test_a_program_is_told_what_a_module_has(tmp_path):
    script = tmp_path / "program.py"
    script.write_text("from flash_attn.layers.rotary import nothing\n")
    done = subprocess.run(
        [sys.executable, "-m", "kernbench", "run", "--nproc-per-node", "1", "--stand-in", "flash_attn", str(script)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "what the stand-in for flash_attn.layers.rotary has is RotaryEmbedding" in done.stderr
