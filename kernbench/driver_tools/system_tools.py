"""The tools of a system's driver, as :class:`~kernbench.torch_backend.environment.DriverTools` has them."""

from __future__ import annotations

from collections.abc import Mapping

from kernbench.driver_tools import inventory, nvidia_smi, nvml
from kernbench.topology import Topology
from kernbench.torch_backend.patches import Patches


class SystemTools:
    """Those of machines with the GPUs of ``topology``: AMD's have none of them."""

    def __init__(self, topology: Topology) -> None:
        self._has_smi = inventory.has_smi(topology)

    def install(self, patches: Patches) -> None:
        """Let ranks load NVML."""
        nvml.install(patches)

    def search_path(self, path: str) -> str:
        """``PATH`` of a rank for that of main: ``nvidia-smi`` is found first."""
        return nvidia_smi.on_path(path) if self._has_smi else path

    def variables_of_children(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What else the environment of a process says that the current rank starts with these variables."""
        return inventory.variables_of_children(environ)
