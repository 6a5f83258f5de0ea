"""What torch's CUDA kernels launch, read and write, against counts by hand."""

from __future__ import annotations

from math import ceil

import pytest
import torch

from kernbench.cost.attention import attention_time
from kernbench.cost.cuda_kernels import embedding_gradient, list_launches, packed
from kernbench.cost.devices import resolve_device
from kernbench.cost.gemm import gemm_time, kernels_of, sustained
from kernbench.cost.op_costs import OpCosts
from kernbench.cost.operands import Operand, nbytes_of
from kernbench.cost.operators import find
from kernbench.cost.row_kernels import softmax_time
from kernbench.errors import ConfigError
from kernbench.topology import load_device
from kernbench.topology.system import HostSpec

F32, BF16, I64 = torch.float32, torch.bfloat16, torch.int64
H100 = load_device("h100_sxm")


def tensors(*shapes, dtype=F32):
    return [Operand.of(shape, dtype) for shape in shapes]


def traffic(name, given, made):
    return find(name).traffic(given, made)


# -- lists -----------------------------------------------------------------------------------------------------------------


def test_lists_are_cut_into_launches_by_tensors_and_by_chunks():
    small, chunk = tensors((10,))[0], 65536
    assert packed([small] * 770, 1) == 1
    assert packed([small] * 771, 1) == 2  # 770 tensors of one list
    assert packed([small] * 252, 4) == 1
    assert packed([small] * 253, 4) == 2  # 252 of four
    assert packed(tensors((2240 * chunk,)), 1) == 1
    assert packed(tensors((2240 * chunk + 1,)), 1) == 2
    # two tensors of 1500 chunks: the second one is cut at 740
    assert packed(tensors((1500 * chunk,), (1500 * chunk,)), 3) == 2


def test_a_list_operator_launches_once_per_tensor_where_formats_differ():
    params, gradients = tensors(*[(100,)] * 5), tensors(*[(100,)] * 5, dtype=BF16)
    assert list_launches([*params, *params], params) == 1
    assert list_launches([*params, *gradients], params) == 5


def test_a_norm_of_a_list_ends_with_a_kernel_that_adds_up():
    given = tensors(*[(65536,)] * 20)
    assert find("_foreach_norm").count_launches(given, tensors(*[()] * 20)) == 2
    assert find("_foreach_mul_").count_launches(given, given) == 1


@pytest.mark.parametrize("name", ["_fused_adamw_", "_fused_adam_"])
def test_a_fused_step_reads_four_lists_and_writes_three(name):
    count, numel = 6, 1 << 20
    lists, counters = tensors(*[(numel,)] * count), tensors(*[()] * count)
    given, made = [*lists * 4, *counters], lists * 4
    assert traffic(name, given, made) == pytest.approx(7 * 4 * count * numel, rel=1e-4)
    assert find(name).count_launches(given, made) == 1
    # 8 billion parameters over 8 ranks in 291 shards: 4 lists of 252 tensors or 2240 chunks at a launch
    shards = tensors(*[(8_030_000_000 // 8 // 291,)] * 291)
    chunks = 291 * ceil(8_030_000_000 // 8 // 291 / 65536)
    launches = find(name).count_launches([*shards * 4, *tensors(*[()] * 291)], shards * 4)
    assert launches == ceil(chunks / 2240)


def test_plain_sgd_and_sgd_with_momentum():
    lists = tensors((1 << 20,), (3,), (1 << 10, 7))
    size = nbytes_of(lists)
    assert traffic("_fused_sgd_", lists * 2, lists * 2) == 3 * size
    assert traffic("_fused_sgd_", lists * 3, lists * 3) == 5 * size


# -- norms, losses, embeddings ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["native_layer_norm_backward", "_fused_rms_norm_backward"])
def test_a_norms_gradient_passes_over_its_rows_five_times(name):
    rows, width = 4096, 1024
    x, weight, stat = tensors((rows, width), (width,), (rows, 1))
    moved = traffic(name, [x, x, stat, weight], [x, weight])
    assert moved == pytest.approx(5 * 4 * rows * width, rel=2e-3)
    assert find(name).count_launches([x, x, stat, weight], [x, weight]) == 3


def test_a_loss_reads_one_element_of_each_row_and_its_gradient_writes_them_all():
    logits, target, out = Operand.of((16384, 128256), F32), Operand.of((16384,), I64), Operand.of((), F32)
    assert traffic("nll_loss_forward", [logits, target], [out, out]) < 1e6
    moved = traffic("nll_loss_backward", [out, logits, target, out], [logits])
    assert moved == pytest.approx(logits.nbytes, rel=1e-3)
    assert find("nll_loss_backward").count_launches([out, logits], [logits]) == 2


def test_an_embeddings_gradient_sorts_where_there_are_many_indices():
    table = Operand.of((50304, 768), F32)
    few, many = ((Operand.of((n, 768), F32), Operand.of((n,), I64)) for n in (3072, 3073))
    row = find("embedding_dense_backward")
    assert row.count_launches(few, [table]) == 2
    assert row.count_launches(many, [table]) > 10
    assert embedding_gradient(few, [table]) == table.nbytes + nbytes_of(few) + 2 * few[0].nbytes
    parts = (3073 + 307.3) * 768 * 4 * 2
    assert embedding_gradient(many, [table]) == pytest.approx(
        table.nbytes + nbytes_of(many) + parts + 128 * 3073 + many[0].nbytes
    )


# -- softmax --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "made", "nbytes", "launches"),
    [
        (((4096,),), (4096,), 4096 * (8 + 1), 1),  # one number is looked for, or looked among
        (((1 << 20,), (3,)), (1 << 20,), (1 << 20) * (8 + 2 * 3 + 4) + 3 * 8, 4),  # pairs, as many as both
        (((3,),), (), 3 * 8 + 2 * 3 + 4, 4),
        (
            ((4096,), (4096,)),
            (4096,),
            4 * 8 * 8192 * (8 + 8),
            110,
        ),  # beyond 10 * 4096 ** 0.145 = 33 tests all are sorted
    ],
)
def test_membership_compares_pairs_while_they_are_few(given, made, nbytes, launches):
    operands, result = tensors(*given, dtype=I64), tensors(made, dtype=torch.bool)
    assert traffic("isin", operands, result) == nbytes
    assert find("isin").launches(operands, result) == launches


@pytest.mark.parametrize(
    ("columns", "gbytes"),
    [(1152, 616.0), (2048, 959.9), (3072, 1186.8), (4096, 1329.3), (8192, 1483.8), (12288, 1393.7)],
)
def test_long_rows_take_what_torch_takes_on_an_a100(columns, gbytes):
    """The column "torch" of Triton's tutorial 02 (triton_tut02_softmax_a100.csv), 4096 rows of fp32."""
    rows = Operand.of((4096, columns), F32)
    found = softmax_time(load_device("a100_sxm"), [rows], [rows])
    assert found.seconds == pytest.approx(2 * rows.nbytes / gbytes / 1e9, rel=0.09)


def test_rows_that_no_block_holds_are_read_again_and_gradients_too():
    short, long = Operand.of((1 << 18, 1024), F32), Operand.of((2048, 131072), F32)
    assert short.nbytes == long.nbytes
    forward = [softmax_time(H100, [rows], [rows]).seconds for rows in (short, long)]
    assert 1.8 < forward[1] / forward[0] < 2.1  # three reads and a write, instead of one
    backward = softmax_time(H100, [long, long], [long], gradient=True).seconds
    assert 1.2 < backward / forward[1] < 1.3  # four reads and a write


# -- attention ------------------------------------------------------------------------------------------------------------


def test_forward_and_backward_together_are_what_was_measured():
    """Azure's guide: flash-attn2, forward and backward, 8192 tokens (flash_attention_fwd.csv)."""
    for device, heads, width, tflops in (("h100_sxm", 16, 128, 327.9), ("a100_sxm", 32, 64, 179.5)):
        both = sum(
            attention_time(device, 2, heads, 8192, 8192, width, gradient=gradient).seconds for gradient in (False, True)
        )
        assert 3.5 * 4 * 2 * heads * 8192**2 * width / both / 1e12 == pytest.approx(tflops, rel=0.04)


def test_variants_windows_and_what_there_is_not():
    shape = (2, 32, 8192, 8192, 128)
    flash = attention_time("h100_sxm", *shape, causal=True).seconds
    assert attention_time("h100_sxm", *shape, causal=True, variant="cudnn").seconds < flash
    assert attention_time("h100_sxm", *shape, causal=True, variant="efficient").seconds > flash
    near = attention_time("h100_sxm", *shape, causal=True, window=1024).seconds
    assert near / flash == pytest.approx((1024 + 128) / (4096 + 64), rel=0.02)
    with pytest.raises(ConfigError, match=r"no variant 'math'; known: flash"):
        attention_time("h100_sxm", *shape, variant="math")


def test_an_attentions_gradient_is_three_kernels():
    assert find("_scaled_dot_product_flash_attention_for_cpu_backward").launches == 3
    assert find("_scaled_dot_product_cudnn_attention_backward").variant == "cudnn"
    assert find("_efficient_attention_backward").gradient


# -- the host -------------------------------------------------------------------------------------------------------------


def test_the_host_pays_for_further_launches_tensors_and_units():
    host = HostSpec(factor=2.0)
    costs = OpCosts(H100, host=host)
    many = (((1 << 10,), F32),) * 300
    assert costs.of("add", many[:2], many[:1]).host == 0
    assert costs.of("nll_loss_backward", (((8, 8), F32),) * 2, (((8, 8), F32),)).host == pytest.approx(2 * host.launch)
    assert costs.of("_foreach_mul_", many, many).host == pytest.approx(2 * 300 * host.tensor)
    copied = costs.of("fsdp::all_gather_copy_in", many, many[:1])
    assert copied.host == pytest.approx(2 * host.unit)


# -- power ----------------------------------------------------------------------------------------------------------------


def test_a_single_product_runs_at_the_boost_clock_where_what_boards_draw_is_known(tmp_path):
    """On others its rate is what the board's power allows; on Hopper a step's clock is (tests/sim_engine/test_clocks.py)."""

    def seconds(power, dtype="bf16", base="a100_sxm"):
        path = tmp_path / f"gpu{power}.yaml"
        path.write_text(f"extends: {base}\ndevice: {{name: gpu{power}, power: {power} W}}\n")
        return gemm_time(str(path), 8192, 8192, 8192, dtype=dtype).seconds

    usual, exponent = (
        gemm_time("a100_sxm", 8192, 8192, 8192, dtype="bf16").seconds,
        kernels_of(resolve_device("a100_sxm")).power_exponent,
    )
    assert seconds(400) == seconds(500) == usual
    assert seconds(300) / usual == pytest.approx((400 / 300) ** exponent, rel=0.05)
    assert seconds(300, "fp32") == seconds(400, "fp32")
    assert seconds(500, base="h100_sxm") == seconds(700, base="h100_sxm")


def test_long_products_are_slower_than_short_ones():
    kernels = kernels_of(H100)
    brief, half, long = (sustained(seconds, kernels) / seconds - 1 for seconds in (1e-6, kernels.throttle_after, 1.0))
    assert brief < 2e-4
    assert half == pytest.approx(kernels.throttle / 2)
    assert long == pytest.approx(kernels.throttle, rel=1e-3)


def test_a_sum_over_an_inner_dimension_takes_as_long_as_its_bytes() -> None:
    """As the gradient of an ``expand`` is, of grouped heads, say: results beside each other are no rows of few elements."""
    costs, given = OpCosts(H100), ((2, 8192, 8, 4, 128), torch.bfloat16)
    for shape in ((2, 8192, 8, 1, 128), (2, 8192, 8, 128)):
        assert costs.of("sum", (given,), ((shape, torch.bfloat16),)).seconds < 9e-5
