"""The compiler half of the ``triton.backends`` entry point: it claims no target.

Kernels are compiled by Triton's own backend for the target that the driver reports. Imported by Triton while Triton
itself is being imported, so nothing heavy may be imported here.
"""

from __future__ import annotations

import os
from typing import Any

from triton.backends.compiler import BaseBackend

from kernbench.environment_variables import is_on

if is_on("KERNBENCH_TRITON"):
    # With a real GPU present two drivers would be active, which Triton refuses; the user asked for this one.
    os.environ.setdefault("TRITON_DEFAULT_BACKEND", "kernbench")
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


class KernbenchBackend(BaseBackend):
    """A backend without a target of its own."""

    @staticmethod
    def supports_target(target: object) -> bool:
        return False

    def hash(self) -> str:
        return "kernbench"

    def parse_options(self, options: dict[str, Any]) -> object:
        raise NotImplementedError("kernbench compiles through Triton's own backends")

    def add_stages(self, stages: dict[str, object], options: object, language: object = None) -> None:
        raise NotImplementedError("kernbench compiles through Triton's own backends")

    def load_dialects(self, context: object) -> None:
        raise NotImplementedError("kernbench compiles through Triton's own backends")

    def get_module_map(self) -> dict[str, object]:
        return {}
