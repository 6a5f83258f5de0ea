"""What the autotuners of this process chose, as plain data."""

from __future__ import annotations

import atexit
import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kernbench.autotune import finder
from kernbench.autotune.finder import FoundAutotuner, base_function, home_of
from kernbench.output_files import write_file

_log = logging.getLogger(__name__)

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")

Row = dict[str, Any]


def collect_autotune_configs() -> list[Row]:
    """One row per choice of every autotuner alive: ``{kernel, module, module_fqn, key, config}``.

    ``module`` is the last part of the module's name, ``module_fqn`` all of it; ``key`` maps the autotuner's own key
    names, then ``dtypes``, to the values it was tuned for; ``config`` is what is passed to the launch, with num_warps,
    num_stages and num_ctas.
    """
    return [row for found in finder.find_autotuners() for row in rows_of(found)]


def rows_of(found: FoundAutotuner) -> list[Row]:
    """The choices of one autotuner."""
    tuner = found.tuner
    module = home_of(tuner) or found.module
    kernel = str(getattr(base_function(tuner), "__name__", found.name))
    return [
        {
            "kernel": kernel,
            "module": module.rpartition(".")[2],
            "module_fqn": module,
            "key": label_key(key, getattr(tuner, "keys", None) or []),
            "config": config_row(config),
        }
        for key, config in list(tuner.cache.items())
    ]


def label_key(key: Any, names: Sequence[str]) -> Row:
    """``(512, 1024, "torch.float16")`` as ``{"M": 512, "N": 1024, "dtypes": ["torch.float16"]}``.

    Triton appends the tensors' element types to the values of its key names. Names that do not fit the values are left
    out, so that no value stands under a wrong one.
    """
    values = list(key) if isinstance(key, (tuple, list)) else [key]
    dtypes: list[str] = []
    while values and isinstance(values[-1], str) and values[-1].startswith("torch.") and len(values) > len(names):
        dtypes.insert(0, values.pop())
    labels = list(names) if len(names) == len(values) else [f"key_{at}" for at in range(len(values))]
    return {**{name: _plain(value) for name, value in zip(labels, values, strict=True)}, "dtypes": dtypes}


def config_row(config: Any) -> Row:
    """A ``triton.Config`` as what it passes to the launch."""
    row = {name: _plain(value) for name, value in dict(config.kwargs).items()}
    options = {name: getattr(config, name, None) for name in OPTIONS}
    return row | {name: value for name, value in options.items() if value is not None}


def _plain(value: object) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def write_report(path: str | Path, rows: list[Row] | None = None) -> int:
    """Write ``rows`` (default: :func:`collect_autotune_configs`) as JSON, whole or not at all. Returns their number."""
    rows = collect_autotune_configs() if rows is None else rows
    write_file(path, json.dumps(rows, indent=2) + "\n")
    return len(rows)


def report_at_exit(path: str | Path) -> None:
    """Write the report when this process ends."""
    atexit.register(_quietly, lambda: write_report(path))


class AutotuneCallback:
    """Reports once per run what the autotuners chose; to be called after every step of a training loop.

    The kernels of a program are tuned in its first steps. If there is nothing after ``give_up_after`` steps there will be
    nothing, and it stops looking. It never raises into the loop that calls it.
    """

    def __init__(self, report: Callable[[list[Row]], None], *, give_up_after: int = 5) -> None:
        self._report = report
        self._steps_left = give_up_after
        self.done = False

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        """Look, and report if there is something. Arguments are ignored, so that any trainer's hook fits."""
        if self.done:
            return
        self._steps_left -= 1
        rows = _quietly(collect_autotune_configs) or []
        if rows:
            self.done = True
            _quietly(lambda: self._report(rows))
        elif self._steps_left <= 0:
            self.done = True

    __call__ = on_step_end


def _quietly(work: Callable[[], object]) -> Any:
    try:
        return work()
    except Exception:
        _log.debug("collecting autotuned configs failed", exc_info=True)
        return None
