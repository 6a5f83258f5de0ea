"""Times of torch's kernels on one GPU, a real one or a simulated one, by the same program.

    python -m kernbench.programs.gpu_times --out real.json  # where there is a GPU
    kernbench run --no-data --system dgx_h100 -m kernbench.programs.gpu_times --out simulated.json
    python -m kernbench.benches.gpu_compare real.json simulated.json

A case is a call, captured ten times in a CUDA graph that is replayed; its time is the median of the replays, a tenth of
it. So host time is not in it, what fits in the last cache is there, and the gap between kernels of a graph is. Inputs are
random. ``host`` cases are not captured: theirs is what the host takes for a call while the GPU keeps up, in the median of
loops. It needs torch alone.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernbench.programs.gpu_cases.host import host
from kernbench.programs.gpu_cases.images import filters, norms, pools
from kernbench.programs.gpu_cases.indexing import indexing
from kernbench.programs.gpu_cases.inputs import Call, Case, random
from kernbench.programs.gpu_cases.layers import attention, convolutions
from kernbench.programs.gpu_cases.lists import many_tensors
from kernbench.programs.gpu_cases.memory_bound import memory_bound
from kernbench.programs.gpu_cases.products import products
from kernbench.programs.gpu_cases.sequences import awaited, sequences
from kernbench.programs.gpu_cases.small import copies, floors
from kernbench.programs.gpu_clock import captured, names_of, of_replays

SETS: dict[str, tuple[Callable[[], Iterator[Case]], ...]] = {
    "products": (products,),
    "attention": (attention,),
    "convolutions": (convolutions,),
    "memory": (memory_bound, indexing),
    "lists": (many_tensors,),
    "floors": (floors,),
    "images": (filters, norms, pools),
    "sequences": (sequences,),
    "awaited": (awaited,),
    "host": (host,),
    "copies": (copies,),
}
"""Sets of groups of cases, by name."""


_REST = 0.1
"""Seconds of a pause before each case, so that the one before leaves the board at its boost clock."""


def replayed(make: Callable[[], Call], times: int, replays: int) -> float:
    """Seconds of the call that ``make`` gives, from a graph of ``times`` of it.

    All is on one stream: a gradient is computed on the stream of what it is the gradient of, which a capture must know.
    """
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call = make()
        for _ in range(2):
            call()
    torch.cuda.synchronize()
    time.sleep(_REST)
    return of_replays(captured(call, times, stream), replays) / times


def host_seconds(call: Call, times: int, rounds: int) -> float:
    """Seconds of the host for a call, in the median of rounds that begin with an idle device."""
    for _ in range(3):
        call()
    taken = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(times):
            call()
        taken.append((time.perf_counter() - began) / times)
    return statistics.median(taken)


def waited(call: Call, rounds: int) -> float:
    """Seconds from before a call until the device is idle, in the median."""
    call()
    taken = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def sustained(seconds: float, out: list[dict[str, Any]]) -> None:
    """One large product after the other: its rate as the board warms up."""
    left, right = random(8192, 8192), random(8192, 8192)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(50):
            left @ right
        last.record()
        torch.cuda.synchronize()
        each = first.elapsed_time(last) * 1e-3 / 50
        out.append({"group": "sustained", "name": f"bf16 8192 at {time.perf_counter() - began:.2f} s", "seconds": each})


def main() -> None:
    """Time the cases of groups, and write JSON: ``device``, ``torch``, ``cases`` with ``seconds`` or ``error``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="JSON file to write")
    parser.add_argument(
        "--groups", type=names_of(SETS), default=list(SETS), help=f"sets of groups, by commas: {', '.join(SETS)}"
    )
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="seconds after which no further case is begun"
    )
    parser.add_argument(
        "--sustained", type=float, default=0.0, help="seconds of one large product after the other, at the end"
    )
    args = parser.parse_args()
    torch.cuda.set_device(0)
    began = time.perf_counter()
    cases: list[dict[str, Any]] = []
    for group in args.groups:
        for kind, name, make in itertools.chain.from_iterable(each() for each in SETS[group]):
            if time.perf_counter() - began > args.limit:
                break
            case: dict[str, Any] = {"set": group, "group": kind, "name": name}
            try:
                if group == "host":
                    case["seconds"] = host_seconds(make(), 200, 5)
                elif group in ("copies", "awaited"):
                    case["seconds"] = waited(make(), 7)
                else:
                    case["seconds"] = replayed(make, 10, 5)
            except Exception as error:  # what one case meets is that case's
                case["error"] = f"{type(error).__name__}: {error}"[:400]
                with contextlib.suppress(Exception):  # a capture that has failed leaves torch's generator in it
                    torch.cuda.synchronize()
                    fresh = torch.Generator("cuda").graphsafe_get_state()
                    torch.cuda.default_generators[0].graphsafe_set_state(fresh)
            cases.append(case)
            del make
    if args.sustained:
        sustained(args.sustained, cases)
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": cases}
    with open(args.out, "w") as file:
        json.dump(about, file, indent=0)
    failed = [case for case in cases if "error" in case]
    print(f"{len(cases)} cases, {len(failed)} failed, {time.perf_counter() - began:.1f} s")
    for case in failed:
        print("  ", case["group"], case["name"], case["error"][:160])


if __name__ == "__main__":
    main()
