"""How long sequences are, without data: SGLang's kernels copy their lengths on the GPU, beside what is not known.

The host has them, too, and its values are those that attention is priced by.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import torch

from kernbench.compiled_operators.stating import is_without_data, know_values


def tell_lengths(module: ModuleType) -> None:
    """Have the metadata of FlashAttention have lengths: ``sglang.srt.layers.attention.flashattention_backend``."""
    backend: Any = getattr(module, "FlashAttentionBackend", None)
    for name in ("init_forward_metadata", "init_forward_metadata_out_graph"):
        method = getattr(backend, name, None)
        if callable(method):
            setattr(backend, name, _telling(method))


def _telling(method: Any) -> Any:
    @functools.wraps(method)
    def init(self: Any, batch: object, *args: Any, **kwargs: Any) -> Any:
        found = method(self, batch, *args, **kwargs)
        lengths = getattr(batch, "seq_lens_cpu", None)
        if lengths is not None and getattr(batch, "spec_info", None) is None and is_without_data():
            _tell(getattr(self.forward_metadata, "cache_seqlens_int32", None), lengths)
        return found

    return init


def _tell(on_gpu: torch.Tensor | None, lengths: torch.Tensor) -> None:
    if on_gpu is None or on_gpu.ndim != 1:
        return
    count = min(len(on_gpu), len(lengths))
    values = torch.ones(len(on_gpu), dtype=torch.int64)  # what fills up a batch is one token long
    values[:count] = lengths[:count]
    know_values(on_gpu, values)
