"""A file of ranked configs, and autotuners that start from it.

    @kernbench.autotune.seeded("tuned.json", keep=3)
    @triton.autotune(configs=..., key=["M", "N", "K"])
    @triton.jit
    def matmul_kernel(...): ...

Instead of all its configs, the autotuner measures the ``keep`` best of the file for the key at hand, or for the nearest
key of the same element types. What the file does not know is tuned as always.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import inf, log2
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from kernbench.autotune.collect import config_row, label_key
from kernbench.autotune.finder import base_function
from kernbench.autotune.rank import Ranked
from kernbench.errors import ConfigError
from kernbench.input_files import exists, read_json, shown_path
from kernbench.output_files import write_file
from kernbench.spec_files import check_json

FORMAT = 1
TunerT = TypeVar("TunerT")


class _Config(BaseModel):
    config: dict[str, Any]


class _Entry(BaseModel):
    """One ranking: of a kernel, for a key."""

    kernel: str
    key_names: list[str]
    key: dict[str, Any]
    configs: list[_Config]


class _File(BaseModel):
    """A file of rankings."""

    entries: list[_Entry]


def entry(
    kernel: object, arguments: Mapping[str, object], key_names: Sequence[str], ranked: Sequence[Ranked]
) -> dict[str, Any]:
    """One ranking as it stands in a file."""
    return {
        "kernel": kernel_name(kernel),
        "key_names": list(key_names),
        "key": key_of(arguments, key_names),
        "configs": [
            {"config": dict(each.config), "seconds": each.seconds, "limit": each.limit}
            for each in ranked
            if each.seconds < inf
        ],
    }


def write_seeds(path: str | Path, device: str, entries: Sequence[Mapping[str, object]]) -> None:
    """Write a file of rankings, whole or not at all."""
    text = json.dumps({"format": FORMAT, "device": device, "entries": list(entries)}, indent=1)
    write_file(path, text + "\n")


def read_seeds(path: str | Path) -> list[dict[str, object]]:
    """The rankings of a file. Raises ConfigError if it is none."""
    document = read_json(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ConfigError(
            f"{shown_path(path)}: expected a file of tuned configs, format {FORMAT}, as `kernbench tune` writes it"
        )
    check_json(document, _File, path)
    return list(document["entries"])


def kernel_name(kernel: object) -> str:
    """``module.function`` of a kernel, whatever wraps it. The module of a script is its file's name."""
    function = base_function(kernel)
    module = function.__module__
    if module == "__main__" or module.startswith("_kernbench_file_"):
        module = Path(function.__code__.co_filename).stem
    return f"{module}.{function.__qualname__}"


def key_of(arguments: Mapping[str, object], key_names: Sequence[str]) -> dict[str, Any]:
    """The autotuner's key of a launch, labelled: values of its key names, and the element types of the tensors."""
    values = [arguments[name] for name in key_names if name in arguments]
    names = [name for name in key_names if name in arguments]
    dtypes = [str(value.dtype) for value in arguments.values() if hasattr(value, "dtype")]
    return label_key((*values, *dtypes), names)


Prune = Callable[..., list[Any]]


def prune_from(path: str | Path, kernel: str, *, keep: int = 1) -> Prune:
    """A function for ``prune_configs_by={"early_config_prune": ...}`` that keeps the file's best configs.

    Args:
        kernel: as :func:`kernel_name` has it.
        keep: how many of the best to measure.
    """
    entries = [each for each in read_seeds(path) if each["kernel"] == kernel]

    def prune(configs: list[Any], named_args: Mapping[str, object], **kwargs: object) -> list[Any]:
        arguments = {**named_args, **kwargs}
        best = _nearest(entries, arguments)
        if best is None:
            return configs
        wanted = [each["config"] for each in best["configs"]]
        by_row = {_row_key(config_row(config)): config for config in configs}
        found = [by_row[_row_key(row)] for row in wanted if _row_key(row) in by_row]
        return found[:keep] or configs

    return prune


def seeded(path: str | Path, *, keep: int = 1) -> Callable[[TunerT], TunerT]:
    """Decorate an autotuner, so that it measures the ``keep`` best configs of the file only.

    A pruning function that the autotuner has is applied first. A file that does not exist changes nothing, so that a
    program runs where no tuning has been done yet.
    """

    def decorate(tuner: TunerT) -> TunerT:
        if not exists(path):
            return tuner
        own = getattr(tuner, "early_config_prune", None)
        seeds = prune_from(path, kernel_name(tuner), keep=keep)

        def prune(configs: list[Any], named_args: Mapping[str, object], **kwargs: object) -> list[Any]:
            left = own(configs, named_args, **kwargs) if own is not None else configs
            return seeds(left, named_args, **kwargs)

        tuner.early_config_prune = prune  # type: ignore[attr-defined]
        return tuner

    return decorate


def _row_key(row: Mapping[str, object]) -> str:
    return json.dumps(row, sort_keys=True)


def _nearest(entries: Sequence[Mapping[str, Any]], arguments: Mapping[str, object]) -> Mapping[str, Any] | None:
    """The ranking of the nearest key: equal in everything that is no size, sizes compared by their ratio."""
    scored = [(_distance(each["key"], key_of(arguments, each["key_names"])), at) for at, each in enumerate(entries)]
    distance, at = min(scored, default=(inf, 0))
    return entries[at] if distance < inf else None


def _distance(one: Mapping[str, object], other: Mapping[str, Any]) -> float:
    if one.keys() != other.keys():
        return inf
    total = 0.0
    for name, value in one.items():
        mine, theirs = value, other[name]
        if mine == theirs:
            continue
        sizes = all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in (mine, theirs))
        if not sizes:
            return inf
        total += abs(log2(mine / theirs))
    return total
