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
