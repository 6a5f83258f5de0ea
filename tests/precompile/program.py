"""A program that launches the kernels of ``push_pull.py``.

Run as a script with the name of a target, on a driver that loads and runs nothing; or without, on kernbench's engine.
Prints how many kernels were compiled, how many found, how many launches reached the driver.
"""

import sys

import push_pull
import torch
from triton.runtime import driver

from kernbench.precompile import count_compiles
from kernbench.precompile.target import _target_driver
from kernbench.triton_engine import activate

launches = 0


class Utils:
    """The part of a driver that loads binaries."""

    @staticmethod
    def load_binary(name, binary, shared, device):
        return object(), object(), 16, 0, 1024

    @staticmethod
    def get_device_properties(device):
        return {"max_shared_mem": 232448, "multiprocessor_count": 132, "warpSize": 32}


class Launcher:
    """Counts launches."""

    def __init__(self, src, metadata):
        pass

    def __call__(self, *args):
        global launches
        launches += 1


def main(target=""):
    if target:
        only_compiles = type(_target_driver(target))
        launching = type("LaunchingDriver", (only_compiles,), {"utils": Utils, "launcher_cls": Launcher})
        driver.set_active(launching())
    else:
        activate()
    with count_compiles() as count:
        for dtype, worlds in ((torch.float16, (2, 4)), (torch.float32, (2,))):
            for world in worlds:
                for push in (True, False):
                    x, out = torch.zeros(world * 4096, dtype=dtype), torch.zeros(4096, dtype=dtype)
                    push_pull.reduce_kernel[(32,)](x, out, 4096, WORLD=world, PUSH=push, BLOCK=128)
        x, out = torch.zeros(64), torch.zeros(64)
        push_pull.push_copy[(1,)](x, out, BLOCK=64)
        push_pull.pull_copy[(1,)](x, out, BLOCK=64)
    print(count.compiled, count.hits, launches)


if __name__ == "__main__":
    main(*sys.argv[1:])
