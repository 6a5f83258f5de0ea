"""Environment variables that say what GPUs a node has, to processes that may use one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from kernbench.runtime_api import start_up
from kernbench.torch_backend.gpu.device.visible_devices import NodeGpus

GPUS = "KERNBENCH_GPUS"
"""The environment variable that says which GPUs a node has: JSON of :class:`.NodeGpus`."""

PROPERTIES = "KERNBENCH_GPU_PROPERTIES"
"""The environment variable that says what a GPU is: JSON of what ``torch.cuda.get_device_properties`` gives."""

CUDA = "KERNBENCH_CUDA_VERSION"
"""The environment variable that says what ``torch.version.cuda`` is, if the GPUs have CUDA."""


def variables_of(
    gpus: NodeGpus,
    environ: Mapping[str, str],
    properties: Mapping[str, object] | None = None,
    cuda: str | None = None,
) -> dict[str, str]:
    """Environment variables of processes that may use a simulated GPU, besides those that are set in ``environ``. One that is
    to join a simulation has its address, too.

    Args:
        gpus: of a node.
        properties: of a GPU, which processes may ask for before they join.
        cuda: version of CUDA, as above.
    """
    here = str(Path(start_up.__file__).parent)
    path = [here, *(each for each in environ.get("PYTHONPATH", "").split(os.pathsep) if each not in ("", here))]
    told = {PROPERTIES: json.dumps(dict(properties or {}), default=str), **({} if cuda is None else {CUDA: cuda})}
    return {GPUS: json.dumps(gpus), "PYTHONPATH": os.pathsep.join(path), **told}
