"""Same program, same seed: the same bytes, whatever the hash seed, the isolation, and how busy the host is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import hashlib, sys, threading
import kernbench

def worker(rank, ctx):
    groups = [ctx.distributed.new_group([r for r in range(6) if r % 2 == p]) for p in range(2)]
    x = ctx.randn(5000)
    for k in range(3):
        y = x * 2
        a = ctx.distributed.all_reduce(x, op="avg", async_op=True)
        y = y.cos()
        b = ctx.distributed.all_reduce(y, group=groups[rank % 2], async_op=True)
        a.wait(), b.wait()
        if k == rank % 3:
            y.sum().item()
    digest.update(x.numpy().tobytes() + y.numpy().tobytes())

digest = hashlib.sha256()
stop = []
def spin():
    while not stop: pass

with kernbench.simulate(seed=3, policy="random") as ctx:
    if "busy" in sys.argv:  # now that all is imported: beside a spinning thread, Python needs a minute to import torch
        threading.Thread(target=spin, daemon=True).start()
    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=6, isolation=sys.argv[1])
    for record in ctx.engine.op_log.records():
        digest.update(repr(record).encode())
stop.append(1)
print(digest.hexdigest())
"""


def digest(*arguments, hash_seed="0"):
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(root)},
        capture_output=True, text=True, check=True, timeout=250,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.mark.parametrize("arguments", [("greenlet",), ("carrier", "busy")], ids=" ".join)
def test_timeline_and_values_are_the_same_to_the_byte(arguments):
    assert digest(*arguments, hash_seed="4242") == digest("greenlet")
