"""vLLM's operators on packed weights and its routing by groups: values against definitions, costs."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

from kernbench.compiled_operators.operators import Operators
from kernbench.cost.by_values import CallOperands, SeenOperand
from kernbench.cost.matrix_work import MatrixWork
from kernbench.cost.operands import Operand
from kernbench.topology import resolve_topology

# as vLLM 0.33.0's wheel has them in its libraries
SCHEMAS = {
    "stable": (
        "awq_gemm(Tensor _in_feats, Tensor _kernel, Tensor _scaling_factors, Tensor _zeros, SymInt split_k_iters) -> Tensor",
        "awq_dequantize(Tensor _kernel, Tensor _scaling_factors, Tensor _zeros, SymInt split_k_iters, int thx, int thy) "
        "-> Tensor",
        "machete_prepack_B( Tensor B, ScalarType a_type, int b_type, ScalarType? group_scales_type) -> Tensor",
        "machete_mm( Tensor A, Tensor B, int b_type, ScalarType? out_type, Tensor? group_scales, Tensor? group_zeros, int? "
        "group_size, Tensor? channel_scales, Tensor? token_scales, str? schedule) -> Tensor",
        "gptq_gemm(Tensor a, Tensor b_q_weight, Tensor b_gptq_qzeros, Tensor b_gptq_scales, bool use_exllama, bool "
        "use_v2_format, int bit) -> Tensor",
        "gptq_shuffle(Tensor! q_weight, int bit) -> ()",
        "marlin_gemm(Tensor a, Tensor? c_or_none, Tensor b_q_weight, Tensor? b_bias_or_none,Tensor b_scales, Tensor? "
        "a_scales, Tensor? global_scale, Tensor? b_zeros_or_none, Tensor workspace, int b_type_id, SymInt size_m, SymInt "
        "size_n, SymInt size_k, bool use_atomic_add, bool use_fp32_reduce, bool is_zp_float) -> Tensor",
        "gptq_marlin_repack(Tensor b_q_weight, SymInt size_k, SymInt size_n, int num_bits, bool is_a_8bit) -> Tensor",
        "awq_marlin_repack(Tensor b_q_weight, SymInt size_k, SymInt size_n, int num_bits, bool is_a_8bit) -> Tensor",
        "fp32_router_gemm(Tensor! output, Tensor mat_a, Tensor mat_b) -> ()",
        "dsv3_fused_a_gemm(Tensor! output, Tensor mat_a, Tensor mat_b, bool enable_pdl=False) -> ()",
    ),
    "experts": (
        "topk_softmax(Tensor! topk_weights, Tensor! topk_indices, Tensor! token_expert_indices, Tensor gating_output, bool "
        "renormalize, Tensor? bias, Tensor? is_padding) -> ()",
        "topk_sigmoid(Tensor! topk_weights, Tensor! topk_indices, Tensor! token_expert_indices, Tensor gating_output, bool "
        "renormalize, Tensor? bias, float routed_scaling_factor, Tensor? is_padding) -> ()",
        "moe_sum(Tensor input, Tensor! output, Tensor? topk_ids=None, Tensor? expert_map=None) -> ()",
        "grouped_topk(Tensor scores, int n_group, int topk_group, int topk, bool renormalize, float routed_scaling_factor, "
        "Tensor bias, int scoring_func) -> (Tensor, Tensor)",
    ),
}  # fmt: skip
BELOW_8 = 4 << 8 | 8 << 17
"""vLLM's number of four bits without a sign, 8 above what they stand for."""
PLAIN = 4 << 8


def costs_of(library: str) -> dict[str, Any]:
    costs: dict[str, Any] = importlib.import_module(f"kernbench.compiled_operators.vllm.{library}").operators.costs
    return costs


@pytest.fixture(scope="module", autouse=True)
def _defined() -> None:
    """The operators of the shipped stand-in under namespaces of their own, as the wheel is not here."""
    for name, schemas in SCHEMAS.items():
        known = importlib.import_module(f"kernbench.compiled_operators.vllm.{name}").operators
        operators = Operators(f"kernbench_test_packed_{name}", schemas=schemas)
        operators.values, operators.shapes = known.values, known.shapes
        operators.define("vllm 0.33.0")


def op(name: str, library: str = "stable") -> Any:
    return getattr(getattr(torch.ops, f"kernbench_test_packed_{library}"), name)


def drawn(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def whole(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 16, shape, generator=torch.Generator().manual_seed(seed))


def words(numbers: torch.Tensor, order: tuple[int, ...]) -> torch.Tensor:
    """Rows of eight numbers of four bits in a word each, that at ``order[place]`` of them lies at ``place``."""
    found = torch.zeros(numbers.shape[0], numbers.shape[1] // 8, dtype=torch.int64)
    for place, at in enumerate(order):
        found |= numbers[:, at::8] << 4 * place
    return torch.where(found >= 1 << 31, found - (1 << 32), found).to(torch.int32)


def test_awq() -> None:
    inner, width, group = 16, 24, 8
    numbers, zeros, scales = whole(inner, width), whole(2, width, seed=2), drawn(2, width, seed=3)
    order = (0, 2, 4, 6, 1, 3, 5, 7)  # as AWQ's files have them, from the lowest bits on
    given = words(numbers, order), scales, words(zeros, order)
    wanted = torch.tensor([
        [float((numbers[k, n] - zeros[k // group, n]) * scales[k // group, n]) for n in range(width)] for k in range(inner)
    ])  # fmt: skip
    torch.testing.assert_close(op("awq_dequantize")(*given, 0, 0, 0), wanted)
    x = drawn(3, inner, seed=4)
    torch.testing.assert_close(op("awq_gemm")(x, *given, 8), x @ wanted)


@pytest.mark.parametrize("with_zeros", [False, True])
def test_machete(with_zeros: bool) -> None:
    inner, width = 16, 5
    numbers, scales, x = whole(inner, width), drawn(2, width, seed=3), drawn(3, inner, seed=4)
    kind = PLAIN if with_zeros else BELOW_8
    added = drawn(2, width, seed=5) if with_zeros else None
    stored = op("machete_prepack_B")(words(numbers.t(), tuple(range(8))).t(), torch.float32, kind, None)
    found = op("machete_mm")(x, stored, kind, None, scales, added, 8, None, torch.tensor([1.0, 2.0, 3.0]), None)
    weight = torch.empty(inner, width)
    for k in range(inner):
        for n in range(width):
            less = 0 if with_zeros else 8
            more = 0.0 if added is None else added[k // 8, n]
            weight[k, n] = (numbers[k, n] - less) * scales[k // 8, n] + more
    torch.testing.assert_close(found, (x @ weight) * torch.tensor([[1.0], [2.0], [3.0]]))


@pytest.mark.parametrize("second", [False, True])
def test_gptq(second: bool) -> None:
    inner, width, group = 16, 8, 8
    numbers, zeros, scales, x = (
        whole(inner, width),
        whole(2, width, seed=2) % 15,
        drawn(2, width, seed=3),
        drawn(3, inner),
    )
    stored = words(numbers.t(), tuple(range(8))).t().contiguous()
    op("gptq_shuffle")(stored, 4)
    found = op("gptq_gemm")(x, stored, words(zeros, tuple(range(8))), scales, True, second, 4)
    weight = torch.empty(inner, width)
    for k in range(inner):
        for n in range(width):
            less = zeros[k // group, n] + (0 if second else 1)
            weight[k, n] = (numbers[k, n] - less) * scales[k // group, n]
    torch.testing.assert_close(found, x @ weight)


def of_tiles(rows: torch.Tensor, order: list[int]) -> torch.Tensor:
    """Columns as vLLM stores them for Marlin: at each place of some columns the one that the order says."""
    stored = torch.empty_like(rows)
    for at in range(rows.shape[1]):
        begin = at - at % len(order)
        stored[:, at] = rows[:, begin + order[at - begin]]
    return stored


COLUMNS = [i + 8 * j for i in range(8) for j in range(8)]
PAIRS = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]


@pytest.mark.parametrize(("awq", "groups"), [(True, 2), (False, 2), (False, 1)])
def test_marlin(awq: bool, groups: int) -> None:
    inner, width = 32, 64
    numbers, zeros = whole(inner, width), whole(groups, width, seed=2)
    scales, bias, x = drawn(groups, width, seed=3), drawn(1, width, seed=5), drawn(3, inner, seed=4)
    if awq:
        stored = op("awq_marlin_repack")(words(numbers, (0, 2, 4, 6, 1, 3, 5, 7)), inner, width, 4, False)
    else:
        stored = op("gptq_marlin_repack")(words(numbers.t(), tuple(range(8))).t(), inner, width, 4, False)
    assert stored.shape == (inner // 16, width * 2)
    less = words(of_tiles(zeros, COLUMNS), (0, 2, 4, 6, 1, 3, 5, 7)) if awq else None
    found = op("marlin_gemm")(
        x, None, stored, of_tiles(bias, PAIRS).view(-1), of_tiles(scales, COLUMNS if groups > 1 else PAIRS), None, None, less,
        torch.empty(0, dtype=torch.int32), PLAIN if awq else BELOW_8, 3, width, inner, False, True, False,
    )  # fmt: skip
    weight = torch.empty(inner, width)
    for k in range(inner):
        group = k * groups // inner
        for n in range(width):
            weight[k, n] = (numbers[k, n] - (zeros[group, n] if awq else 8)) * scales[group, n]
    torch.testing.assert_close(found, x @ weight + bias)


def test_what_has_no_values_is_said() -> None:
    nothing = torch.empty(0, dtype=torch.int32)
    with pytest.raises(NotImplementedError, match=r"values of marlin_gemm .* whole numbers without a sign"):
        op("marlin_gemm")(
            drawn(1, 16), None, nothing, None, drawn(1, 64), None, None, None, nothing, 2 | 1 << 8, 1, 64, 16, False, True,
            False,
        )  # fmt: skip


def operands(result: Operand, **given: Any) -> CallOperands:
    seen = {name: SeenOperand(each) if isinstance(each, Operand) else each for name, each in given.items()}
    return CallOperands(seen, [SeenOperand(result)])


def machete_takes(rows: int) -> float:
    size, group = 8192, 128
    call = operands(
        Operand.of((rows, size), "fp16"), A=Operand.of((rows, size), "fp16"), B=Operand.of((size // 8, size), "int32"),
        group_scales=Operand.of((size // group, size), "fp16"), group_zeros=None, channel_scales=None,
    )  # fmt: skip
    work = costs_of("stable")["machete_mm"](call)
    assert work.flops == 2 * rows * size * size
    assert work.nbytes == size * size // 2 + 2 * size // group * size + 4 * rows * size
    seconds: float = work.cost(resolve_topology("dgx_h100").topology_obj.device).seconds
    return seconds


def test_packed_weights_are_read_packed_and_multiplied_at_the_rate_of_activations() -> None:
    device = resolve_topology("dgx_h100").topology_obj.device
    plain = {rows: MatrixWork(((rows, 8192, 8192),), "fp16", "fp16").cost(device).seconds for rows in (1, 8192)}
    assert 8192**2 / 2 / device.hbm.bandwidth < machete_takes(1) < 0.45 * plain[1]
    assert machete_takes(8192) == pytest.approx(plain[8192], rel=0.02)


def test_experts_with_packed_weights_read_those_that_are_used() -> None:
    experts, inner, width = 64, 2048, 1024

    def work(tokens: int) -> MatrixWork:
        call = operands(
            Operand.of((tokens * 2, width), "bf16"), a=Operand.of((tokens, inner), "bf16"), b_zeros_or_none=None,
            b_q_weight=Operand.of((experts, inner // 16, width * 2), "int32"), size_m=tokens, size_n=width, size_k=inner,
            b_scales=Operand.of((experts, inner // 128, width), "bf16"), top_k=2,
        )  # fmt: skip
        found: MatrixWork = costs_of("experts")["moe_wna16_marlin_gemm"](call)
        return found

    assert work(4).products == ((1, width, inner),) * 8
    assert work(128).products == ((4, width, inner),) * experts
    one = inner * width // 2 + 2 * inner // 128 * width
    assert work(4).nbytes == 8 * (one + 2 * inner + 2 * width)
    device = resolve_topology("dgx_h100").topology_obj.device
    assert 3 < work(128).cost(device).seconds / work(4).cost(device).seconds < 8


@pytest.mark.parametrize("scoring", [0, 1])
def test_the_best_experts_of_the_best_groups(scoring: int) -> None:
    scores, bias = drawn(5, 12).abs(), drawn(12, seed=2)
    weights, chosen = op("grouped_topk", "experts")(scores, 4, 2, 3, True, 2.5, bias, scoring)
    for token, row in enumerate(scores.tolist()):
        shares = [float(torch.sigmoid(torch.tensor(each))) if scoring else each for each in row]
        judged = [share + float(each) for share, each in zip(shares, bias, strict=True)]
        groups = sorted(range(4), key=lambda g: -sum(sorted(judged[3 * g : 3 * g + 3])[-2:]))[:2]
        best = sorted((e for e in range(12) if e // 3 in groups), key=lambda e: -judged[e])[:3]
        assert chosen[token].tolist() == best
        total = sum(shares[e] for e in best)
        torch.testing.assert_close(weights[token], torch.tensor([2.5 * shares[e] / total for e in best]))
    assert chosen.dtype is torch.int32


@pytest.mark.parametrize("name", ["topk_softmax", "topk_sigmoid"])
def test_padding_has_no_expert(name: str) -> None:
    gates = drawn(3, 6)
    weights = torch.empty(3, 2)
    chosen, places = (torch.empty(3, 2, dtype=torch.int32) for _ in "ab")
    factor = (1.0,) if name == "topk_sigmoid" else ()
    op(name, "experts")(weights, chosen, places, gates, False, None, *factor, torch.tensor([False, True, False]))
    assert chosen[1].tolist() == [-1, -1]
    assert weights[1].tolist() == [0.0, 0.0]
    shares = gates.sigmoid() if name == "topk_sigmoid" else gates.softmax(-1)
    torch.testing.assert_close(weights[[0, 2]], shares[[0, 2]].topk(2).values)


def test_sums_leave_out_experts_that_are_elsewhere() -> None:
    rows, out = drawn(2, 3, 4), torch.empty(2, 4)
    ids, here = torch.tensor([[0, 1, -1], [1, 2, 0]], dtype=torch.int32), torch.tensor([0, -1, 1], dtype=torch.int32)
    op("moe_sum", "experts")(rows, out, ids, here)
    torch.testing.assert_close(out, torch.stack([rows[0, 0], rows[1, 1] + rows[1, 2]]))


def test_small_products() -> None:
    a, b = drawn(2, 8), drawn(8, 3, seed=2)
    for name, weight in (("dsv3_fused_a_gemm", b), ("fp32_router_gemm", b.t())):
        out = torch.empty(2, 3)
        op(name)(out, a, weight)
        torch.testing.assert_close(out, a @ b)


@pytest.mark.parametrize(("rows", "rate"), [(1, 4.626e12), (16, 72.5e12)])
def test_marlin_is_as_quick_as_was_measured_where_memory_limits_it(rows: int, rate: float) -> None:
    """Four bits, a scale for 128: rates of its own benchmark on an A100 with weights of 313 million numbers in all, which were
    published without their shapes (vllm-project/vllm pull request 2497)."""
    inner, width = 17664, 17664
    cost = costs_of("stable")["marlin_gemm"]
    work = cost(
        operands(
            Operand.of((rows, width), "fp16"), a=Operand.of((rows, inner), "fp16"), size_n=width, size_k=inner,
            b_q_weight=Operand.of((inner // 16, 2 * width), "int32"), b_scales=Operand.of((inner // 128, width), "fp16"),
            b_zeros_or_none=None, global_scale=None,
        )
    )  # fmt: skip
    seconds = work.cost(resolve_topology("dgx_a100").topology_obj.device).seconds
    assert work.flops / seconds == pytest.approx(rate, rel=0.25)
