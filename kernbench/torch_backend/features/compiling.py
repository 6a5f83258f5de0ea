"""``torch.compile`` inside ranks (ADR 0086).

Dynamo compiles what a rank that works on the CPU marks, beneath the mode that records: the operations of the compiled graph
are seen when they run. Inductor's C++ would not be: its backend is ``aot_eager`` here. What a rank does on a simulated GPU
runs operation by operation, because autograd refuses to trace tensors that say ``cuda`` where there is no accelerator.

Dynamo keeps tables by function of what torch's names mean; inside a simulation some of the names are ours. So the tables are
made anew for it, and again after it.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from kernbench.torch_backend.gpu.devices import current_device
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.relies_on import Reliance

MODULE = "torch._dynamo"

_NOT_TRACED = (
    "callable_module", "ccl", "cost", "plugins", "runtime_api", "scheduler", "sim_engine", "topology", "torch_backend",
    "trace", "triton_engine",
)  # fmt: skip
"""Parts of kernbench that run below a rank's calls."""

_LIMITS = ("recompile_limit", "accumulated_recompile_limit")
"""How often Dynamo compiles one function: the ranks of a process share the functions of what they import."""

_RANKS = 1024


RELIES_ON = (
    Reliance("torch._dynamo.trace_rules", "its tables of what names mean are made anew", has=("add", "clear_lru_cache")),
    Reliance("torch._dynamo.variables.torch.TorchInGraphFunctionVariable._get_handlers", "this one, too", has=("cache_clear",)),
    Reliance(
        "torch._dynamo.eval_frame.set_fullgraph_compiled_frame_count", "a rank on a GPU is not told that nothing was compiled",
        looked_up_by=("torch._dynamo.eval_frame",),
    ),
    Reliance(
        "torch._dynamo.config._config", "it holds the defaults of Dynamo's settings",
        holds=lambda config: all(isinstance(config[name].default, int) for name in _LIMITS),
    ),
    Reliance(
        "torch._TorchCompileInductorWrapper.__call__", "what it makes of a graph is what `torch.compile` runs",
        parameters=("self", "model_", "inputs_"),
    ),
    Reliance("torch._dynamo.backends.debugging.aot_eager", "it runs instead", parameters=("gm", "fake_tensor_inputs")),
    Reliance("torch._inductor.config.cpu_backend", "it says whether Inductor writes Triton kernels for the CPU"),
)  # fmt: skip


def install(patches: Patches, module: Any) -> None:
    """Let Dynamo step over kernbench, and know the names of torch as they are in the simulation."""
    rules = sys.modules["torch._dynamo.trace_rules"]
    for part in _NOT_TRACED:
        name = f"kernbench.{part}"
        if name not in _told:
            rules.add(name)
            _told.add(name)
    config: Any = sys.modules["torch._dynamo.config"]
    for name in _LIMITS:
        entry = config._config[name]
        patches.set(entry, "default", entry.default * _RANKS)
    stock_count = module.eval_frame.set_fullgraph_compiled_frame_count

    def count(new: int) -> int:
        compiled: int = stock_count(new)
        device = current_device()
        return 1 if compiled == 0 and device is not None and device.host.uses_gpu else compiled

    patches.set(module.eval_frame, "set_fullgraph_compiled_frame_count", count)
    forget_names()


_told: set[str] = set()


def install_backend(patches: Patches) -> None:
    """Let Inductor's graphs run as ``aot_eager``'s do, unless it writes Triton kernels for CPU tensors (ADR 0029)."""
    wrapper: Any = torch._TorchCompileInductorWrapper
    stock = wrapper.__call__

    def call(self: Any, graph: Any, inputs: Any, **kwargs: Any) -> Any:
        inductor: Any = sys.modules.get("torch._inductor.config")
        if current_device() is None or (inductor is not None and inductor.cpu_backend == "triton"):
            return stock(self, graph, inputs, **kwargs)
        from torch._dynamo.backends.debugging import aot_eager

        return aot_eager(graph, inputs)

    patches.set(wrapper, "__call__", call)


def forget_names() -> None:
    """Let Dynamo look torch's names up anew."""
    rules: Any = sys.modules.get("torch._dynamo.trace_rules")
    variables: Any = sys.modules.get("torch._dynamo.variables.torch")
    if rules is not None:
        rules.clear_lru_cache()
    if variables is not None:
        variables.TorchInGraphFunctionVariable._get_handlers.cache_clear()
