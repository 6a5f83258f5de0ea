"""``CUDA_VISIBLE_DEVICES``: which GPUs of its node a process sees, and in which order."""

from __future__ import annotations

import os

from kernbench.errors import ConfigError

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_gpus(count: int, value: str | None = None) -> tuple[int, ...]:
    """The GPUs that a process sees of the ``count`` of its node; ``value``: of the variable, by default this process's.

    As the CUDA programming guide has it ("CUDA environment variables"): unset, all; else those that are listed before the first
    that does not exist. Raises :class:`ConfigError` for names (``GPU-...``), which simulated GPUs have not.
    """
    if value is None:
        value = os.environ.get(VARIABLE)
    if value is None:
        return tuple(range(count))
    found: list[int] = []
    for part in value.split(","):
        word = part.strip()
        if word.startswith(("GPU-", "MIG-")):
            raise ConfigError(f"{VARIABLE}={value}: simulated GPUs have no such names: give their numbers")
        if not word.isdigit() or int(word) >= count:
            break
        if int(word) in found:
            return ()  # CUDA sees none then
        found.append(int(word))
    return tuple(found)
