"""Defining operators of compiled libraries with torch."""

from __future__ import annotations

import torch
import torch.library

from kernbench.torch_backend.operations.library_operators import TABLE, LibraryOperator
from kernbench.torch_backend.operations.operators import returned_arguments
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("torch.ops.aten.add.Tensor", "its schema says names and defaults of its arguments", has=("_schema",),
             holds=lambda overload: overload._schema.arguments[2].default_value == 1),
)  # fmt: skip


def define(library: torch.library.Library, namespace: str, schema: str, operator: LibraryOperator) -> None:
    """Define an operator with torch, and in :data:`~kernbench.torch_backend.operations.library_operators.TABLE`.

    Raises:
        ConfigError: its functions do not fit the schema.
        RuntimeError: torch takes no such schema.
    """
    name = schema.partition("(")[0].strip()
    library.define(schema)
    library.impl(name, operator, "CompositeExplicitAutograd")
    packet, _, which = name.partition(".")
    read = getattr(getattr(getattr(torch.ops, namespace), packet), which or "default")._schema
    arguments = [(each.name, each.default_value) for each in read.arguments]
    operator.take(arguments, returned_arguments(read), str(read))
    operator.library = library
    TABLE[operator.name] = operator
