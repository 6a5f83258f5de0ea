"""What the driver relies on in Triton, and what a user may rely on in the driver. Run against every supported version."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kernbench.errors import ConfigError, KernbenchError
from kernbench.triton_engine import activate, active, deactivate, resources, set_target
from kernbench.triton_engine.driver.target import parse_target

from .programs import scale_kernel

SCRIPT = """
import torch, triton, triton.language as tl

@triton.autotune(configs=[triton.Config({"BLOCK": b}) for b in (64, 256)], key=["n"])
@triton.jit
def double(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)

x = torch.ones(1000, device=triton.runtime.driver.active.get_active_torch_device())
double[lambda meta: (triton.cdiv(1000, meta["BLOCK"]),)](x, 1000)
assert (x == 2).all(), x
import sys
print("kernbench.runtime_api" in sys.modules)
"""


def test_a_script_that_never_heard_of_kernbench(tmp_path):
    if not any(e.name == "kernbench" for e in entry_points(group="triton.backends")):
        pytest.skip("kernbench is not installed, so Triton cannot find its entry point")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, "KERNBENCH_TRITON": "1"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "False"


def test_nothing_stays_behind():
    """Nested activation, then the state of before."""
    from triton.backends import backends

    compilers = dict(backends)
    driver = triton.runtime.driver.active
    activate()
    assert active()
    deactivate()
    assert triton.runtime.driver.active is driver
    assert dict(backends) == compilers


@pytest.mark.parametrize("name", ["cuda:80", "cuda:100", "hip:gfx942"])
def test_targets(name):
    set_target(name)
    try:
        assert f"{triton.runtime.driver.active.get_current_target().backend}" == name.split(":")[0]
        x = torch.ones(32)
        scale_kernel[(2,)](x, x, 32, 4.0, BLOCK=16)
        assert (x == 4).all()
    finally:
        set_target(None)


def test_wrong_target_is_explained():
    with pytest.raises(ConfigError, match="cuda:90"):
        parse_target("tpu:v5")


@triton.jit
def staged_kernel(a_ptr, b_ptr, c_ptr, K, N: tl.constexpr):
    i = tl.arange(0, N)
    acc = tl.zeros((N, N), tl.float32)
    for k in range(0, K, N):
        acc = tl.dot(
            tl.load(a_ptr + i[:, None] * K + k + i[None, :]), tl.load(b_ptr + (k + i)[:, None] * N + i[None, :]), acc
        )
    tl.store(c_ptr + i[:, None] * N + i[None, :], acc)


def test_launches_stop_at_ttir_and_resources_compile_in_full():
    a, b, c = torch.randn(64, 128).half(), torch.randn(128, 64).half(), torch.empty(64, 64)
    kernel = staged_kernel[(1,)](a, b, c, 128, N=64, num_warps=4, num_stages=3)
    assert "ptx" not in kernel.asm
    used = resources(kernel)
    assert (used.num_warps, used.num_stages) == (4, 3)
    assert used.registers > 16
    assert used.shared >= 2 * 64 * 64 * 2


def test_later_stages_are_compiled_when_they_are_read():
    a, b, c = torch.randn(64, 128).half(), torch.randn(128, 64).half(), torch.empty(64, 64)
    kernel = staged_kernel[(1,)](a, b, c, 128, N=64, num_warps=4, num_stages=3)
    assert set(kernel.asm) <= {"source", "ttir"}
    assert "tt.dot" in kernel.asm["ttir"]
    assert '"ttg.num-warps" = 4' in kernel.asm["ttgir"]
    assert ".target sm_90" in kernel.asm["ptx"]
    assert kernel.asm["cubin"]
    with pytest.raises(KeyError):
        kernel.asm["no such stage"]


def test_warmup_compiles_in_full_and_what_it_returns_can_be_launched():
    a, b, c = torch.randn(32, 64).half(), torch.randn(64, 32).half(), torch.empty(32, 32)
    kernel = staged_kernel.warmup(a, b, c, 64, N=32, grid=(1,))
    kernel._init_handles()
    assert kernel.n_regs > 0
    kernel[(1, 1, 1)](a, b, c, 64)
    torch.testing.assert_close(c, a.float() @ b.float(), atol=1e-3, rtol=1e-3)


def test_a_kernel_is_loaded_once(monkeypatch):
    from kernbench.triton_engine.driver.resources import Utils

    loaded = []
    load = Utils.load_binary
    monkeypatch.setattr(Utils, "load_binary", staticmethod(lambda *args: loaded.append(args[0]) or load(*args)))
    a, b, c = torch.randn(32, 64).half(), torch.randn(64, 32).half(), torch.empty(32, 32)
    kernel = staged_kernel.warmup(a, b, c, 64, N=32, num_stages=4, grid=(1,))
    for _ in range(3):
        kernel[(1, 1, 1)](a, b, c, 64)
        staged_kernel[(1,)](a, b, c, 64, N=32, num_stages=4)
    assert loaded == ["staged_kernel"]


@pytest.mark.parametrize(("target", "most"), [("cuda:90", 132 * 16), ("hip:gfx942", 304 * 8)])
def test_a_cooperative_grid_that_does_not_fit_is_refused(target, most):
    x = torch.ones(1)
    set_target(target)
    try:
        scale_kernel[(most, 1, 1)](x, x, 1, 2.0, BLOCK=16, num_warps=4, launch_cooperative_grid=True)
        with pytest.raises(RuntimeError, match=f"too many blocks in cooperative launch.*holds {most} of 4 warps"):
            scale_kernel[(most + 1, 1, 1)](x, x, 1, 2.0, BLOCK=16, num_warps=4, launch_cooperative_grid=True)
    finally:
        set_target(None)


def test_launch_hooks_see_every_launch():
    from triton import knobs

    seen = []
    hook = lambda metadata: seen.append(metadata.get()["name"])  # noqa: E731
    knobs.runtime.launch_enter_hook.add(hook)
    try:
        scale_kernel[(1,)](torch.ones(16), torch.ones(16), 16, 1.0, BLOCK=16)
    finally:
        knobs.runtime.launch_enter_hook.remove(hook)
    assert seen == ["scale_kernel"]


def test_empty_grid_runs_nothing():
    x = torch.ones(16)
    scale_kernel[(0,)](x, x, 16, 2.0, BLOCK=16)
    assert (x == 1).all()


@gluon.jit
def gluon_kernel(x_ptr, N: gl.constexpr):
    i = gl.arange(0, N, layout=gl.BlockedLayout([1], [32], [4], [0]))
    gl.store(x_ptr + i, gl.load(x_ptr + i) * 2)


def test_gluon_is_refused_in_words():
    with pytest.raises(KernbenchError, match="A Gluon kernel cannot run here"):
        gluon_kernel[(1,)](torch.ones(128), 128)


def test_ttgir_is_refused_in_words(tmp_path):
    kernel = scale_kernel[(1,)](torch.ones(16), torch.ones(16), 16, 1.0, BLOCK=16)
    path = tmp_path / "scale.ttgir"
    path.write_text(kernel.asm["ttgir"])
    compiled = triton.compile(str(path))
    with pytest.raises(KernbenchError, match="scale_kernel, which begins as TTGIR, cannot run here"):
        compiled[(1, 1, 1)](torch.ones(16), torch.ones(16), 16, 1.0)


def test_a_compiled_kernel_has_one_launcher(monkeypatch):
    """Triton asks for it again at each launch, as there is no module."""
    from kernbench.triton_engine.driver.launcher import Launcher

    made, init = [], Launcher.__init__
    monkeypatch.setattr(Launcher, "__init__", lambda self, *args: (made.append(self), init(self, *args))[1])
    x, out = torch.ones(64), torch.empty(64)
    activate()
    try:
        for _ in range(3):
            scale_kernel[(1,)](x, out, 64, 2.0, BLOCK=64)
    finally:
        deactivate()
    assert len(made) <= 1
