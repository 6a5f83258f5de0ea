"""Configs of Triton's autotuners: what they chose, and what they should try first. See ``docs/autotune.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.autotune.collect import AutotuneCallback, collect_autotune_configs, report_at_exit, write_report
from kernbench.autotune.finder import FoundAutotuner, find_autotuners
from kernbench.lazy_names import lazily

if TYPE_CHECKING:
    from kernbench.autotune.model import ConfigModel as ConfigModel
    from kernbench.autotune.model import OccupancyRoofline as OccupancyRoofline
    from kernbench.autotune.rank import Ranked as Ranked
    from kernbench.autotune.rank import rank_configs as rank_configs
    from kernbench.autotune.seeds import prune_from as prune_from
    from kernbench.autotune.seeds import seeded as seeded
    from kernbench.autotune.tune import tune as tune

# Collecting must not import the simulator into a training job; ranking needs it.
_HOMES = {
    "ConfigModel": ".model",
    "OccupancyRoofline": ".model",
    "Ranked": ".rank",
    "rank_configs": ".rank",
    "prune_from": ".seeds",
    "seeded": ".seeds",
}

__all__ = [
    "AutotuneCallback",
    "ConfigModel",
    "FoundAutotuner",
    "OccupancyRoofline",
    "Ranked",
    "collect_autotune_configs",
    "find_autotuners",
    "prune_from",
    "rank_configs",
    "report_at_exit",
    "seeded",
    "tune",
    "write_report",
]

__getattr__ = lazily(__name__, _HOMES)
