"""How a published row is run here: which program of the package, on which system, with which arguments.

A row of the table gives a :class:`Job`. What a source leaves open is decided here, once, by what its code did at that time;
nothing depends on a single row.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from kernbench.validation.end_to_end.published import Published


class Job(NamedTuple):
    """A run of ``kernbench run --no-data``.

    Attributes:
        program: module in ``kernbench.programs``.
        arguments: of it.
        system: shipped system.
        gpus: ranks, in whole nodes of eight; one GPU is part of a node.
    """

    program: str
    arguments: tuple[str, ...]
    system: str
    gpus: int


_STEPS = ("--steps", "2")
"""The first step makes the optimizer's state; the second is as all that follow."""


def job_of(row: Published) -> Job:
    """How ``row`` is run."""
    job = _SOURCES[row.source](row)
    return job._replace(arguments=(*job.arguments, *_STEPS))


def _torchtitan(row: Published) -> Job:
    """torchtitan of December 2024: eager PyTorch had no kernel of its own for RMSNorm then, AdamW went list by list, and
    attention was FlashAttention-2's.

    Float8 is what its docs/float8.md (9dec370) says to run: weights are gathered in float8 too, their scales found at once.
    """
    arguments = [
        "--model", "8B", "--batch", str(row.batch), "--seq", str(row.seq), "--checkpointing", row.checkpointing,
        "--norm", "composed", "--optimizer", "foreach", "--attention", "flash", *(["--compile"] if row.compiled else []),
        *(["--float8", "gathered"] if "float8" in row.dtype else []),
    ]  # fmt: skip
    return Job("llama", tuple(arguments), "h100_96gb", row.gpus)


_MPT_SYSTEMS = {"H100 80GB BF16": "dgx_h100", "A100 80GB": "dgx_a100_roce", "A100 40GB": "dgx_a100_40gb_roce"}


def _llm_foundry(row: Published) -> Job:
    """llm-foundry: the table of A100s with 40 GB is of the spring of 2023 (torch 1.13), the others of that autumn."""
    pure = row.parallelism.endswith("PURE")
    arguments = (
        "--model", row.model.removeprefix("MPT-"), "--microbatch", str(row.batch), "--accumulate", str(row.accumulate),
        "--seq", str(row.seq), "--checkpointing", row.checkpointing, "--reduce", "bfloat16" if pure else "float32",
        "--no-use-orig-params" if pure else "--use-orig-params",
    )  # fmt: skip
    return Job("mpt", arguments, _MPT_SYSTEMS[row.gpu], row.gpus)


def _nanogpt(row: Published) -> Job:
    """nanoGPT's bench.py of 29 December 2022: attention by hand, no fused AdamW, two tables of 50257 tokens."""
    return Job("gpt", ("--batch", str(row.batch), *(["--compile"] if row.compiled else [])), "dgx_a100_40gb", row.gpus)


_LAYERED = re.compile(r"(.*?)(?: \((\d+) layers\))?")
_MODELS = {"Llama 3 70B": "llama3-70b", "Llama 3 405B": "llama3-405b", "Nemotron4 15b": "nemotron4-15b"}


def _megatron(row: Published, system: str, *more: str) -> Job:
    """The same program for all rows with a layout; what its launcher adds is ``more``."""
    found = _LAYERED.fullmatch(row.model)
    assert found is not None
    degrees = [each for name in ("TP", "PP", "CP", "EP") for each in (f"--{name.lower()}", str(row.layout[name]))]
    arguments = (
        "--model", _MODELS[found[1]], *(["--layers", found[2]] if found[2] else []), "--seq", str(row.seq),
        "--micro-batch", str(row.batch), "--global-batch", str(row.global_batch), *degrees, *more,
    )  # fmt: skip
    return Job("megatron", arguments, system, row.gpus)


def _simumax(row: Published) -> Job:
    """Megatron-Core as SimuMax launches it (simu_tools/megatron_scripts, 4dcaae5): gradients in 32 bits, nothing overlapped."""
    return _megatron(row, "dgx_b200")


def _nemo(row: Published) -> Job:
    """NeMo's recipes for performance (nemo/collections/llm/recipes): gradients in 16 bits, reduced beside the passes.

    What they do besides, communication of tensor parallelism beside the product that needs it (``tp_comm_overlap``), is not
    part of the program.
    """
    return _megatron(row, "dgx_h100", "--gradients", "bfloat16", "--overlap-grad-reduce", "--overlap-param-gather")


_SOURCES: dict[str, Callable[[Published], Job]] = {
    "torchtitan": _torchtitan,
    "llm-foundry": _llm_foundry,
    "nanoGPT": _nanogpt,
    "Megatron-Core": _simumax,
    "NeMo": _nemo,
}
