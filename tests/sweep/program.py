"""A program for the tests of sweeps. It notes in a file, if told, that it ran."""

import os
import time


def run(ctx, n, dtype="f32", world_size=4, system="", log="", slow=0.0):
    if log:
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {n}\n")
    time.sleep(slow)
    if n == 13:
        raise ValueError("thirteen\nis not a size")
    sums = []

    def worker(rank, torch):
        x = torch.full((n,), float(rank + 1))
        torch.distributed.all_reduce(x)
        sums.append(x.sum().item())

    ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=world_size)
    return {"sum": sums[0], "n": n, "name": ctx.topology.system.name}
