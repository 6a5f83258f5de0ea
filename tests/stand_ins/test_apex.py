"""The stand-in for apex: its optimizers make torch's steps, its norms are torch's norms, with gradients."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, sys
from functools import partial
import torch
from torch.nn import functional as F
from apex.normalization import FusedLayerNorm, FusedRMSNorm, MixedFusedLayerNorm
from apex.normalization.fused_layer_norm import FusedLayerNormAffineFunction, FusedRMSNormAffineFunction
from apex.optimizers import FusedAdam, FusedSGD

def trained(make, steps=4):
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape, device="cuda")) for shape in ((4, 3), (5,))]
    parameters.append(torch.nn.Parameter(torch.randn(3, device="cuda")))
    optimizer = make(parameters[:2])
    losses = []
    for step in range(steps):
        def closure():
            optimizer.zero_grad()
            loss = sum((each - step).square().sum() for each in parameters[:2])
            loss.backward()
            return loss
        losses.append(optimizer.step(closure).item())
    return [losses, *(each.flatten().tolist() for each in parameters)]

pairs = {
    "adamw": (partial(FusedAdam, weight_decay=0.1), partial(torch.optim.AdamW, weight_decay=0.1)),
    "adam": (partial(FusedAdam, weight_decay=0.1, adam_w_mode=False), partial(torch.optim.Adam, weight_decay=0.1)),
    "sgd": tuple(partial(each, momentum=0.9, nesterov=True, weight_decay=0.1) for each in (FusedSGD, torch.optim.SGD)),
    "plain sgd": (FusedSGD, torch.optim.SGD),
}
found = {name: [trained(partial(each, lr=0.1)) for each in pair] for name, pair in pairs.items()}

def normed(layer):
    torch.manual_seed(1)
    x = torch.randn(6, 8, device="cuda", requires_grad=True)
    out = layer(x)
    out.square().sum().backward()
    weights = [] if layer.weight is None else [layer.weight.grad.flatten().tolist()]
    return [out.flatten().tolist(), x.grad.flatten().tolist(), *weights]

class Called(torch.nn.Module):
    def __init__(self, function, layer):
        super().__init__()
        self.weight, self.bias, self.function = layer.weight, getattr(layer, "bias", None), function
    def forward(self, x):
        return self.function(x, *(each for each in (self.weight, self.bias) if each is not None), (8,), 1e-5)

norms = {
    "layer function": (
        Called(FusedLayerNormAffineFunction.apply, FusedLayerNorm(8).cuda()), torch.nn.LayerNorm(8, device="cuda"),
    ),
    "rms function": (
        Called(FusedRMSNormAffineFunction.apply, FusedRMSNorm(8).cuda()), torch.nn.RMSNorm(8, eps=1e-5, device="cuda"),
    ),
    "layer": (FusedLayerNorm(8).cuda(), torch.nn.LayerNorm(8, device="cuda")),
    "plain": (FusedLayerNorm(8, elementwise_affine=False), torch.nn.LayerNorm(8, elementwise_affine=False)),
    "rms": (FusedRMSNorm(8, eps=1e-5).cuda(), torch.nn.RMSNorm(8, eps=1e-5, device="cuda")),
    "mixed": (MixedFusedLayerNorm(8).cuda(), torch.nn.LayerNorm(8, device="cuda")),
}
found |= {name: [normed(each) for each in pair] for name, pair in norms.items()}
json.dump(found, open(sys.argv[1], "w"))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, warm_python: str) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("apex")
    (folder / "program.py").write_text(PROGRAM)
    run = ["-m", "kernbench", "run", "--stand-in", "apex", "--system", "dgx_h100", "--nproc-per-node", "1"]
    command = [warm_python, *run, "program.py", "found.json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return loaded


@pytest.mark.parametrize(
    "name", ["adamw", "adam", "sgd", "plain sgd", "layer", "plain", "rms", "mixed", "layer function", "rms function"]
)
def test_it_computes_what_torch_computes(name: str, found: dict[str, Any]) -> None:
    ours, torchs = found[name]
    assert len(ours) == len(torchs) > 1
    for one, other in zip(ours, torchs, strict=True):
        assert one == pytest.approx(other, rel=2e-5, abs=2e-5)


LAUNCHED = """
import ast, importlib, inspect, os
from kernbench.compiled_operators.kernel_table import KernelTable
from kernbench.stand_ins.table import SHIPPED

def lacking(name):
    module = importlib.import_module(name)
    if vars(module).get("operators") is None or "launch" not in vars(module):
        return []
    calls = [each for each in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(each, ast.Call)]
    launched = {each.args[0].value for each in calls if getattr(each.func, "id", "") == "launch"}
    return sorted(launched - set(module.operators.schemas)) if module.operators.schemas else ["any"]

for stand_in in SHIPPED.values():
    for reference in stand_in.bound.values():
        if os.fork() == 0:  # each by itself: what another has imported is not there
            print(reference, lacking(reference), flush=True)
            os._exit(0)
        os.wait()
"""


def test_a_compiled_module_has_its_kernels_when_it_is_imported_alone(warm_python: str) -> None:
    done = subprocess.run([warm_python, "-c", LAUNCHED], capture_output=True, text=True, check=True)
    answers = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert answers["kernbench.compiled_operators.apex.weight_gradients"] == "[]"
    assert set(answers.values()) == {"[]"}


NORMS = """
import json
import torch
import fused_layer_norm_cuda as kernels
from torch.nn import functional as F

x, grad = (torch.randn(3, 2, 4, 2, device="cuda") for _ in range(2))
weight, bias = (torch.randn(4, 2, device="cuda") for _ in range(2))
leaves = [each.clone().requires_grad_() for each in (x, weight, bias)]
out, mean, scale = kernels.forward_affine(x, (4, 2), weight, bias, 1e-5)
ours = [out, *kernels.backward_affine(grad, mean, scale, x, (4, 2), weight, bias, 1e-5)]
expected = F.layer_norm(leaves[0], (4, 2), *leaves[1:], 1e-5)
theirs = [expected, *torch.autograd.grad(expected, leaves, grad)]
out, scale = kernels.rms_forward_affine(x, (4, 2), weight, 1e-5)
ours += [out, *kernels.rms_backward_affine(grad, scale, x, (4, 2), weight, 1e-5)]
expected = F.rms_norm(leaves[0], (4, 2), leaves[1], 1e-5)
theirs += [expected, *torch.autograd.grad(expected, leaves[:2], grad)]
assert [each.shape for each in ours] == [each.shape for each in theirs]
print(json.dumps(max((a - b).abs().max().item() for a, b in zip(ours, theirs))))
"""


def test_norms_of_the_compiled_module_are_torchs(warm_python: str, tmp_path: Path) -> None:
    program = tmp_path / "norms.py"
    program.write_text(NORMS)
    command = [warm_python, "-m", "kernbench", "run", "--nproc-per-node", "1", "--stand-in", "apex", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout.split("[rank0] ")[1].splitlines()[0]) < 1e-5
