"""NCCL moves memory, whatever strides say: its groups refuse tensors that are not contiguous."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

import kernbench

WORLD = 2


def run(program: Callable[[int], None], backend: str = "nccl") -> None:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group(backend)
        program(rank)
        dist.destroy_process_group()

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=WORLD)


def strided() -> torch.Tensor:
    return torch.ones(4, 6, device="cuda").t()


def gathered(rank: int, source: torch.Tensor, target: Callable[[], torch.Tensor]) -> None:
    dist.gather(source, [target() for _ in range(WORLD)] if rank == 0 else None, dst=0)


CALLS: dict[str, Callable[[int], object]] = {
    "all_reduce": lambda rank: dist.all_reduce(strided()),
    "broadcast": lambda rank: dist.broadcast(strided(), 0),
    "gather": lambda rank: gathered(rank, strided(), lambda: torch.empty(6, 4, device="cuda")),
    "gather into": lambda rank: gathered(rank, torch.ones(6, 4, device="cuda"), strided),
    "all_gather": lambda rank: dist.all_gather([torch.empty(6, 4, device="cuda") for _ in range(WORLD)], strided()),
    "all_to_all": lambda rank: dist.all_to_all([strided(), strided()], [strided(), strided()]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_strides_are_refused(call):
    with pytest.raises(kernbench.SpawnException, match="Tensors must be contiguous") as raised:
        run(call)
    assert any(isinstance(error, ValueError) for error in raised.value.errors.values())


def test_what_is_contiguous_is_sent_also_with_channels_last():
    found = []

    def program(rank: int) -> None:
        image = torch.full((2, 3, 4, 5), rank + 1.0, device="cuda").to(memory_format=torch.channels_last)
        dist.all_reduce(image)
        found.append(image.unique().tolist())

    run(program)
    assert found == [[3.0]] * WORLD


def test_gloo_takes_strides():
    found = []

    def program(rank: int) -> None:
        given = strided()
        dist.all_reduce(given)
        found.append(given.unique().tolist())

    run(program, "gloo")
    assert found == [[2.0]] * WORLD


def test_messages_move_the_memory_behind_strides():
    """All of what is dense, in the order in which it lies there."""
    found = {}

    def program(rank: int) -> None:
        mine = torch.arange(24.0, device="cuda").view(4, 6)
        sent = [mine.t(), mine.view(1, 4, 2, 3).to(memory_format=torch.channels_last)]
        rooms = [torch.zeros(6, 4, device="cuda"), torch.zeros(1, 4, 2, 3, device="cuda")]
        for given, room in zip(sent, rooms, strict=True):
            dist.send(given, 1) if rank == 0 else dist.recv(room, 0)
        if rank == 1:
            found.update(enumerate(room.flatten().tolist() for room in rooms))

    with pytest.warns(UserWarning, match="Detected non-contiguous tensor in P2P operations") as warned:
        run(program)
    assert {each.filename for each in warned} == {__file__}
    assert found[0] == list(range(24)), "not transposed: the receiver has other strides than the sender"
    channels_last = torch.arange(24.0).view(1, 4, 2, 3).permute(0, 2, 3, 1).flatten()
    assert found[1] == channels_last.tolist()


@pytest.mark.parametrize("received", [False, True])
@pytest.mark.parametrize("columns", [slice(0, 2), slice(0, 1)])
def test_a_message_with_gaps_is_refused(columns, received):
    def program(rank: int) -> None:
        some = torch.ones(4, 6, device="cuda")[:, columns]
        whole = some.contiguous()
        if rank == 0:
            dist.send(whole if received else some, 1)
        else:
            dist.recv(some if received else whole, 0)

    with pytest.raises(kernbench.SpawnException, match="ValueError: Tensors for P2P must be non-overlapping and dense"):
        run(program)


def test_a_message_of_overlapping_elements_is_refused():
    def program(rank: int) -> None:
        wide = torch.ones(1, device="cuda").expand(8)
        dist.send(wide, 1) if rank == 0 else dist.recv(torch.ones(8, device="cuda"), 0)

    with pytest.raises(kernbench.SpawnException, match="ValueError: Tensors for P2P must be non-overlapping and dense"):
        run(program)
