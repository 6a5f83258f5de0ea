"""``transformer_engine``'s own Python on the stand-in for its compiled module.

Runs where the package is installed (``pip install --no-deps transformer_engine onnxscript onnx onnx_ir ml_dtypes``).
"""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import kernbench
from kernbench.compiled_operators.transformer_engine import extension, names
from kernbench.stand_ins import standing_in

_SPEC = importlib.util.find_spec("transformer_engine")
if _SPEC is None or importlib.util.find_spec("onnxscript") is None:
    pytest.skip("transformer_engine and what it imports are not installed", allow_module_level=True)

BF16 = torch.bfloat16


def simulated(worker, *args, ranks=1, system="dgx_h100", data=True):
    """What rank 0 puts into a list."""
    found = []
    with standing_in(["transformer_engine"]), kernbench.simulate(system, enable_data=data) as ctx:
        ctx.multiprocessing.spawn(lambda rank: worker(rank, found, *args), nprocs=ranks)
    return found


def apart(found, expected):
    return float((found.detach().float() - expected.detach().float()).norm() / expected.detach().float().norm())


# -- layers ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
@pytest.mark.parametrize("activation", ["gelu", "swiglu", "srelu"])
def test_a_layer_of_two_products(normalization, activation):
    def worker(rank, found):
        import transformer_engine.pytorch as te

        torch.manual_seed(0)
        module = te.LayerNormMLP(
            64, 128, normalization=normalization, activation=activation, params_dtype=BF16, device="cuda"
        )
        x = torch.randn(16, 2, 64, device="cuda", dtype=BF16, requires_grad=True)
        grad = torch.randn_like(x)
        y = module(x)
        y.backward(grad)
        leaf = x.detach().float().requires_grad_()
        weights = {name: each.detach().float().requires_grad_() for name, each in module.named_parameters()}
        gamma = weights["layer_norm_weight"]
        if normalization == "LayerNorm":
            hidden = F.layer_norm(leaf, (64,), gamma, weights["layer_norm_bias"], 1e-5)
        else:
            hidden = F.rms_norm(leaf, (64,), gamma, 1e-5)
        hidden = F.linear(hidden, weights["fc1_weight"], weights["fc1_bias"])
        if activation == "swiglu":
            first, second = hidden.chunk(2, -1)
            hidden = F.silu(first) * second
        else:
            hidden = F.gelu(hidden, approximate="tanh") if activation == "gelu" else F.relu(hidden) ** 2
        expected = F.linear(hidden, weights["fc2_weight"], weights["fc2_bias"])
        expected.backward(grad.float())
        found += [apart(y, expected), apart(x.grad, leaf.grad)]
        found += [apart(each.grad, weights[name].grad) for name, each in module.named_parameters()]

    assert max(simulated(worker)) < 1e-2


def test_tensor_and_sequence_parallel_layers_are_those_of_one_rank():
    def layer(te, group, size):
        return te.TransformerLayer(
            64, 128, 4, num_gqa_groups=2, params_dtype=BF16, device="cuda", hidden_dropout=0.0, attention_dropout=0.0,
            normalization="RMSNorm", activation="swiglu", fuse_qkv_params=True, tp_group=group, tp_size=size,
            set_parallel_mode=True, sequence_parallel=size > 1,
        )  # fmt: skip

    def part(whole, name, rank, shape):
        """A rank's part of a weight: of groups of heads, of both halves of a gate, of rows, or of columns."""
        if tuple(whole.shape) == tuple(shape):
            return whole
        if "fc1" in name:
            return torch.cat([half.chunk(2)[rank] for half in whole.chunk(2)])
        axis = next(at for at in range(whole.dim()) if whole.shape[at] != shape[at])
        return whole.chunk(2, axis)[rank]

    def worker(rank, found):
        import transformer_engine.pytorch as te

        dist.init_process_group("nccl")
        torch.manual_seed(0)
        alone = layer(te, None, 1)
        x = torch.randn(16, 2, 64, device="cuda", dtype=BF16)
        grad = torch.randn_like(x)
        leaf = x.clone().requires_grad_()
        expected = alone(leaf)
        expected.backward(grad)
        together = layer(te, dist.group.WORLD, 2)
        with torch.no_grad():
            for (name, each), (_, whole) in zip(together.named_parameters(), alone.named_parameters(), strict=True):
                each.copy_(part(whole, name, rank, each.shape))
        mine = x.chunk(2)[rank].clone().requires_grad_()
        y = together(mine)
        y.backward(grad.chunk(2)[rank])
        found += [apart(y, expected.chunk(2)[rank]), apart(mine.grad, leaf.grad.chunk(2)[rank])]
        for (name, each), (_, whole) in zip(together.named_parameters(), alone.named_parameters(), strict=True):
            if each.shape != whole.shape:
                found.append(apart(each.grad, part(whole.grad, name, rank, each.shape)))

    assert max(simulated(worker, ranks=2)) < 1e-2


@pytest.mark.parametrize("way", ["p2p", "all_gather", "a2a"])
def test_attention_over_ranks_is_that_of_one(way):
    def worker(rank, found):
        import transformer_engine.pytorch as te

        dist.init_process_group("nccl")
        torch.manual_seed(0)
        q, k, v, grad = (torch.randn(16, 2, 4, 16, device="cuda", dtype=BF16) for _ in range(4))
        leaves = [each.clone().requires_grad_() for each in (q, k, v)]
        alone = te.DotProductAttention(4, 16, attention_dropout=0.0, attn_mask_type="causal")
        expected = alone(*leaves)
        expected.backward(grad.reshape(16, 2, -1))
        over = te.DotProductAttention(4, 16, attention_dropout=0.0, attn_mask_type="causal")
        over.set_context_parallel_group(dist.group.WORLD, [0, 1], torch.cuda.Stream(), way)

        def of_rank(whole):
            chunks = whole.chunk(4)
            return torch.cat([chunks[rank], chunks[3 - rank]])

        mine = [of_rank(each).clone().requires_grad_() for each in (q, k, v)]
        y = over(*mine)
        y.backward(of_rank(grad).reshape(8, 2, -1))
        found.append(apart(y, of_rank(expected)))
        found += [apart(each.grad, of_rank(whole.grad)) for each, whole in zip(mine, leaves, strict=True)]

    assert max(simulated(worker, ranks=2)) < 1e-2


def test_attention_without_fused_kernels(monkeypatch):
    """Products and a softmax, which are operators of the package's by torch.library."""

    def worker(rank, found):
        import transformer_engine.pytorch as te

        torch.manual_seed(0)
        q, k, v = (torch.randn(32, 2, 4, 16, device="cuda", dtype=BF16, requires_grad=True) for _ in range(3))
        attention = te.DotProductAttention(4, 16, attention_dropout=0.0, attn_mask_type="causal")
        out = attention(q, k, v)
        grad = torch.randn_like(out)
        grads = torch.autograd.grad(out, (q, k, v), grad)
        expected = F.scaled_dot_product_attention(*(each.permute(1, 2, 0, 3) for each in (q, k, v)), is_causal=True)
        expected = expected.permute(2, 0, 1, 3).reshape(out.shape)
        found.append(apart(out, expected))
        found += [apart(*pair) for pair in zip(grads, torch.autograd.grad(expected, (q, k, v), grad), strict=True)]

    for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN"):
        monkeypatch.setenv(name, "0")
    assert max(simulated(worker)) < 2e-2


def test_further_functions():
    def worker(rank, found):
        import transformer_engine.pytorch as te

        torch.manual_seed(0)
        x = torch.randn(12, 64, device="cuda", dtype=BF16, requires_grad=True)
        groups = te.GroupedLinear(3, 64, 32, params_dtype=BF16, device="cuda")
        y = groups(x, [5, 0, 7])
        found.append(
            apart(
                y,
                torch.cat(
                    [F.linear(x[:5], groups.weight0, groups.bias0), F.linear(x[5:], groups.weight2, groups.bias2)]
                ),
            )
        )
        y.sum().backward()
        found.append(float(groups.weight1.grad.abs().sum()))
        fused = te.Linear(64, 32, params_dtype=BF16, device="cuda", fuse_wgrad_accumulation=True, bias=False)
        fused.weight.main_grad = torch.ones(32, 64, device="cuda")
        fused(x).sum().backward()
        by_hand = torch.ones(12, 32, device="cuda").t() @ x.detach().float()
        found.append(apart(fused.weight.main_grad, 1 + by_hand))
        late = te.Linear(64, 32, params_dtype=BF16, device="cuda", delay_wgrad_compute=True, bias=False)
        late(x).sum().backward()
        assert late.weight.grad is None
        late.backward_dw()
        found.append(apart(late.weight.grad, by_hand))
        shares = torch.zeros(6, 4, device="cuda").scatter_(
            1, torch.tensor([[0, 1], [1, 2], [3, 0], [2, 3], [0, 2], [1, 3]], device="cuda"), 0.5
        )
        tokens = torch.randn(6, 32, device="cuda", dtype=BF16, requires_grad=True)
        rows, _, places = te.moe_permute_with_probs(tokens, shares, shares > 0, num_out_tokens=12)
        back = te.moe_unpermute(rows, places, merging_probs=shares, restore_shape=tokens.shape, map_type="mask")
        back.sum().backward()
        found += [apart(back, tokens), apart(tokens.grad, torch.ones_like(tokens))]
        logits, target = torch.randn(2, 4, 32, device="cuda"), torch.randint(32, (2, 4), device="cuda")
        expected = F.cross_entropy(logits.view(-1, 32), target.view(-1), reduction="none")
        found.append(apart(te.parallel_cross_entropy(logits.clone(), target).view(-1), expected))
        layer = te.TransformerLayer(
            64, 128, 4, params_dtype=BF16, device="cuda", hidden_dropout=0.0, attention_dropout=0.0
        )
        sequence = torch.randn(8, 2, 64, device="cuda", dtype=BF16, requires_grad=True)
        plain = layer(sequence)
        found.append(apart(te.checkpoint(layer, sequence), plain))
        graphed = te.make_graphed_callables(layer, (torch.randn_like(sequence).requires_grad_(),))
        found.append(apart(graphed(sequence), plain))

    assert max(simulated(worker)) < 1e-2


def test_an_optimizer_is_torchs():
    def worker(rank, found):
        import transformer_engine.pytorch as te

        torch.manual_seed(0)
        mine = torch.nn.Parameter(torch.randn(8, 8, device="cuda"))
        theirs = torch.nn.Parameter(mine.detach().clone())
        pair = (
            te.optimizers.FusedAdam([mine], lr=0.01, weight_decay=0.1), torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.1)
        )  # fmt: skip
        for _ in range(3):
            mine.grad = torch.randn(8, 8, device="cuda")
            theirs.grad = mine.grad.clone()
            for optimizer in pair:
                optimizer.step()
        found.append(apart(mine, theirs))

    assert max(simulated(worker)) < 1e-6


# -- eight bits -----------------------------------------------------------------------------------------------------------


def rounded(x, block, kind, powers):
    """Of definition: each block is multiplied by the number that makes its largest element the format's, and rounded."""
    found, most = torch.empty_like(x), torch.finfo(kind).max
    for first in range(0, x.shape[0], block[0]):
        for second in range(0, x.shape[1], block[1]):
            at = slice(first, first + block[0]), slice(second, second + block[1])
            scale = most / x[at].abs().max()
            if powers:
                scale = 2.0 ** torch.floor(torch.log2(scale))
            found[at] = (x[at] * scale).to(kind).float() / scale
    return found


RECIPES = {
    "DelayedScaling": ("dgx_h100", (1 << 20, 1 << 20), (1 << 20, 1 << 20), False, torch.float8_e5m2),
    "Float8CurrentScaling": ("dgx_h100", (1 << 20, 1 << 20), (1 << 20, 1 << 20), False, torch.float8_e5m2),
    "Float8BlockScaling": ("dgx_h100", (1, 128), (128, 128), True, torch.float8_e4m3fn),
    "MXFP8BlockScaling": ("dgx_b200", (1, 32), (1, 32), True, torch.float8_e4m3fn),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_its_definition(name):
    system, of_input, of_weight, powers, of_gradient = RECIPES[name]

    def worker(rank, found):
        import transformer_engine.pytorch as te
        from transformer_engine.common import recipe

        torch.manual_seed(0)
        module = te.Linear(256, 128, params_dtype=BF16, device="cuda", bias=False)
        x = torch.randn(64, 256, device="cuda", dtype=BF16, requires_grad=True)
        grad = torch.randn(64, 128, device="cuda", dtype=BF16)
        for _ in range(3):  # a delayed scale is that of the step before
            x.grad = None
            module.weight.grad = None
            with te.fp8_autocast(enabled=True, fp8_recipe=getattr(recipe, name)()):
                y = module(x)
            y.backward(grad)
        a, w, g = (each.detach().cpu().float() for each in (x, module.weight, grad))
        forward = torch.float8_e4m3fn
        input_by_rows, weight_by_rows = rounded(a, of_input, forward, powers), rounded(w, of_weight, forward, powers)
        found.append(apart(y.cpu(), input_by_rows @ weight_by_rows.t()))
        turned = of_input[::-1]
        weight_by_columns = rounded(w, of_weight[::-1], forward, powers)
        found.append(apart(x.grad.cpu(), rounded(g, of_input, of_gradient, powers) @ weight_by_columns))
        by_columns = rounded(g, turned, of_gradient, powers).t() @ rounded(a, turned, forward, powers)
        found.append(apart(module.weight.grad.cpu(), by_columns))

    assert max(simulated(worker, system=system)) < 5e-3


def test_products_of_eight_bits_take_less_time():
    def worker(rank, found):
        import transformer_engine.pytorch as te
        from transformer_engine.common import recipe

        module = te.Linear(8192, 8192, params_dtype=BF16, device="cuda", bias=False)
        x = torch.empty(8192, 8192, device="cuda", dtype=BF16)
        with torch.no_grad():
            for enabled in (False, True, True):
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                with te.fp8_autocast(enabled=enabled, fp8_recipe=recipe.DelayedScaling()):
                    module(x, is_first_microbatch=None)
                end.record()
                torch.cuda.synchronize()
                found.append(begin.elapsed_time(end))

    plain, _, eight = simulated(worker, data=False)
    assert 0.5 * plain < eight < 0.9 * plain


def test_weights_in_eight_bits():
    def worker(rank, found):
        import transformer_engine.pytorch as te
        from transformer_engine.common import recipe

        torch.manual_seed(0)
        how = recipe.Float8CurrentScaling()
        with te.fp8_model_init(enabled=True, recipe=how):
            module = te.Linear(128, 128, params_dtype=BF16, device="cuda", bias=False)
        assert type(module.weight).__name__ == "Float8Tensor"
        x = torch.randn(32, 128, device="cuda", dtype=BF16)
        with te.fp8_autocast(enabled=True, fp8_recipe=how):
            y = module(x)
        part = rounded(x.cpu().float(), (1 << 20, 1 << 20), torch.float8_e4m3fn, False)
        found.append(apart(y.cpu(), part @ module.weight.dequantize().cpu().float().t()))

    assert max(simulated(worker)) < 5e-3


# -- what the package asks for --------------------------------------------------------------------------------------------


def _python():
    (folder,) = _SPEC.submodule_search_locations
    return [each for part in ("pytorch", "common") for each in sorted(Path(folder, part).rglob("*.py"))]


def test_what_the_package_imports_by_name_is_there():
    wanted = {
        alias.name
        for file in _python() for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "transformer_engine_torch" for alias in node.names
    } - {"*"}  # fmt: skip
    assert len(wanted) > 20
    assert sorted(wanted - set(extension.NAMES)) == []


def test_what_the_package_calls_is_there_or_said():
    called = {name for file in _python() for name in re.findall(r"\btex\.([a-z]\w+)\b(?!\.default)", file.read_text())}
    called -= {"flash_attention", "get_attention_backend"}  # of a plugin, asked for with a default
    onnx = {
        name
        for file in _python()
        if file.name == "onnx_extensions.py"
        for name in re.findall(r"tex\.(\w+)", file.read_text())
    }
    missing = sorted(name for name in called - onnx if name not in extension.NAMES)
    for name in missing:
        with pytest.raises(AttributeError, match="for it has no") as said:
            extension.missing(name)
        assert name in str(said.value)
    assert len(called) - len(missing) > 80


def test_the_numbers_of_enumerations():
    def worker(rank, found):
        from transformer_engine.pytorch import constants
        from transformer_engine.pytorch.cpp_extensions import fused_attn

        found += [each.name for each in constants.DType if int(each) != int(getattr(names.DType, each.name))]
        assert {each.name for each in constants.DType} == {each.name for each in names.DType}
        assert len(fused_attn.QKVLayout) == len(names.NVTE_QKV_Layout) - 1

    assert simulated(worker) == []


def test_the_functions_take_what_the_package_gives():
    """Positional arguments of calls ``tex.NAME(...)`` are no more than the function takes, and the keywords are its."""
    import inspect

    wrong = []
    for file in _python():
        for node in ast.walk(ast.parse(file.read_text())):
            if not (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and isinstance(node.func.value, ast.Name)
            ):
                continue
            if (
                node.func.value.id != "tex"
                or node.func.attr not in extension.NAMES
                or any(isinstance(each, ast.Starred) for each in node.args)
            ):
                continue
            try:
                signature = inspect.signature(extension.NAMES[node.func.attr])
                signature.bind_partial(*node.args, **{each.arg: None for each in node.keywords if each.arg})
            except TypeError as error:
                wrong.append(f"{file.name}:{node.lineno} {node.func.attr}: {error}")
    assert wrong == []
