"""``bitsandbytes``' own Python on the stand-in for its library: layers of four and eight bits, optimizers of eight.

Runs where the package is installed (``pip install --no-deps bitsandbytes``).
"""

from __future__ import annotations

import importlib.util

import pytest
import torch

import kernbench
from kernbench.stand_ins import standing_in

if importlib.util.find_spec("bitsandbytes") is None:
    pytest.skip("bitsandbytes is not installed", allow_module_level=True)


def simulated(worker, data=True):
    """What the one rank puts into a list."""
    found = []
    with standing_in(["bitsandbytes"]), kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(lambda rank: worker(found), nprocs=1)
    return found


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("rows", [1, 4, 2048])
def test_a_layer_of_four_bits(kind, nested, rows):
    """A vector, few rows (one kernel), and many (the weight in 16 bits first)."""

    def worker(found):
        import bitsandbytes as bnb
        import bitsandbytes.functional as functional

        torch.manual_seed(0)
        layer = bnb.nn.Linear4bit(
            256, 128, bias=False, quant_type=kind, compress_statistics=nested, compute_dtype=torch.bfloat16
        )
        plain = layer.weight.detach().clone().float()
        layer = layer.cuda()
        x = torch.randn(rows, 256, device="cuda", dtype=torch.bfloat16, requires_grad=rows > 4)
        y = layer(x)
        weight = functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()
        if rows > 4:
            y.sum().backward()
            found.append((x.grad.float() - weight.sum(0)).abs().max().item() / weight.sum(0).abs().max().item())
        expected = x.detach().float() @ weight.t()
        found.append((y.float() - expected).norm().item() / expected.norm().item())
        found.append((weight.cpu() - plain).norm().item() / plain.norm().item() / 10)

    assert all(error < 0.02 for error in simulated(worker))


@pytest.mark.parametrize(
    "name", ["Adam8bit", "AdamW8bit", "Lion8bit", "SGD8bit", "RMSprop8bit", "Adam", "PagedAdamW8bit"]
)
def test_optimizers(name):
    """A model learns as with 32 bits: after ten steps its loss is nearly theirs."""

    def worker(found):
        import bitsandbytes as bnb

        losses = []
        for small in (True, False):
            torch.manual_seed(0)
            layer = torch.nn.Linear(64, 64).cuda()
            x, target = torch.randn(32, 64, device="cuda"), torch.randn(32, 64, device="cuda")
            wanted = name if small else name.removeprefix("Paged").removesuffix("8bit")
            more = {"momentum": 0.9} if "SGD" in name else {}
            optimizer = getattr(bnb.optim, wanted)(layer.parameters(), lr=1e-3 if "SGD" not in name else 1e-1, **more)
            for parameter in layer.parameters():
                bnb.optim.GlobalOptimManager.get_instance().override_config(parameter, "optim_bits", 8 if small else 32)
            optimizer.args.min_8bit_size = 16
            for _ in range(10):
                loss = (layer(x) - target).pow(2).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        found.extend(losses)

    small, whole = simulated(worker)
    assert small == pytest.approx(whole, rel=0.02)


def test_a_layer_of_int8():
    def worker(found):
        import bitsandbytes as bnb

        torch.manual_seed(0)
        layer = bnb.nn.Linear8bitLt(128, 64, has_fp16_weights=False, threshold=6.0).half()
        plain, bias = layer.weight.detach().clone().float(), layer.bias.detach().float()
        layer = layer.cuda()
        x = torch.randn(8, 128, device="cuda", dtype=torch.float16)
        x[:, 3] = 20.0  # an outlier, which is multiplied in 16 bits
        expected = x.float().cpu() @ plain.t() + bias
        found.append((layer(x).float().cpu() - expected).norm().item() / expected.norm().item())

    assert simulated(worker)[0] < 0.02


def test_without_data_memory_and_time_are_the_same():
    def worker(found):
        import bitsandbytes as bnb

        layer = bnb.nn.Linear4bit(1024, 1024, bias=False, compute_dtype=torch.bfloat16).cuda()
        x = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)
        layer(x)
        torch.cuda.synchronize()
        found.append((torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()))

    assert simulated(worker) == simulated(worker, data=False)
