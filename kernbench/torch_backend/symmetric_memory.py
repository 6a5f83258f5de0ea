"""Symmetric memory, which is not simulated yet: every way into it says so, and what to use.

Ways in: the static methods of ``_SymmetricMemory``, through which all of ``torch.distributed._symmetric_memory`` goes, and the
operations ``torch.ops.symm_mem.*``, of which a CPU build has the names only. Questions get an answer: no.

Relies on: ``_group_name_to_store`` of that module.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from kernbench.errors import KernbenchError
from kernbench.torch_backend.patches import Patches

NAMESPACE = "symm_mem"

MODULE = "torch.distributed._symmetric_memory"

WAYS_IN = ("empty_strided_p2p", "rendezvous", "set_backend", "get_mempool_allocator")

ANSWERS = {
    "has_multicast_support": lambda *args, **kwargs: False,
    "is_symm_mem_tensor": lambda *args, **kwargs: False,
    "get_backend": lambda *args, **kwargs: None,
}


def refusal(name: str) -> Any:
    """A function that raises in the place of ``name``."""

    def raises(*args: Any, **kwargs: Any) -> Any:
        raise KernbenchError(
            f"symmetric memory is not simulated yet ({name}): use a collective instead (all_gather_into_tensor, "
            "reduce_scatter_tensor, all_reduce, all_to_all_single), or write the algorithm as a Triton kernel over the "
            "peers' buffers, which `kernbench ccl` runs (docs/ccl_author_guide.md)"
        )

    return raises


def _set_group_info(group_name: str, *args: Any, **kwargs: Any) -> Any:
    """What ``enable_symm_mem_for_group`` calls after it has noted, for the process, that the group is enabled."""
    sys.modules[MODULE]._group_name_to_store.pop(group_name, None)
    refusal("enable_symm_mem_for_group")()


def without_kernel() -> list[str]:
    """The operations of symmetric memory that nothing on this machine computes, ``namespace::name.overload``."""
    has_kernel: Any = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd")
    return [name for name in _operations(MODULE in sys.modules) if not any(has_kernel(name, key) for key in keys)]


@functools.lru_cache(maxsize=2)
def _operations(imported: bool) -> list[str]:
    """All of them; importing the module adds some."""
    everything: Any = torch._C._dispatch_get_all_op_names()
    return sorted(name for name in everything if name.startswith(f"{NAMESPACE}::"))


def install(patches: Patches) -> None:
    """Refuse, for as long as the patches are in place."""
    symmetric: Any = torch._C._distributed_c10d._SymmetricMemory
    for name in WAYS_IN:
        patches.set(symmetric, name, staticmethod(refusal(name)))
    patches.set(symmetric, "set_group_info", staticmethod(_set_group_info))
    for name, answer in ANSWERS.items():
        patches.set(symmetric, name, staticmethod(answer))


def register(library: Any) -> None:
    """Refuse the operations too, for as long as ``library`` (of the namespace ``symm_mem``) lives."""
    for name in without_kernel():
        library.impl(name.partition("::")[2], refusal(name), "CPU")
