"""Environment variables of what a run's program starts: processes that may use a simulated GPU."""

from __future__ import annotations

from collections.abc import Mapping

from kernbench.runtime_api.node_variables import variables_of
from kernbench.topology import Topology
from kernbench.torch_backend.gpu.device.software_versions import cuda_version
from kernbench.torch_backend.gpu.device.visible_devices import NodeGpus
from kernbench.torch_backend.gpu.names.cuda_names import properties_of


def child_variables(topology: Topology, environ: Mapping[str, str]) -> dict[str, str]:
    """Those that say what GPUs a node of ``topology`` has, besides the variables ``environ``."""
    return variables_of(NodeGpus.of(topology), environ, vars(properties_of(topology)), cuda_version(topology))
