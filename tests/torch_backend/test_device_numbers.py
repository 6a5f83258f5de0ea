"""``torch.cuda``'s functions take a device in every way that torch lets one give it."""

from __future__ import annotations

import pytest
import torch

import kernbench

GIVEN = {
    "number": lambda: 1,
    "string": lambda: "cuda:1",
    "device": lambda: torch.device("cuda", 1),
    "context": lambda: torch.cuda.device(1),
    "of a tensor": lambda: torch.cuda.device_of(torch.ones(2, device="cuda:1")),
}


@pytest.mark.parametrize("how", GIVEN)
def test_functions_of_a_gpu_take_it(how: str) -> None:
    with kernbench.simulated_gpu("dgx_h100"):
        device = GIVEN[how]()
        before = torch.cuda.memory_allocated(device)
        kept = torch.ones(1 << 20, device="cuda:1")
        assert torch.cuda.memory_allocated(device) - before == kept.nbytes
        assert torch.cuda.get_device_properties(device).uuid == torch.cuda.get_device_properties(1).uuid
        assert torch.cuda.get_device_name(device) == "NVIDIA H100 80GB HBM3"
        assert torch.cuda.current_stream(device).device == torch.device("cuda", 1)
        torch.cuda.synchronize(device)
        torch.cuda.set_device(device)
        assert torch.cuda.current_device() == 1


@pytest.mark.parametrize("given", ["cpu", torch.device("cpu")], ids=["string", "device"])
@pytest.mark.parametrize("name", ["synchronize", "current_stream", "default_stream", "mem_get_info", "get_device_name"])
def test_what_is_no_gpu_is_refused_in_torchs_words(name: str, given: str | torch.device) -> None:
    with kernbench.simulated_gpu("dgx_h100"), pytest.raises(ValueError, match="Expected a cuda device, but got: cpu"):
        getattr(torch.cuda, name)(given)


def test_what_is_no_device_is_the_current_gpu() -> None:
    """Torch looks for an index, finds none, and takes the current GPU: programs give a tuple of numbers, for example."""
    with kernbench.simulated_gpu("dgx_h100"):
        torch.cuda.set_device(2)
        assert torch.cuda.get_device_capability((132, 50)) == (9, 0)
        assert torch.cuda.current_stream(object()).device == torch.device("cuda", 2)


def test_a_state_of_the_hosts_name_is_the_current_gpus() -> None:
    """Torch's functions of states look at a device's index alone."""
    with kernbench.simulated_gpu("dgx_h100"):
        torch.cuda.manual_seed(3)
        assert torch.equal(torch.cuda.get_rng_state("cpu"), torch.cuda.get_rng_state())
