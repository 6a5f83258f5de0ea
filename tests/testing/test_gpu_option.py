"""``--kernbench-gpu``, the mark and the fixture."""

from __future__ import annotations

import pytest

pytest_plugins = "pytester"

CONFTEST = """
import torch
NAME = torch.cuda.get_device_name() if torch.cuda.is_available() else None
"""

SUITE = """
import pytest, torch, triton, triton.language as tl
from conftest import NAME

DEVICE = triton.runtime.driver.active.get_active_torch_device()

@triton.jit
def double(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_kernel():
    assert NAME == "NVIDIA A100-SXM4-80GB" and DEVICE == torch.device("cuda", 0)
    x = torch.ones(100, device=DEVICE)
    double[(1,)](x, 100, BLOCK=128)
    assert x.tolist() == [2.0] * 100

def test_out_of_bounds():
    double[(1,)](torch.ones(100, device=DEVICE), 128, BLOCK=128)

def test_wrong():
    assert torch.ones(3, device="cuda").sum() == 4
"""


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "1"), marks=pytest.mark.long)], ids=["alone", "xdist"])
def test_a_suite_has_a_gpu_from_its_conftest_on(pytester, workers):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("--kernbench-gpu", "dgx_a100", "-p", "no:cacheprovider", *workers)
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["simulated GPU: NVIDIA A100-SXM4-80GB of dgx_a100"])
    result.stdout.fnmatch_lines_random(
        [
            "E *MemoryAccessError: kernel double: reads element 100 of x of rank 0 (shape (100,), 400 bytes)*",
            "FAILED *::test_out_of_bounds*",
            "FAILED *::test_wrong*",
        ]
    )


@pytest.mark.long  # seconds
def test_what_tritons_own_tests_are_written_with_sees_the_gpu(pytester):
    pytester.makepyfile(
        """
        from triton import _internal_testing as asked

        def test_asked():
            assert asked.is_cuda() and asked.is_hopper()
            assert asked.requires_tma.args == (False,)
        """
    )
    result = pytester.runpytest_subprocess("--kernbench-gpu", "dgx_h100", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=1)


@pytest.mark.long  # seconds
def test_without_the_option_nothing_is_different(pytester):
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("import torch\ndef test_none():\n    assert not torch.cuda.is_available()")
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


@pytest.mark.long  # seconds
def test_a_system_that_is_not_there(pytester):
    result = pytester.runpytest_subprocess("--kernbench-gpu", "dgx_x100")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --kernbench-gpu dgx_x100: no shipped system is called 'dgx_x100'*"])


@pytest.mark.kernbench_gpu("mi300x")
def test_the_mark_gives_one_test_a_gpu():
    import torch

    assert "MI300X" in torch.cuda.get_device_name()
    assert torch.ones(3, device="cuda").sum().item() == 3.0


def test_the_fixture_gives_its_context(kernbench_gpu):
    import torch

    torch.ones(3, device="cuda").sum().item()
    assert kernbench_gpu.now() > 0


TORCHS_OWN = """
import torch
import torch.testing._internal.common_distributed  # which has the utilities imported by one of Dynamo's modules
from torch.testing._internal.common_cuda import TEST_CUDA, TEST_MULTIGPU
from torch.testing._internal.common_device_type import deviceCountAtLeast, dtypes, instantiate_device_type_tests, onlyCUDA
from torch.testing._internal.common_utils import TestCase

class TestSums(TestCase):
    @dtypes(torch.float32, torch.int64)
    def test_sum(self, device, dtype):
        assert torch.cuda.current_stream().stream_id != 0 or device == "cpu"  # as torch's own tests want it
        self.assertEqual(torch.ones(4, device=device, dtype=dtype).sum().item(), 4)

    @onlyCUDA
    @deviceCountAtLeast(2)
    def test_two(self, devices):
        assert TEST_CUDA and TEST_MULTIGPU
        self.assertEqual(torch.ones(1, device=devices[1]).device.index, 1)

instantiate_device_type_tests(TestSums, globals())
"""


@pytest.mark.long  # seconds
def test_torchs_own_tests_by_device_find_gpus(pytester: pytest.Pytester) -> None:
    pytest.importorskip("expecttest", reason="torch's own test utilities need expecttest")
    pytester.makepyfile(TORCHS_OWN)
    result = pytester.runpytest_subprocess("--kernbench-gpu", "dgx_a100", "-p", "no:cacheprovider", "-v")
    result.assert_outcomes(passed=5, skipped=1)
    result.stdout.fnmatch_lines(["*TestSumsCUDA::test_two_cuda PASSED*"])
