"""How long a config takes on a device: what the compiler says it needs, and what the executor counted that it does.

A :class:`ConfigModel` is anything that answers :meth:`~ConfigModel.predict`; :class:`OccupancyRoofline` is the default.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kernbench.cost.kernel_time import Resources, kernel_time
from kernbench.topology.device import DeviceSpec
from kernbench.triton_engine.counts import Counts


@dataclass(frozen=True)
class Prediction:
    """A config on a device.

    Attributes:
        seconds: duration of the launch; infinite if it cannot run there.
        limit: what limits it: ``compute``, ``cache``, ``memory``, ``latency``, ``launch``, or why it cannot run.
        resident: programs that one PE holds at a time.
    """

    seconds: float
    limit: str
    resident: int = 0


class ConfigModel(Protocol):
    """Predicts the duration of a launch of known counts and resources."""

    def predict(self, counts: Counts, resources: Resources, device: DeviceSpec) -> Prediction:
        """The prediction for one launch."""


class OccupancyRoofline:
    """The model of launches in time (:func:`kernbench.cost.kernel_time.kernel_time`): what the runtime asks, too."""

    def predict(self, counts: Counts, resources: Resources, device: DeviceSpec) -> Prediction:
        """The prediction for one launch."""
        found = kernel_time(device, counts, resources)
        return Prediction(found.seconds, found.algorithm, int(found.protocol))
