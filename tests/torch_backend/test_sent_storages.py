"""Tensors of GPUs that ranks send each other through multiprocessing."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
import torch.multiprocessing as mp

import kernbench


@pytest.mark.parametrize("data", [True, False])
def test_the_receiver_has_the_senders_memory(data: bool) -> None:
    seen: dict[int, object] = {}

    def body(rank: int, queue: mp.Queue, queue_back: mp.Queue) -> None:
        if rank == 0:
            sent = torch.arange(6.0, device="cuda:0").view(2, 3)
            queue.put(sent[:, 1:])
            del sent  # it lives on until it is received
            reply = queue_back.get()
            seen[0] = reply.device, reply.tolist() if data else list(reply.shape)
        else:
            got = queue.get()
            doubled = got * 2  # the first operation of a rank that has used no GPU
            assert doubled.device == got.device == torch.device("cuda:0")
            got.add_(1)
            seen[1] = doubled.tolist() if data else list(doubled.shape)
            queue_back.put(got)

    with kernbench.simulate(system="dgx_h100", enable_data=data) as ctx:
        spawned = multiprocessing.get_context("spawn")
        ctx.multiprocessing.spawn(body, (spawned.Queue(), spawned.Queue()), nprocs=2)
    assert seen[1] == ([[2.0, 4.0], [8.0, 10.0]] if data else [2, 2])
    assert seen[0] == (torch.device("cuda:0"), [[2.0, 3.0], [5.0, 6.0]] if data else [2, 2])


def test_between_processes_it_is_refused_where_it_is_sent() -> None:
    def body(rank: int, queue: mp.SimpleQueue) -> None:
        if rank == 0:
            queue.put(torch.ones(2, device="cuda"))
        else:
            queue.get()

    with kernbench.simulate(system="dgx_h100") as ctx:
        queue = multiprocessing.get_context("spawn").Queue()
        with pytest.raises(kernbench.SpawnException, match=r"CUDA's IPC.*--isolation carrier"):
            ctx.multiprocessing.spawn(body, (queue,), nprocs=2, isolation="process")


def test_tensors_of_the_host_are_sent_as_torch_does() -> None:
    def body(rank: int, queue: mp.SimpleQueue) -> None:
        if rank == 0:
            queue.put(torch.empty(0))  # with elements torch starts a thread that serves file descriptors
        else:
            assert queue.get().device.type == "cpu"

    with kernbench.simulate(system="dgx_h100") as ctx:
        ctx.multiprocessing.spawn(body, (multiprocessing.get_context("spawn").SimpleQueue(),), nprocs=2)
