"""torch's own tables of operators and modules with samples of their arguments."""

from __future__ import annotations

from typing import Any

import torch


def operators() -> Any:
    """``op_db``. To be called in a rank with a GPU: the tables say once what a GPU has."""
    from torch.testing._internal.common_methods_invocations import op_db

    _allow_settings()
    return op_db


def modules() -> Any:
    """``module_db``, likewise."""
    from torch.testing._internal.common_modules import module_db

    _allow_settings()
    return module_db


def _allow_settings() -> None:
    """The tables' helpers forbid to assign to ``torch.backends.cudnn.enabled`` and the like in the process from then on."""
    vars(torch.backends)["__allow_nonbracketed_mutation_flag"] = True
