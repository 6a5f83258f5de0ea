"""Functional collectives called as compiled programs call them, ``torch.ops._c10d_functional``, against closed forms."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.torch_backend.conftest import Ranks

WORLD = 3
FABRICS = [("gloo", "cpu"), ("nccl", "cuda")]
ops: Any = torch.ops._c10d_functional


def group() -> str:
    name: str = dist.group.WORLD.group_name  # type: ignore[union-attr]
    return name


@pytest.mark.parametrize(("backend", "device"), FABRICS)
def test_out_variants_write_what_they_were_given(ranks: Ranks, backend: str, device: str) -> None:
    def body() -> Any:
        rank = dist.get_rank()
        everything = torch.zeros(2 * WORLD, device=device)
        own = torch.tensor([10.0 * rank, 10.0 * rank + 1], device=device)
        gathered = ops.wait_tensor(ops.all_gather_into_tensor_out(own, WORLD, group(), out=everything))
        part = torch.zeros(1, device=device)
        given = torch.arange(float(WORLD), device=device)
        scattered = ops.wait_tensor(ops.reduce_scatter_tensor_out(given, "sum", WORLD, group(), out=part))
        same = gathered.data_ptr() == everything.data_ptr() and scattered.data_ptr() == part.data_ptr()
        where = {tensor.device.type for tensor in (everything, gathered, part, scattered)}
        return everything.tolist(), part.tolist(), same, where

    found = ranks(body, WORLD, backend=backend)
    assert found == [([0.0, 1.0, 10.0, 11.0, 20.0, 21.0], [3.0 * rank], True, {device}) for rank in range(WORLD)]


def test_an_input_with_strides_is_gathered_row_by_row(ranks: Ranks) -> None:
    def body() -> Any:
        own = torch.arange(4.0, device="cuda").view(2, 2).t() + 10 * dist.get_rank()
        out = torch.zeros(WORLD * 2, 2, device="cuda")
        return ops.wait_tensor(ops.all_gather_into_tensor_out(own, WORLD, group(), out=out)).flatten().tolist()

    rows = [10.0 * rank + each for rank in range(WORLD) for each in (0, 2, 1, 3)]
    assert ranks(body, WORLD, backend="nccl") == [rows] * WORLD


@pytest.mark.parametrize(("backend", "device"), FABRICS)
def test_a_batch_of_messages(ranks: Ranks, backend: str, device: str) -> None:
    """Around a ring: what is sent gives a tensor to wait for, what is received is the buffer."""

    def body() -> Any:
        rank = dist.get_rank()
        sent, received = torch.full((2,), float(rank), device=device), torch.zeros(2, device=device)
        peers = [(rank + 1) % WORLD, (rank - 1) % WORLD]
        waited = [
            ops.wait_tensor(each)
            for each in ops.batch_p2p_ops(["isend", "irecv"], peers, [0, 0], [sent, received], group())
        ]
        ops.wait_tensor(sent)  # it may be written again: the message is noted for it, too
        return [each.tolist() for each in waited], received.tolist(), {each.device.type for each in waited}

    found = ranks(body, WORLD, backend=backend)
    assert found == [
        ([[], [float((rank - 1) % WORLD)] * 2], [float((rank - 1) % WORLD)] * 2, {device}) for rank in range(WORLD)
    ]


def test_a_batch_of_what_is_no_message_is_refused(ranks: Ranks) -> None:
    def body() -> None:
        with pytest.raises(RuntimeError, match="Unsupported async op broadcast"):
            ops.batch_p2p_ops(["broadcast"], [0], [0], [torch.ones(1)], group())
        with pytest.raises(RuntimeError):  # torch's own check of the lists
            ops.batch_p2p_ops(["isend"], [], [0], [torch.ones(1)], group())

    ranks(body, 1)


def test_groups_that_are_not_simulated_do_as_torch_has_it(ranks: Ranks) -> None:
    """torch's fake group gives every rank's part the values of this one."""

    def body() -> Any:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.destroy_process_group()
        dist.init_process_group("fake", rank=0, world_size=WORLD, store=FakeStore())
        out = torch.zeros(2 * WORLD)
        ops.wait_tensor(ops.all_gather_into_tensor_out(torch.tensor([1.0, 2.0]), WORLD, group(), out=out))
        given = torch.ones(2)
        (sent,) = ops.batch_p2p_ops(["isend"], [1], [0], [given], group())
        return out.tolist(), [ops.wait_tensor(each).shape for each in (sent, given)]

    assert ranks(body, 1) == [([1.0, 2.0] * WORLD, [torch.Size([0]), torch.Size([2])])]


def test_gathering_waits_in_virtual_time(ranks: Ranks) -> None:
    """The host that asks for a value of the result is as late as the last one that gave its part."""

    def body() -> float:
        if dist.get_rank() == 0:
            time.sleep(0.5)
        began = time.perf_counter()
        out = torch.zeros(WORLD, device="cuda")
        ops.wait_tensor(
            ops.all_gather_into_tensor_out(torch.ones(1, device="cuda"), WORLD, group(), out=out)
        ).sum().item()
        return time.perf_counter() - began

    early, *late = ranks(body, WORLD, backend="nccl")
    assert early < 0.1
    assert all(0.4 < waited < 0.6 for waited in late)
