"""torch's own ``_DistTestBase`` on simulated ranks; needs ``expecttest``. Not a part of the suite: it takes minutes.

    python -m tests.torch_backend.torch_own_tests [--gpus] [start step | name ...]

Prints one line per test: passed, skipped by torch's own conditions, or what failed.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

WORLD = 8

CANNOT = {
    "test_get_rank": "counts process ids: simulated ranks share one",
    "test_SyncBatchNorm_process_group": "needs torchvision; fails on gloo, too",
}


def _prepare() -> Any:
    directory = tempfile.mkdtemp()
    for name in ("test_dir", "barrier", "init_dir"):
        Path(directory, name).mkdir()
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(WORLD), TEMP_DIR=directory, MASTER_ADDR="localhost")
    from torch.testing._internal.distributed import distributed_test

    return distributed_test


def main(args: list[str]) -> int:
    tests = _prepare()
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import TEST_SKIPS

    import kernbench

    gpus = "--gpus" in args
    args = [arg for arg in args if arg != "--gpus"]
    local = threading.local()

    def sync(cls: Any, wait_for: int | None = None, timeout: float = 10) -> None:
        """torch's meets by process id in a directory; this one in a store."""
        local.number = getattr(local, "number", 0) + 1
        dist.TCPStore("harness", 1, WORLD, False).barrier(f"barrier {local.number}", wait_for or WORLD)  # type: ignore[call-arg]

    tests.Barrier.sync = classmethod(sync)
    case = type("Case", (tests.TestDistBackend, tests.DistributedTest._DistTestBase), {})
    names = [name for name in dir(case) if name.startswith("test_")]
    if args and args[0].isdigit():
        names = names[int(args[0]) :: int(args[1])]
    elif args:
        names = args
    skips = {skip.exit_code: reason for reason, skip in TEST_SKIPS.items()}

    def body(rank: int, name: str, path: str) -> None:
        if not gpus:
            torch.cuda.is_available = lambda: False
            torch.cuda.device_count = lambda: 0  # type: ignore[assignment]
        for seed in (torch.manual_seed, random.seed, np.random.seed):
            seed(1234)
        test = case(name)
        test.rank, test.file_name = rank, path
        timeout = timedelta(seconds=tests.CUSTOM_PG_TIMEOUT.get(name, tests.default_pg_timeout))
        dist.init_process_group("gloo", init_method=test.init_method, world_size=WORLD, rank=rank, timeout=timeout)
        test._barrier()
        try:
            getattr(test, name)()
        except unittest.SkipTest:
            sys.exit(TEST_SKIPS["generic"].exit_code)
        test._barrier()
        dist.destroy_process_group()

    failed = 0
    for name in names:
        try:
            with kernbench.simulate() as ctx:
                ctx.multiprocessing.spawn(body, args=(name, tempfile.mktemp()), nprocs=WORLD)
            outcome = "passed"
        except kernbench.SpawnException as error:
            codes = {getattr(cause, "code", None) for cause in error.errors.values()}
            if codes <= set(skips):
                outcome = f"skipped: {skips[codes.pop()]}"  # type: ignore[index]
            elif name in CANNOT:
                outcome = f"cannot: {CANNOT[name]}"
            else:
                failed += 1
                outcome = f"FAILED: {next(iter(error.errors.items()))}".replace("\n", " ")[:300]
        print(f"{name}: {outcome}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
