"""``--kernbench-distributed``: torch's test cases of many processes and threads, unchanged, on simulated ranks."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

pytest_plugins = ["pytester"]

CASES = """
import os
import signal
import sys
from datetime import timedelta
import torch
import torch.distributed as dist
from torch.distributed.fsdp._debug_utils import SimpleProfiler
from torch.testing._internal.common_distributed import (
    DistributedTestBase, MultiProcContinuousTest, MultiProcessTestCase, MultiThreadedTestCase, requires_nccl,
    skip_if_lt_x_gpu, spawn_threads_and_init_comms,
)
from torch.testing._internal.common_utils import TestCase
from torch.testing._internal.distributed._shard.sharded_tensor._test_st_common import PLACEMENTS

SEEN = []  # a process's own
AT_IMPORT = torch.version.cuda, torch.cuda.get_arch_list(), torch.cuda.get_device_capability()


class Processes(MultiProcessTestCase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()

    world_size = 3

    @requires_nccl()
    @skip_if_lt_x_gpu(3)
    def test_gpus(self):
        SEEN.append(self.rank)
        type(self).mine = self.rank
        dist.init_process_group("nccl", init_method=f"file://{self.file_name}", rank=self.rank, world_size=3)
        x = torch.full((2,), float(self.rank), device=f"cuda:{self.rank}")
        dist.all_reduce(x)
        self.assertEqual(x.cpu(), torch.full((2,), 3.0))
        self.assertEqual((SEEN, type(self).mine), ([self.rank], self.rank))

    def test_state_of_fsdp(self):
        # what is changed in a class of torch for ranks is there in each: here a set that each has of its own
        dist.init_process_group("gloo", init_method=f"file://{self.file_name}", rank=self.rank, world_size=3)
        with SimpleProfiler.profile(SimpleProfiler.Type.ALLGATHER):
            dist.barrier()

    def test_lists_of_helpers(self):
        PLACEMENTS.append(self.rank)
        self.assertEqual(PLACEMENTS[-1], self.rank)
        self.assertEqual(len(PLACEMENTS), 5)

    def test_one_fails(self):
        dist.init_process_group("gloo", init_method=f"file://{self.file_name}", rank=self.rank, world_size=3)
        self.assertNotEqual(self.rank, 1)
        dist.barrier()

    @skip_if_lt_x_gpu(8)
    def test_skips(self):
        sys.exit(86)


class ProcessesOfTheTest(MultiProcessTestCase):
    # as torch's tests of flight recorders: each process gets a pipe to the test
    world_size = 2

    def setUp(self):
        super().setUp()
        proc = torch.multiprocessing.get_context("spawn").Process
        self.children, parents = zip(*(torch.multiprocessing.Pipe() for _ in range(2)))
        ends = iter(parents)

        def with_pipe(*positional, args, **kwargs):
            return proc(*positional, args=(next(ends), *args), **kwargs)

        self._start_processes(with_pipe)

    @classmethod
    def _run(cls, to_test, rank, test_name, file_name, parent_pipe, **kwargs):
        cls.to_test = to_test
        super()._run(rank, test_name, file_name, parent_pipe, **kwargs)

    def _join_processes(self, fn):
        super()._join_processes(fn)
        assert [child.recv() for child in self.children] == [0, 1]
        for process in self.processes:
            process.join(1)

    def test_pipes(self):
        self.to_test.send(self.rank)


class Ending(MultiProcessTestCase):
    world_size = 3

    def setUp(self):
        super().setUp()
        self.skip_return_code_checks = [getattr(self, self._testMethodName).__wrapped__]
        self._spawn_processes()

    def tearDown(self):
        assert [process.exitcode for process in self.processes] == [0, self.code, 0]
        super().tearDown()

    def ends(self, how):
        dist.init_process_group("nccl", init_method=f"file://{self.file_name}", rank=self.rank, world_size=3)
        if self.rank == 1:
            how()
        with self.assertRaises(dist.DistBackendError):
            work = dist.all_reduce(torch.ones(1, device="cuda"), async_op=True)
            work.wait(timeout=timedelta(seconds=1))

    @requires_nccl()
    def test_killed(self):
        self.ends(lambda: os.kill(os.getpid(), signal.SIGKILL))

    @requires_nccl()
    def test_raised(self):
        self.ends(lambda: signal.raise_signal(signal.SIGTERM))

    @requires_nccl()
    def test_aborts(self):
        self.ends(os.abort)

    @requires_nccl()
    def test_exits(self):
        self.ends(lambda: os._exit(7))

    @property
    def code(self):
        return {"test_killed": -9, "test_raised": -15, "test_aborts": -6, "test_exits": 7}[self._testMethodName]


class Base(DistributedTestBase):
    world_size = 2

    def test_group(self):
        self.create_pg("cpu")
        dist.barrier()


class Continuous(MultiProcContinuousTest):
    world_size = 2

    def test_one(self):
        type(self).mine = self.rank
        objects = [None, None]
        dist.all_gather_object(objects, type(self).mine)
        self.assertEqual(objects, [0, 1])

    def test_two(self):
        self.assertFalse(hasattr(type(self), "mine"))


class Threads(MultiThreadedTestCase):
    world_size = 2

    def setUp(self):
        super().setUp()
        self._spawn_threads()

    def test_sum(self):
        x = torch.ones(1) * dist.get_rank()
        dist.all_reduce(x)
        self.assertEqual(x.item(), 1.0)

    def test_replaced(self):
        seen, stock = [], dist.all_gather_single
        dist.barrier()
        dist.all_gather_single = lambda *args, **kwargs: seen.append(stock(*args, **kwargs))
        dist.barrier()  # the function of the last one is that of all
        dist.all_gather_single(torch.zeros(4), torch.ones(2))
        dist.barrier()
        dist.all_gather_single = stock
        counts = [None, None]
        dist.all_gather_object(counts, len(seen))
        self.assertEqual(sorted(counts), [0, 2])

    def test_gpu(self):
        self.assertEqual(torch.cuda.current_device(), 0)  # it is each thread's own, and nobody has set it
        x = torch.full((3,), float(dist.get_rank()), device="cuda")
        self.assertEqual(x.device.index, 0)
        parts = [torch.zeros(3, device="cuda") for _ in range(2)]
        dist.all_gather(parts, x)
        self.assertEqual([part.tolist() for part in parts], [[0.0] * 3, [1.0] * 3])
        torch.cuda.set_device(dist.get_rank())
        dist.barrier()
        self.assertEqual(torch.cuda.current_device(), dist.get_rank())


class Alone(TestCase):
    def test_gpu(self):
        self.assertEqual(AT_IMPORT, (torch.version.cuda, torch.cuda.get_arch_list(), torch.cuda.get_device_capability()))
        self.assertEqual(torch.ones(2, device="cuda").device.type, "cuda")

    @spawn_threads_and_init_comms(world_size=4)
    def test_threads(self):
        self.assertEqual(dist.get_world_size(), 4)
        dist.barrier()  # all of them at once
        self.assertEqual(torch.cuda.current_device(), 0)
"""


@pytest.mark.long  # seconds
@pytest.mark.skipif(importlib.util.find_spec("expecttest") is None, reason="expecttest is not installed")
def test_every_base_class(pytester: pytest.Pytester, run_pytest: Callable[..., pytest.RunResult]) -> None:
    pytester.makepyfile(CASES)
    result = run_pytest("--kernbench-distributed", "dgx_h100", "-q", "-rf", "--tb=short")
    result.assert_outcomes(passed=16, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*Process 1 exited with error code 10*", "FAILED*Processes::test_one_fails*"])


def test_a_system_that_does_not_exist_is_an_error(run_pytest: Callable[..., pytest.RunResult]) -> None:
    result = run_pytest("--kernbench-distributed", "no_such_system")
    assert result.ret != 0
