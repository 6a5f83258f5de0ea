"""Steps of whole programs on one GPU, a real one or a simulated one, by the same program: time, the host's share, memory.

    python -m kernbench.programs.gpu_steps.timed --out real.json  # where there is a GPU
    kernbench run --no-data --system dgx_h100 --nproc-per-node 1 -m kernbench.programs.gpu_steps.timed --out simulated.json
    python -m kernbench.benches.gpu_compare --steps real.json simulated.json

A step's time is the median of those between events, after some that are not counted; the host's is what it takes to ask for
a step while the GPU is behind. Memory is at its peak in a step. ``phases`` are the host's time for each phase of a step that
trains, begun with an idle device. Triton's kernels are timed in a graph of twenty. It needs torch and Triton alone.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from kernbench.programs.gpu_clock import between, captured, events, names_of, of_replays
from kernbench.programs.gpu_steps import judges, language, others, triton_kernels, vision
from kernbench.programs.gpu_steps.program import Step, TimedProgram, phases

SETS: dict[str, Callable[[], Iterator[TimedProgram]]] = {
    "language": language.programs,
    "vision": vision.programs,
    "others": others.programs,
    "judges": judges.programs,
    "triton": triton_kernels.programs,
    "compiled": language.compiled_programs,
}
"""Programs by the name of their set."""


def timed(step: Step, warm: int, steps: int) -> dict[str, float]:
    """Seconds of a step, ``seconds``, and of the host for it, ``host``; both medians."""
    for _ in range(warm):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    marks, asked = events(steps + 1), []
    marks[0].record()
    for mark in marks[1:]:
        began = time.perf_counter()
        step()
        asked.append(time.perf_counter() - began)
        mark.record()
    return {"seconds": between(marks), "host": statistics.median(asked)}


def host_of_phases(step: Step, steps: int) -> dict[str, float]:
    """Seconds of the host for each phase of a step that trains, which begins with an idle device; medians."""
    taken: dict[str, list[float]] = {}
    running, began = "", 0.0

    def entered(phase: str) -> None:
        nonlocal running, began
        if running:
            taken.setdefault(running, []).append(time.perf_counter() - began)
        torch.cuda.synchronize()
        running, began = phase, time.perf_counter()

    with phases(entered):
        for _ in range(steps):
            step()
    return {phase: statistics.median(each) for phase, each in taken.items()}


def in_a_row(step: Step, count: int) -> dict[str, float]:
    """Seconds of a kernel, of ``count`` in a row that are replayed from a graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    return {"seconds": of_replays(captured(step, count, stream), 3) / count}


def kernels_of(step: Step) -> dict[str, tuple[int, float]]:
    """How often each kernel runs in a step, and its seconds in all, as torch's profiler has them."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
        torch.cuda.synchronize()
    return {each.key: (each.count, each.self_device_time_total * 1e-6) for each in profile.key_averages()}


def _case(program: TimedProgram, steps: int, kernels: bool) -> dict[str, Any]:
    case: dict[str, Any] = {"group": program.group, "name": program.name}
    torch.manual_seed(0)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    try:
        step = program.make()
        case |= in_a_row(step, 20) if program.group == "triton" else timed(step, 4, steps)
        case["allocated"] = torch.cuda.max_memory_allocated() - before
        case["reserved"] = torch.cuda.max_memory_reserved()
        if "training" in program.group:
            case["phases"] = host_of_phases(step, steps)
        if kernels:
            case["kernels"] = kernels_of(step)
    except Exception as error:  # what one program meets is that program's
        case["error"] = f"{type(error).__name__}: {error}"[:600]
    return case


def main() -> None:
    """Time programs, and write JSON: ``device``, ``torch``, ``cases``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="JSON file to write")
    parser.add_argument("--sets", type=names_of(SETS), default=list(SETS), help=f"by commas: {', '.join(SETS)}")
    parser.add_argument("--only", default="", help="programs with this in their names")
    parser.add_argument("--steps", type=int, default=10, help="that are counted")
    parser.add_argument("--kernels", action="store_true", help="also each kernel's time in a step, by torch's profiler")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no program is begun")
    args = parser.parse_args()
    torch.cuda.set_device(0)
    began, cases = time.perf_counter(), []
    for program in itertools.chain.from_iterable(SETS[name]() for name in args.sets):
        if args.only not in program.name or time.perf_counter() - began > args.limit:
            continue
        cases.append(case := _case(program, args.steps, args.kernels))
        gc.collect()
        torch.cuda.empty_cache()
        shown = case.get("error") or f"{case['seconds'] * 1e3:.3f} ms"
        print(f"{program.group:10s} {program.name:48s} {shown}", flush=True)
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": cases}
    with open(args.out, "w") as file:
        json.dump(about, file, indent=0)


if __name__ == "__main__":
    main()
