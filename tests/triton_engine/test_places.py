"""Which file an error of a kernel names."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import kernbench

SOURCE = """
import triton
import triton.language as tl

@triton.jit
def written(x, N: tl.constexpr):
    tl.store(x + tl.arange(0, N), 1.0)
"""


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_of_files_with_one_kernel_each_error_names_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's cache has one entry for both: it knows a kernel by its text and its line."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("place_wrong", "place_right"):
        path = tmp_path / f"{name}.py"
        path.write_text(SOURCE)
        module = _module(path)
        monkeypatch.delitem(sys.modules, name)
        with kernbench.simulated_gpu("dgx_h100"):
            x = torch.zeros(4, device="cuda")
            with pytest.raises(kernbench.MemoryAccessError, match=rf"{name}\.py:7"):
                module.written[(1,)](x, 8)
