"""DeepSpeed's fused Adam, as DeepSpeed finds it, and by its definition."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import kernbench
from kernbench.advice import advice_for
from kernbench.compiled_operators import deepspeed
from kernbench.stand_ins import standing_in

STEPS = 4
OPTIONS = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}


PACKAGE = {
    "__init__.py": "",
    "git_version_info.py": "installed_ops, torch_info, accelerator_name = {'fused_adam': False}, {}, ''\n",
    "ops/__init__.py": "",
    "ops/adam/__init__.py": (
        "from deepspeed.git_version_info import installed_ops\n"
        "def load():\n"
        "    import importlib\n"
        "    if installed_ops['fused_adam']:\n"
        "        return importlib.import_module('deepspeed.ops.adam.fused_adam_op')\n"
        "    from torch.utils.cpp_extension import load\n"
        "    return load('fused_adam', sources=[__file__.replace('__init__.py', 'adam.cu')], build_directory='.')\n"
    ),
    "ops/adam/adam.cu": "int f() { return 1; }\n",
}
"""What a package that builds its kernels when they are wanted, as DeepSpeed does, consists of."""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in PACKAGE.items():
        place = tmp_path / "deepspeed" / name
        place.parent.mkdir(exist_ok=True, parents=True)
        place.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield
    for name in [each for each in sys.modules if each.partition(".")[0] == "deepspeed"]:
        del sys.modules[name]


@pytest.mark.parametrize("decoupled", [True, False])
def test_its_steps_are_adams(decoupled: bool, package: None) -> None:
    drawn = torch.Generator().manual_seed(0)
    start, *gradients = (torch.randn(5, 3, generator=drawn) for _ in range(STEPS + 1))
    found = []

    def worker(rank: int) -> None:
        parameter, first, second = start.cuda(), torch.zeros(5, 3, device="cuda"), torch.zeros(5, 3, device="cuda")
        noop = torch.zeros(1, dtype=torch.int32, device="cuda")
        kernels = importlib.import_module("deepspeed.ops.adam").load()
        for step, gradient in enumerate(gradients, 1):
            lists = [[gradient.cuda()], [parameter], [first], [second]]
            beta1, beta2 = OPTIONS["betas"]
            kernels.multi_tensor_adam(
                2048, noop, lists, OPTIONS["lr"], beta1, beta2, OPTIONS["eps"], step, int(decoupled), 1,
                OPTIONS["weight_decay"],
            )  # fmt: skip
        found.append(parameter.cpu())

    with standing_in(["deepspeed"]), kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    expected = torch.nn.Parameter(start.clone())
    adam = (torch.optim.AdamW if decoupled else torch.optim.Adam)([expected], **OPTIONS)
    for gradient in gradients:
        expected.grad = gradient
        adam.step()
    torch.testing.assert_close(found[0], expected.detach(), rtol=1e-5, atol=1e-6)


def test_it_was_built_for_what_runs() -> None:
    info = SimpleNamespace(installed_ops={"fused_adam": False, "fused_lamb": False}, torch_info={}, accelerator_name="")
    deepspeed.built(info)  # type: ignore[arg-type]
    found = []

    def worker(rank: int) -> None:
        found.append([info.torch_info["version"], info.torch_info["cuda_version"], torch.version.cuda])

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    version, cuda, whole = found[0]
    assert info.installed_ops == {"fused_adam": True, "fused_lamb": False}
    assert info.accelerator_name == "cuda"
    assert torch.__version__.startswith(f"{version}.")
    assert f"{whole}.".startswith(f"{cuda}.")


@pytest.mark.parametrize("named", ["deepspeed", "auto", None])
def test_the_package_finds_it_where_it_would_build_it(named: str | None, package: None) -> None:
    if named is None and importlib.import_module("torch.utils.cpp_extension").CUDA_HOME:
        pytest.skip("CUDA is here")
    found: list[object] = []

    def worker(rank: int) -> None:
        adam = importlib.import_module("deepspeed.ops.adam")
        try:
            found.append(adam.load().multi_tensor_adam)
        except OSError as error:
            found.append(advice_for(error))

    with standing_in([] if named is None else [named]), kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    if named is not None:
        assert found == [deepspeed.NAMES["multi_tensor_adam"]]
    else:
        assert "kernbench run --stand-in deepspeed" in str(found[0])
