"""Several ranks in one batch, waiting for each other, and being told who is to blame."""

from __future__ import annotations

import pytest
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from kernbench.errors import DeadlockError, MemoryAccessError
from kernbench.triton_engine import Execution, execute
from tests.triton_fixtures import ROUNDING

from .programs import barrier_kernel, either_kernel, scale_kernel, swizzled_matmul_kernel


def barrier(world, collected):
    flags = [torch.zeros(world, dtype=torch.int32) for _ in range(world)]
    peers = torch.tensor([f.data_ptr() for f in flags])
    outs = [torch.full((1,), -1, dtype=torch.int32) for _ in range(world)]
    for rank in range(world):
        barrier_kernel[(1,)](flags[rank], peers, outs[rank], rank, world)
    return flags, outs


def test_one_batch_equals_one_by_one(collected):
    world, n = 5, 64
    a = [torch.randn(n, n).half() for _ in range(world)]
    b = [torch.randn(n, n).half() for _ in range(world)]
    c = [torch.empty(n, n) for _ in range(world)]
    for r in range(world):
        swizzled_matmul_kernel[(16,)](a[r], b[r], c[r], n, n, n, BM=16, BN=16, BK=16, GROUP=2)
    together = execute(collected.launches).counts()
    for r in range(world):
        torch.testing.assert_close(c[r], a[r].float() @ b[r].float(), atol=1e-3, rtol=1e-3)
    alone = execute(collected.launches[:1]).counts()
    assert together.flops == {k: world * v for k, v in alone.flops.items()}
    assert together.bytes_read == world * alone.bytes_read


def test_numbers_may_differ_between_ranks(collected):
    x = torch.arange(40.0)
    outs = [torch.zeros(40) for _ in range(3)]
    for r, n in enumerate((40, 17, 0)):
        scale_kernel[(3,)](x, outs[r], n + 2 * r, 0.5 * r + 1.5, BLOCK=16)
    execute(collected.launches)
    for r, n in enumerate((40, 19, 4)):
        expected = torch.zeros(40)
        expected[:n] = x[:n] * (0.5 * r + 1.5)
        assert torch.equal(outs[r], expected)


def test_ranks_meet_in_one_batch(collected):
    _, outs = barrier(4, collected)
    execute(collected.launches)
    assert [int(o) for o in outs] == [0, 1, 2, 3]


def test_executions_wait_and_are_resumed(collected):
    _, outs = barrier(3, collected)
    executions = [Execution([launch]) for launch in collected.launches]
    assert [e.run() for e in executions] == ["waiting", "waiting", "done"]
    assert [e.run() for e in executions[:2]] == ["done", "done"]
    assert [int(o) for o in outs] == [0, 1, 2]


def test_a_wait_that_cannot_end_is_explained(collected):
    barrier(2, collected)
    with pytest.raises(DeadlockError) as error:
        execute(collected.launches[:1])
    text = str(error.value)
    for part in (
        "barrier_kernel",
        "rank 0",
        "program (0, 0, 0)",
        "programs.py:",
        "element 1 of flags_ptr",
        "sees 0",
        "wants == 1",
    ):
        assert part in text


def test_out_of_bounds_names_rank_program_line_and_element(collected):
    x = torch.zeros(64)
    small = torch.zeros(40)
    scale_kernel[(4,)](x, x, 64, 1.0, BLOCK=16)
    scale_kernel[(4,)](small, x, 64, 1.0, BLOCK=16)
    with pytest.raises(MemoryAccessError) as error:
        execute(collected.launches)
    text = str(error.value)
    for part in ("scale_kernel", "rank 1", "program (2, 0, 0)", "element 40 of x_ptr", "shape (40,)", "programs.py:13"):
        assert part in text
    assert error.value.ranks == (1,)


def test_pointers_of_several_arguments_meet_in_a_batch(collected):
    """Every rank's lanes keep to the rank's own tensors when a branch picks between two arguments."""
    tensors = []
    for rank in range(3):
        a, b = torch.arange(8) + 100 * rank, torch.arange(8) - 100 * rank
        flags, out = torch.tensor([rank % 2, 1, 0]), torch.zeros(3, 8, dtype=torch.int64)
        either_kernel[(3,)](a, b, flags, out, BLOCK=8)
        tensors.append((a, b, out))
    execute(collected.launches)
    for rank, (a, b, out) in enumerate(tensors):
        assert torch.equal(out, torch.stack([a if rank % 2 else b, a, b]))


@triton.jit
def described_copy_kernel(source, target):
    target.store([0, 0], source.load([0, 0]))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"padding": "nan"}, id="padding"),
        pytest.param({"round_f32_to_tf32": True}, id="rounding", marks=ROUNDING),
    ],
)
def test_descriptors_of_ranks_that_read_differently_are_refused(collected, other):
    """The compiled kernel is the same for both, and one rank's way of reading is not the other's."""
    x, out = torch.randn(8, 8), torch.zeros(16, 16)
    for how in ({}, other):
        source, target = TensorDescriptor.from_tensor(x, [16, 16], **how), TensorDescriptor.from_tensor(out, [16, 16])
        described_copy_kernel[(1,)](source, target)
    with pytest.raises(
        NotImplementedError, match=r"kernel described_copy_kernel: ranks .* padding or round_f32_to_tf32"
    ):
        execute(collected.launches)
