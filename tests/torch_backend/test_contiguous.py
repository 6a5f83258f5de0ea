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


def column(device: str) -> torch.Tensor:
    return torch.arange(6.0, device=device).view(3, 2)[:, 0]


GLOO: dict[str, tuple[Callable[[int, str], object], str]] = {
    "all_reduce": (lambda rank, on: dist.all_reduce(column(on)), "ValueError: all_reduce of gloo"),
    "broadcast": (lambda rank, on: dist.broadcast(column(on), 0), "ValueError: broadcast of gloo"),
    "reduce": (lambda rank, on: dist.reduce(column(on), 0), "ValueError: reduce of gloo"),
    "scatter": (
        lambda rank, on: dist.scatter(torch.zeros(3, device=on), [column(on)] * WORLD if rank == 0 else None, 0),
        "ValueError: scatter of gloo",
    ),
    "send": (
        lambda rank, on: dist.send(column(on), 1) if rank == 0 else dist.recv(torch.zeros(3, device=on), 0),
        "RuntimeError: input tensor has to be contiguous: send",
    ),
    "recv": (
        lambda rank, on: dist.send(torch.zeros(3, device=on), 1) if rank == 0 else dist.recv(column(on), 0),
        "RuntimeError: input tensor has to be contiguous: recv",
    ),
}
"""What gloo 2.13 gives wrong values for, and of messages its error."""


@pytest.mark.parametrize("on", ["cpu", "cuda"])
@pytest.mark.parametrize(("call", "says"), GLOO.values(), ids=GLOO)
def test_gloo_does_not_see_gaps(call, says, on):
    with pytest.raises(kernbench.SpawnException, match=says):
        run(lambda rank: call(rank, on), "gloo")


@pytest.mark.parametrize("on", ["cpu", "cuda"])
def test_gloo_gathers_and_exchanges_columns(on):
    """These it copies into one piece first."""
    found = []

    def program(rank: int) -> None:
        rooms = [torch.zeros(3, device=on) for _ in range(WORLD)]
        dist.all_gather(rooms, column(on))
        found.append(torch.stack(rooms).tolist())

    run(program, "gloo")
    assert found == [[[0.0, 2.0, 4.0]] * WORLD] * WORLD


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


IMAGES = torch.arange(48.0).view(2, 3, 2, 4)


def _image(rank: int, last: bool) -> torch.Tensor:
    """Images whose elements are numbered, in channels-last memory or not."""
    image = (IMAGES + 48 * rank).to("cuda")
    return image.to(memory_format=torch.channels_last) if last else image


def _empty(rows: int, last: bool) -> torch.Tensor:
    form = torch.channels_last if last else torch.contiguous_format
    return torch.empty(rows, 3, 2, 4, device="cuda", memory_format=form)


def _gathered(rank: int, given: bool, got: bool) -> torch.Tensor:
    out = _empty(4, got)
    dist.all_gather_into_tensor(out, _image(rank, given))
    return out


def _scattered(rank: int, given: bool, got: bool) -> torch.Tensor:
    out = _empty(1, got)
    dist.reduce_scatter_tensor(out, _image(rank, given))
    return out


def _exchanged(rank: int, given: bool, got: bool) -> torch.Tensor:
    out = _empty(2, got)
    dist.all_to_all_single(out, _image(rank, given))
    return out


def _listed(rank: int, given: bool, got: bool) -> torch.Tensor:
    out = [_empty(2, got), _empty(2, got)]
    dist.all_gather(out, _image(rank, given))
    return torch.cat(out)


def _broadcast(rank: int, given: bool, got: bool) -> torch.Tensor:
    out = _image(rank, given if rank == 0 else got)
    dist.broadcast(out, 0)
    return out


def _moved(sent: torch.Tensor, form: torch.memory_format, got: torch.memory_format) -> torch.Tensor:
    """What is received of a tensor: its memory, read with the receiver's strides."""
    memory = sent.contiguous(memory_format=form)
    room = torch.empty_like(sent, memory_format=got)
    room.as_strided((sent.numel(),), (1,)).copy_(memory.as_strided((sent.numel(),), (1,)))
    return room


REORDERED = {
    _gathered: lambda rank: torch.cat([IMAGES, IMAGES + 48]),
    _scattered: lambda rank: (2 * IMAGES + 48)[rank : rank + 1],
    _exchanged: lambda rank: torch.stack([IMAGES[rank], IMAGES[rank] + 48]),
    _listed: lambda rank: torch.cat([IMAGES, IMAGES + 48]),
    _broadcast: lambda rank: IMAGES,
}
"""What each rank gets where both sides have the same strides."""


@pytest.mark.parametrize("isolation", ["carrier", "process"])
@pytest.mark.parametrize("given", [False, True], ids=["from contiguous", "from channels-last"])
@pytest.mark.parametrize("got", [False, True], ids=["to contiguous", "to channels-last"])
def test_collectives_move_the_memory_of_channels_last_tensors(given, got, isolation):
    """Which reorders elements where the other side has other strides, as NCCL does."""

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        forms = [torch.channels_last if last else torch.contiguous_format for last in (given, got)]
        for call, expected in REORDERED.items():
            if call is _broadcast and rank == 0:
                assert torch.equal(call(rank, given, got).cpu(), IMAGES)
                continue
            found = call(rank, given, got).cpu()
            wanted = torch.cat([_moved(row, *forms) for row in expected(rank).split(1)])
            assert torch.equal(found, wanted), call.__name__

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=WORLD, isolation=isolation)


CUT: dict[str, Callable[[], object]] = {
    "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(
        torch.empty(8, 8, device="cuda").t(), torch.ones(32, device="cuda")
    ),
    "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(torch.empty(12, device="cuda"), strided()),
    "reduce_scatter_tensor with gaps": lambda: dist.reduce_scatter_tensor(
        torch.empty(4, device="cuda"), torch.ones(4, 6, device="cuda")[:, :2]
    ),
}


@pytest.mark.parametrize("data", [True, False])
@pytest.mark.parametrize("call", CUT.values(), ids=CUT)
def test_a_strided_tensor_that_is_cut_into_parts_is_refused(call, data):
    """NCCL would move its memory, in another order than its elements, and beside them."""

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        call()

    with kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        spawn = ctx.multiprocessing.spawn
        with pytest.raises(kernbench.SpawnException, match="ValueError: Tensors must be contiguous"):
            spawn(worker, nprocs=WORLD)
