"""The tests themselves, with torch's conditions or without, and how an outcome is called."""

from __future__ import annotations

import atexit
import os
import random
import shutil
import sys
import tempfile
import unittest
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

WORLD = 8

PASSED, SKIPPED, FAILED = "passed", "skipped", "FAILED"
RECORD = {
    opened: Path(__file__).parent / f"passes_on_gloo_{'opened' if opened else 'closed'}.txt" for opened in (False, True)
}
"""Names of the tests that gloo passes, with and without the gates open."""

ERROR_CODE = 10
"""Exit code of a process whose test failed; torch's own codes for skips start at 72."""


class Suite:
    """``_DistTestBase`` as a test case.

    Args:
        opened: whether the tests that ask for another backend's name or for GPUs are let in.

    Attributes:
        module: ``torch.testing._internal.distributed.distributed_test``.
        case: the test case's class.
        names: of its tests.
        reasons: of torch's skips, by exit code.
    """

    def __init__(self, *, opened: bool) -> None:
        self.opened = opened
        directory = tempfile.mkdtemp()
        atexit.register(_remove, directory, os.getpid())
        for name in ("test_dir", "barrier", "init_dir"):
            Path(directory, name).mkdir()
        self.variables = {
            "BACKEND": "gloo",
            "WORLD_SIZE": str(WORLD),
            "TEMP_DIR": directory,
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": "29517",
        }
        os.environ.update(self.variables)
        from torch.testing._internal import common_distributed, common_utils

        if opened:
            common_utils.skip_but_pass_in_sandcastle_if = _let_in
            for name in ("skip_if_lt_x_gpu", "nccl_skip_if_lt_x_gpu", "requires_nccl_version"):
                setattr(common_distributed, name, _let_in)
            common_distributed.skip_if_no_gpu = lambda test: test
        from torch.testing._internal.distributed import distributed_test

        self.module: Any = distributed_test
        base: Any = distributed_test.DistributedTest._DistTestBase
        self.case: Any = type("Case", (distributed_test.TestDistBackend, base), {})
        self.names = [name for name in dir(self.case) if name.startswith("test_")]
        self.reasons = {skip.exit_code: reason for reason, skip in common_distributed.TEST_SKIPS.items()}

    def run(self, rank: int, name: str, rendezvous: str) -> None:
        """One rank's part of one test, as torch's ``TestDistBackend._run`` does it."""
        import numpy as np
        import torch
        import torch.distributed as dist

        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(1234)
        test = self.case(name)
        test.rank, test.file_name = rank, rendezvous
        seconds = self.module.CUSTOM_PG_TIMEOUT.get(name, self.module.default_pg_timeout)
        dist.init_process_group(
            "gloo", init_method=test.init_method, world_size=WORLD, rank=rank, timeout=timedelta(seconds=seconds)
        )
        test._barrier()
        method = getattr(test, name)
        if getattr(method, "__unittest_skip__", False):
            sys.exit(86)
        try:
            method()
        except unittest.SkipTest:
            sys.exit(86)
        test._barrier()
        dist.destroy_process_group()

    def outcome(self, codes: set[Any], text: str = "") -> str:
        """What the exit codes of the ranks mean together."""
        if codes <= {0, None}:
            return PASSED
        bad = codes - {0, None}
        if bad <= set(self.reasons):
            return f"{SKIPPED}: {self.reasons[bad.pop()]}"
        return f"{FAILED}: {text}"


def _remove(directory: str, owner: int) -> None:
    if os.getpid() == owner:  # and no process that it has forked
        shutil.rmtree(directory, ignore_errors=True)


def _let_in(*conditions: Any) -> Callable[[Any], Any]:
    return lambda test: test
