"""``kernbench tune``: rank configs for the launches that a YAML file describes, and write what an autotuner starts from."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kernbench.autotune.rank import Ranked, rank_configs
from kernbench.autotune.seeds import entry, kernel_name
from kernbench.cost.devices import resolve_device
from kernbench.errors import ConfigError
from kernbench.grid import Point, expand, expression, label
from kernbench.input_files import shortened
from kernbench.precompile.arguments import DTYPES
from kernbench.precompile.kernels import importing_within, load_kernel
from kernbench.runtime_api.program_gpus import program_gpus
from kernbench.spec_files import read_spec

DEFAULT_DEVICE = "h100_sxm"

_TENSOR = re.compile(r"(\w+)\[(.*)\]")


class Entry(BaseModel):
    """A kernel and the launches to tune it for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kernel: str = Field(description="the kernel, as package.module:name or path/file.py:name")
    axes: dict[str, list[Any]] = {}
    where: list[str] = []
    arguments: dict[str, Any] = Field(
        description='parameter to "fp16[M, K]", to an expression over the axes, or a number'
    )
    grid: list[Any] = Field(description="one to three expressions over axes, arguments and the config's parameters")
    configs: list[dict[str, Any]] = Field([], description="configs to rank; the autotuner's own if left out")
    key: list[str] = Field([], description="key of the autotuner; its own if left out")


class TuneFile(BaseModel):
    """A YAML file for ``kernbench tune``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    device: str = DEFAULT_DEVICE
    kernels: list[Entry] = Field(description="a list of kernels, each with the launches to tune it for")


@dataclass(frozen=True)
class Tuned:
    """The ranking of one launch: its label, and the entry for the file of seeds."""

    name: str
    ranked: list[Ranked]
    entry: dict[str, object]


def tune(
    spec: str | Path, *, device: Any = None, progress: Callable[[Tuned], None] | None = None
) -> tuple[str, list[Tuned]]:
    """Rank the configs of every launch in a YAML file.

    Args:
        device: instead of the file's: shipped name or YAML path.
        progress: called with each ranking.

    Returns:
        the device's name, and a ranking per launch.

    Raises:
        ConfigError: the file is wrong, or no config of a kernel can run on the device.
    """
    path = Path(spec)
    document = read_spec(path, TuneFile)
    target = device or document.device
    results = []
    for each in document.kernels:
        place, _, name = each.kernel.rpartition(":")
        with importing_within(partial(program_gpus, resolve_device(target))):
            kernel = load_kernel(f"{path.parent / place}:{name}" if place.endswith(".py") else each.kernel)
        key_names = each.key or list(getattr(kernel, "keys", None) or [])
        for point in expand(each.axes, each.where):
            arguments = {
                parameter: _argument(text, point, f"{each.kernel}: {parameter}")
                for parameter, text in each.arguments.items()
            }
            grid = _grid(each, point)
            ranked = rank_configs(kernel, grid, arguments, device=target, configs=each.configs or None)
            tuned = Tuned(f"{kernel_name(kernel)}[{label(point)}]", ranked, entry(kernel, arguments, key_names, ranked))
            results.append(tuned)
            if progress is not None:
                progress(tuned)
    return str(target), results


def _grid(each: Entry, point: Point) -> Callable[[Mapping[str, object]], tuple[int, ...]]:
    def grid(meta: Mapping[str, object]) -> tuple[int, ...]:
        numbers = {name: value for name, value in meta.items() if isinstance(value, (bool, int, float, str))}
        sizes = [_evaluate(size, {**numbers, **point}, f"{each.kernel}: grid") for size in each.grid]
        if wrong := [
            size for size in sizes if isinstance(size, bool) or not isinstance(size, (int, float)) or size < 1
        ]:
            raise ConfigError(f"{each.kernel}: grid: {shortened(wrong[0])}; expected numbers of programs, 1 or more")
        return tuple(map(int, sizes))

    return grid


def _argument(text: object, point: Point, where: str) -> Any:
    """A tensor, or the value of an expression."""
    if not isinstance(text, str):
        return text
    match = _TENSOR.fullmatch(text.strip())
    if not match:
        return _evaluate(text, point, where)
    import torch

    name = str(point.get(match[1], match[1]))
    if name not in DTYPES:
        raise ConfigError(
            f"{where}: no element type {shortened(name)!r}; expected one of {', '.join(DTYPES)}, or an axis of them"
        )
    shape = _evaluate(f"({match[2]},)" if match[2].strip() else "()", point, where)
    try:
        return torch.empty(shape, dtype=getattr(torch, DTYPES[name]))
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: no tensor of shape {shortened(shape)}: {shortened(error, 200)}") from None


def _evaluate(text: object, names: Mapping[str, object], where: str) -> Any:
    if not isinstance(text, str):
        return text
    try:
        return expression(text, names, where)(dict(names))
    except ConfigError as error:
        raise ConfigError(f"{error}; text is quoted twice") from None
