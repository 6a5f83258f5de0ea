"""Triton kernels that load and store peers' memory: values, signals, time on the links, and a signal that is missing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl

import kernbench

WORLD = 4
LINK = 450e9 * 0.9  # bytes/s that a GPU of dgx_h100 gets of its links at most


@pytest.fixture
def gpus() -> Callable[..., list[Any]]:
    """``gpus(body)``: what ``body(rank)`` returns in each of four ranks of a program for NCCL."""

    def run(body: Callable[[int], Any], system: str = "dgx_h100") -> list[Any]:
        results: list[Any] = [None] * WORLD

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl")
            results[rank] = body(rank)
            dist.destroy_process_group()

        with kernbench.simulate(system, seed=1) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=WORLD)
        return results

    return run


def _meet(numel: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, Any]:
    buffer = symm_mem.empty(numel, dtype=dtype, device="cuda")
    return buffer, symm_mem.rendezvous(buffer, dist.group.WORLD)  # type: ignore[arg-type]


def _milliseconds(call: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()  # type: ignore[no-untyped-call]
    call()
    end.record()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    return begin.elapsed_time(end)  # type: ignore[no-untyped-call]


# -- barriers, in the ways that people write them ------------------------------------------------------------------------


@triton.jit
def _thread():
    return tl.inline_asm_elementwise("mov.u32 $0, %tid.x;", "=r", [], dtype=tl.uint32, is_pure=True, pack=1)


@triton.jit
def _pads(pads, block, rank: tl.constexpr, world: tl.constexpr):
    """Addresses of this rank's words at all peers, and of all peers' words here."""
    peers = tl.arange(0, world)
    pads = pads.to(tl.pointer_type(tl.uint64))
    there = tl.load(pads + peers).to(tl.pointer_type(tl.uint32)) + block * world + rank
    here = tl.load(pads + rank).to(tl.pointer_type(tl.uint32)) + block * world + peers
    return there, here


@triton.jit
def _meet_by_swaps(pads, block, rank: tl.constexpr, world: tl.constexpr):
    there, here = _pads(pads, block, rank, world)
    tl.debug_barrier()
    if _thread() < world:
        tl.inline_asm_elementwise(
            """
            {
                .reg .u32 %old<1>;
                .reg .pred %done<1>;
                send: atom.global.release.sys.cas.b32 %old0, [$1], 0, 1;
                setp.eq.u32 %done0, %old0, 0;
                @!%done0 bra send;
                wait: atom.global.acquire.sys.cas.b32 %old0, [$2], 1, 0;
                setp.eq.u32 %done0, %old0, 1;
                @!%done0 bra wait;
            }
            """,
            "=r, l, l",
            [there, here],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    tl.debug_barrier()


@triton.jit
def _meet_by_stores(pads, block, rank: tl.constexpr, world: tl.constexpr):
    there, here = _pads(pads, block, rank, world)
    tl.inline_asm_elementwise(
        "st.release.sys.global.u32 [$1], $2; mov.u32 $0, 0;",
        "=r, l, r",
        [there, tl.full((world,), 1, tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred %done;
            again: ld.acquire.sys.global.u32 $0, [$1];
            setp.ge.u32 %done, $0, 1;
            @!%done bra again;
        }
        """,
        "=r, l",
        [here],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.inline_asm_elementwise("bar.sync 0; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def _meet_by_triton(pads, block, rank: tl.constexpr, world: tl.constexpr):
    pads = pads.to(tl.pointer_type(tl.uint64))
    for peer in range(world):
        there = tl.load(pads + peer).to(tl.pointer_type(tl.int32))
        tl.atomic_xchg(there + block * world + rank, 1, sem="release", scope="sys")
    here = tl.load(pads + rank).to(tl.pointer_type(tl.int32)) + block * world
    for peer in range(world):
        while tl.atomic_cas(here + peer, 1, 0, sem="acquire", scope="sys") != 1:
            pass


@triton.jit
def _sum_kernel(
    buffers, pads, out, n, rank: tl.constexpr, world: tl.constexpr, MEET: tl.constexpr, BLOCK: tl.constexpr
):
    block = tl.program_id(0)
    if MEET == "swaps":
        _meet_by_swaps(pads, block, rank, world)
    elif MEET == "stores":
        _meet_by_stores(pads, block, rank, world)
    else:
        _meet_by_triton(pads, block, rank, world)
    buffers = buffers.to(tl.pointer_type(tl.uint64))
    start = block * BLOCK
    while start < n:
        offsets = start + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        for peer in range(world):
            remote = tl.load(buffers + peer).to(tl.pointer_type(out.dtype.element_ty))
            total += tl.load(remote + offsets, mask=offsets < n, other=0).to(tl.float32)
        tl.store(out + offsets, total.to(out.dtype.element_ty), mask=offsets < n)
        start += tl.num_programs(0) * BLOCK


def _launch_sum(handle: Any, out: torch.Tensor, meet: str, blocks: int = 4) -> None:
    _sum_kernel[(blocks,)](
        handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev, out, out.numel(), rank=handle.rank, world=WORLD, MEET=meet,
        BLOCK=256,
    )  # fmt: skip


@pytest.mark.parametrize("meet", ["swaps", "stores", "triton"])
def test_an_all_reduce_of_ones_own(gpus: Callable[..., Any], meet: str) -> None:
    """Every rank gets the sum of what all have written just before, whichever comes last."""

    def body(rank: int) -> float:
        buffer, handle = _meet(3000, torch.bfloat16)
        torch.manual_seed(rank)
        out = torch.empty_like(buffer)
        torch.cuda._sleep(1_000_000 * rank)  # type: ignore[no-untyped-call]
        buffer.copy_(torch.randint(-8, 8, (3000,), device="cuda"))
        want = buffer.float()
        spent = _milliseconds(lambda: _launch_sum(handle, out, meet))
        dist.all_reduce(want)
        assert torch.equal(out.float(), want)
        return spent

    spent = gpus(body)
    # launched together, ended together: when the last one has come
    assert [round(each, 1) for each in spent] == [3.0, 2.0, 1.0, 0.0]


def test_time_is_that_of_the_links(gpus: Callable[..., Any]) -> None:
    """A kernel that reads three peers' buffers takes what the links take for that; one of few blocks cannot fill them."""
    numel = 1 << 18

    def body(rank: int) -> list[float]:
        buffer, handle = _meet(numel)
        out = torch.empty_like(buffer)
        buffer.fill_(rank)
        return [_milliseconds(lambda blocks=blocks: _launch_sum(handle, out, "triton", blocks)) for blocks in (8, 512)]

    few, many = gpus(body)[0]
    least = (WORLD - 1) * numel * 4 / LINK * 1e3
    assert least < many < 1.6 * least + 0.01
    assert few > 5 * least


@triton.jit
def _push_kernel(buffers, source, n, peer, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = tl.load(buffers.to(tl.pointer_type(tl.uint64)) + peer).to(tl.pointer_type(tl.float32))
    tl.store(there + offsets, tl.load(source + offsets, mask=offsets < n), mask=offsets < n)


def test_a_peers_memory_is_further_than_ones_own(gpus: Callable[..., Any]) -> None:
    def body(rank: int) -> list[float]:
        buffer, handle = _meet(1 << 18)
        source = torch.full((1 << 18,), float(rank), device="cuda")

        def push(peer: int) -> None:
            _push_kernel[(512,)](handle.buffer_ptrs_dev, source, 1 << 18, peer, BLOCK=512)

        spent = []
        for peer in (rank, (rank + 1) % WORLD):
            spent.append(_milliseconds(functools.partial(push, peer)))
            handle.barrier()
            assert buffer.eq(rank if peer == rank else (rank - 1) % WORLD).all()
            handle.barrier()
        return spent

    for own, remote in gpus(body):
        assert (1 << 20) / LINK * 1e3 < remote < 0.02
        assert own < remote


@triton.jit
def _consumer_kernel(flags, data, out, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    for chunk in range(CHUNKS):
        while tl.atomic_add(flags + chunk, 0, sem="acquire", scope="gpu") != 1:
            pass
        offsets = chunk * CHUNK + tl.program_id(0) * 64 + tl.arange(0, 64)
        tl.store(out + offsets, tl.load(data + offsets) * 2)


@triton.jit
def _read_by_address(out, table, peer, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    theirs = tl.load(table + peer).to(tl.pointer_type(tl.float32))
    tl.store(out + at, tl.load(theirs + at))


def test_memory_that_a_table_of_the_program_points_at_is_where_its_gpu_is(gpus: Callable[..., Any]) -> None:
    """Nothing but the table names the peers' tensors to the kernel."""

    def read(rank: int) -> list[float]:
        mine, out = torch.full((1 << 24,), float(rank), device="cuda"), torch.empty(1 << 24, device="cuda")
        addresses: list[Any] = [None] * WORLD
        dist.all_gather_object(addresses, mine.data_ptr())
        table = torch.tensor(addresses, device="cuda")
        took = []
        for distance in range(WORLD):  # each reads another one's
            peer = (rank + distance) % WORLD
            took.append(_milliseconds(lambda peer=peer: _read_by_address[(1 << 14,)](out, table, peer, BLOCK=1 << 10)))
            assert out[-1].item() == peer
        dist.barrier()
        return took

    nbytes = 4 << 24
    for own, *others in gpus(read):
        assert min(others) > max(1e3 * nbytes / LINK, 2 * own)
        assert max(others) < 2 * own + 1e3 * nbytes / LINK


def test_copies_on_one_stream_feed_a_kernel_on_another(gpus: Callable[..., Any]) -> None:
    """The kernel is launched first, and waits for words that the other stream writes after each copy."""

    def body(rank: int) -> float:
        buffer, handle = _meet(4096)
        buffer.fill_(rank + 1)
        gathered = torch.zeros(WORLD * 4096, device="cuda")
        out = torch.zeros_like(gathered)
        flags = torch.zeros(WORLD, dtype=torch.int32, device="cuda")
        copies = torch.cuda.Stream()
        handle.barrier()
        copies.wait_stream(torch.cuda.current_stream())

        def overlapped() -> None:
            _consumer_kernel[(64,)](flags, gathered, out, CHUNK=4096, CHUNKS=WORLD)
            with torch.cuda.stream(copies):
                for peer in range(WORLD):
                    torch.cuda._sleep(1_000_000)  # type: ignore[no-untyped-call]
                    gathered[peer * 4096 : (peer + 1) * 4096].copy_(handle.get_buffer(peer, (4096,), torch.float32))
                    handle.stream_write_value32(flags, peer, 1)

        spent = _milliseconds(overlapped)
        assert torch.equal(out.view(WORLD, -1).mean(1), torch.tensor([2.0, 4, 6, 8], device="cuda"))
        handle.barrier()
        return spent

    for spent in gpus(body):
        assert spent == pytest.approx(4.0, abs=0.2)


@triton.jit
def _there(pointer, heaps, mine, peer):
    """The same place in a peer's heap."""
    offset = pointer.to(tl.uint64, bitcast=True) - tl.load(heaps + mine)
    return (tl.load(heaps + peer).to(tl.pointer_type(tl.int8)) + offset).to(pointer.dtype, bitcast=True)


@triton.jit
def _put_kernel(source, target, flags, n, heaps, mine, peer, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + offsets, mask=offsets < n)
    tl.store(_there(target + offsets, heaps, mine, peer), values, mask=offsets < n)
    tl.debug_barrier()
    tl.atomic_cas(_there(flags + block, heaps, mine, peer), 0, 1, sem="release", scope="sys")


@triton.jit
def _take_kernel(source, flags, out, n, BLOCK: tl.constexpr):
    block = tl.program_id(0)
    offsets = block * BLOCK + tl.arange(0, BLOCK)
    while tl.load(flags + block, volatile=True) != 1:
        pass
    tl.atomic_add(flags + block, 0, sem="acquire", scope="sys")  # a volatile load orders nothing
    tl.store(out + offsets, tl.load(source + offsets, mask=offsets < n) * 2, mask=offsets < n)
    tl.store(flags + block, 0)


def test_a_ring_over_one_heap(gpus: Callable[..., Any]) -> None:
    """Pointers are translated from heap to heap. Who waits for the late rank ends late, and no other rank, although the takers
    of all ranks run as one batch."""
    numel, blocks = 10_000, 10

    def body(rank: int) -> float:
        heap, handle = _meet(1 << 16, torch.uint8)
        heaps = torch.tensor(handle.buffer_ptrs, dtype=torch.uint64).cuda()
        target = heap[: numel * 4].view(torch.float32)
        flags = heap[numel * 4 : (numel + blocks) * 4].view(torch.int32)
        source, out = torch.full((numel,), rank + 1.0, device="cuda"), torch.zeros(numel, device="cuda")
        side = torch.cuda.Stream()
        handle.barrier()
        side.wait_stream(torch.cuda.current_stream())
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(side):
            _take_kernel[(blocks,)](target, flags, out, numel, BLOCK=1024)
            end.record()  # type: ignore[no-untyped-call]
        if rank == 2:
            torch.cuda._sleep(2_000_000)  # type: ignore[no-untyped-call]
        _put_kernel[(blocks,)](source, target, flags, numel, heaps, rank, (rank + 1) % WORLD, BLOCK=1024)
        torch.cuda.synchronize()
        assert out.eq(2 * ((rank - 1) % WORLD + 1)).all()
        return begin.elapsed_time(end)  # type: ignore[no-untyped-call]

    assert [round(spent, 1) for spent in gpus(body)] == [0.0, 0.0, 0.0, 2.0]


@triton.jit
def _tell_kernel(word):
    tl.inline_asm_elementwise("st.global.release.sys.b32 [$1], 1; mov.u32 $0, 0;", "=r,l", [word.to(tl.int64)],
                              dtype=tl.int32, is_pure=False, pack=1)  # fmt: skip


@triton.jit
def _listen_kernel(word):
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred unset;
            again: ld.global.acquire.sys.b32 $0, [$1];
            setp.eq.s32 unset, $0, 0;
            @unset bra again;
        }
        """,
        "=r,l", [word.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


def test_assembly_hears_who_wrote_its_word_and_not_who_wrote_the_next_one(gpus: Callable[..., Any]) -> None:
    def body(rank: int) -> float:
        mine, handle = _meet(64, torch.int32)
        mine.zero_()
        handle.barrier()
        words = handle.get_buffer(0, (64,), torch.int32)
        if rank == 2:
            torch.cuda._sleep(2_000_000)  # type: ignore[no-untyped-call]
        kernel = _tell_kernel if rank else _listen_kernel
        warps = 4 if rank == 2 else 1  # a launch of its own: launches that run together are one party to who hears them
        return _milliseconds(lambda: kernel[(1,)](words[rank or 1 :], num_warps=warps))

    assert round(gpus(body)[0], 1) == 0.0


# -- multicast -----------------------------------------------------------------------------------------------------------


@triton.jit
def _multimem_kernel(multicast, pads, n, rank: tl.constexpr, world: tl.constexpr, BLOCK: tl.constexpr):
    """Each rank reduces its part in the switch and multicasts the sum: four bf16 pairs at a time."""
    block = tl.program_id(0)
    _meet_by_swaps(pads, block, rank, world)
    start = tl.arange(0, BLOCK)
    address = multicast.to(tl.pointer_type(tl.uint64)) + (rank * n // world // 4) + start * 2
    a, b, c, d = tl.inline_asm_elementwise(
        "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {$0, $1, $2, $3}, [$4];",
        "=r,=r,=r,=r,l",
        [address],
        dtype=(tl.uint32, tl.uint32, tl.uint32, tl.uint32),
        is_pure=False,
        pack=1,
    )
    tl.inline_asm_elementwise(
        "multimem.st.relaxed.sys.global.v4.f32 [$1], {$2, $3, $4, $5}; mov.u32 $0, 0;",
        "=r,l,r,r,r,r",
        [address, a, b, c, d],
        dtype=tl.uint32,
        is_pure=False,
        pack=1,
    )
    _meet_by_swaps(pads, block, rank, world)


def test_multimem_reduces_and_multicasts(gpus: Callable[..., Any]) -> None:
    numel = WORLD * 64 * 8

    def body(rank: int) -> None:
        buffer, handle = _meet(numel, torch.bfloat16)
        torch.manual_seed(rank)
        buffer.normal_()
        parts = torch.empty(WORLD, numel, device="cuda")
        dist.all_gather_into_tensor(parts, buffer.float())
        _multimem_kernel[(1,)](
            handle.multicast_ptr, handle.signal_pad_ptrs_dev, numel, rank=rank, world=WORLD, BLOCK=64
        )  # fmt: skip
        want = parts[0]
        for part in parts[1:]:
            want = want + part
        assert torch.equal(buffer, want.to(torch.bfloat16))

    gpus(body)


def test_multimem_takes_multicast_addresses_only(gpus: Callable[..., Any]) -> None:
    def body(rank: int) -> None:
        _, handle = _meet(512, torch.bfloat16)
        _multimem_kernel[(1,)](handle.buffer_ptrs[0], handle.signal_pad_ptrs_dev, 512, rank=rank, world=WORLD, BLOCK=16)

    with pytest.raises(kernbench.SpawnException) as caught:
        gpus(body)
    error = next(iter(caught.value.errors.values()))
    assert isinstance(error, kernbench.MemoryAccessError)
    assert "which is not a multicast address: take the handle's multicast_ptr" in str(error)


# -- mistakes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("meet", ["swaps", "triton"])
def test_a_rank_that_does_not_come_is_named_by_who_waits(gpus: Callable[..., Any], meet: str) -> None:
    def body(rank: int) -> None:
        buffer, handle = _meet(256)
        if rank != 2:
            _launch_sum(handle, torch.empty_like(buffer), meet, blocks=1)

    with pytest.raises(kernbench.runtime_api.multiprocessing.SpawnException) as caught:
        gpus(body)
    assert set(caught.value.errors) == {0, 1, 3}
    report = str(caught.value.errors[0])
    assert (
        "kernel _sum_kernel of rank 0 is suspended: kernel _sum_kernel waits for memory that no program writes"
        in report
    )
    assert "test_peer_kernels.py" in report
    assert "waits on element 2 of signal pad of rank 0" in report


def test_an_access_beyond_a_peers_buffer_is_named(gpus: Callable[..., Any]) -> None:
    def body(rank: int) -> None:
        _, handle = _meet(100)
        source = torch.zeros(128, device="cuda")
        with pytest.raises(kernbench.MemoryAccessError, match="symmetric buffer of rank"):
            _push_kernel[(1,)](handle.buffer_ptrs_dev, source, 128, (rank + 1) % WORLD, BLOCK=128)

    gpus(body)
