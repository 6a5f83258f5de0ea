"""Symmetric memory: buffers that peers address, signals between streams, collectives; what cannot be pretended raises."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
from torch.distributed._symmetric_memory import (
    _fused_all_gather_matmul_fallback,
    _fused_matmul_reduce_scatter_fallback,
)

import kernbench
from kernbench.cost import collective_time

_SymmetricMemory: Any = torch._C._distributed_c10d._SymmetricMemory
ops: Any = torch.ops.symm_mem

Simulate = Callable[..., list[Any]]


@pytest.fixture
def gpus() -> Simulate:
    """``gpus(body, world_size, system)``: what ``body()`` returns in each rank of a program for NCCL."""

    def run(body: Callable[[], Any], world_size: int = 4, system: str = "dgx_h100", **options: Any) -> list[Any]:
        results: list[Any] = [None] * world_size

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank % torch.cuda.device_count())
            dist.init_process_group("nccl")
            results[rank] = body()
            dist.destroy_process_group()

        with kernbench.simulate(system, seed=1, **options) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=world_size)
        return results

    return run


def _world() -> Any:
    return dist.group.WORLD


def _meet(numel: int = 64, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, Any]:
    buffer = symm_mem.empty(numel, dtype=dtype, device="cuda")
    return buffer, symm_mem.rendezvous(buffer, _world())


# -- buffers -------------------------------------------------------------------------------------------------------------


def test_tables_of_addresses_are_no_numbers_of_32_bits(gpus: Simulate) -> None:
    """A kernel is given them as they are: Triton takes an int that fits into 32 bits for an int32."""

    def body() -> list[int]:
        _, handle = _meet()
        return [handle.buffer_ptrs_dev, handle.signal_pad_ptrs_dev]

    tables = [table for found in gpus(body) for table in found]
    assert len(set(tables)) == 8
    assert all(
        table >> 32 and table % mmap.PAGESIZE == 0 for table in tables
    )  # mapped: no heap's, wherever that begins


def test_peers_see_each_others_buffers(gpus: Simulate) -> None:
    def body() -> Any:
        buffer, handle = _meet()
        assert buffer.eq(0).all()  # kernbench: ordered: the backend has cleared it
        assert symm_mem.is_symm_mem_tensor(buffer)
        assert (handle.rank, handle.world_size, handle.buffer_size) == (dist.get_rank(), 4, 256)
        buffer.fill_(handle.rank)
        handle.barrier()
        peer = (handle.rank + 1) % 4
        remote = handle.get_buffer(peer, (16, 4), torch.float32)
        assert remote.device == buffer.device == handle.device
        assert remote.data_ptr() == handle.buffer_ptrs[peer]
        assert remote.eq(peer).all()
        shifted = symm_mem.rendezvous(buffer[8:], _world())
        assert shifted.offset == 32
        assert shifted.get_remote_tensor(peer, (4,), torch.float32).data_ptr() == handle.buffer_ptrs[peer] + 32
        handle.barrier()
        return handle.buffer_ptrs, handle.signal_pad_ptrs

    pointers = gpus(body)
    assert all(each == pointers[0] for each in pointers)
    assert len(set(pointers[0][0]) | set(pointers[0][1])) == 8


def test_groups_inside_the_world_meet_over_the_same_buffer(gpus: Simulate) -> None:
    def body() -> None:
        rank = dist.get_rank()
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        buffer, handle = _meet()
        half = symm_mem.rendezvous(buffer, halves[rank // 2])
        assert (half.rank, half.world_size) == (rank % 2, 2)
        buffer.fill_(rank)
        handle.barrier()
        peer = (half.rank + 1) % 2
        assert half.get_buffer(peer, (64,), torch.float32).eq(peer + rank // 2 * 2).all()
        handle.barrier()

    gpus(body)


@pytest.mark.filterwarnings("ignore:.*enable_symm_mem_for_group:FutureWarning")
def test_allocations_that_name_their_group(gpus: Simulate) -> None:
    def body() -> None:
        name = _world().group_name
        to_be_asked_for = not hasattr(symm_mem, "_is_process_group_registered")  # torch 2.15 has it for every group
        assert symm_mem.is_symm_mem_enabled_for_group(name) is not to_be_asked_for
        symm_mem.enable_symm_mem_for_group(name)
        assert symm_mem.is_symm_mem_enabled_for_group(name)
        assert _SymmetricMemory.rendezvous(torch.empty(8, device="cuda")) is None
        buffer = _SymmetricMemory.empty_strided_p2p((4, 8), (8, 1), torch.float32, torch.device("cuda"), name)
        assert _SymmetricMemory.rendezvous(buffer).buffer_size == 128
        workspace = symm_mem.get_symm_mem_workspace(name, min_size=64)
        assert workspace.buffer_size == 64
        assert symm_mem.get_symm_mem_workspace(name, min_size=32).buffer_ptrs == workspace.buffer_ptrs
        assert symm_mem.get_symm_mem_workspace(name, min_size=640).buffer_size == 640

    gpus(body)


def test_persistent_allocations_come_back(gpus: Simulate) -> None:
    def body() -> None:
        given = (4, 8), (8, 1), torch.float32, torch.device("cuda"), _world().group_name, 7
        buffer = _SymmetricMemory.empty_strided_p2p(*given)
        address = buffer.data_ptr()
        with pytest.raises(RuntimeError, match="alloc_id 7 is still in use"):
            _SymmetricMemory.empty_strided_p2p(*given)
        del buffer
        assert _SymmetricMemory.empty_strided_p2p(*given).data_ptr() == address

    gpus(body, 2)


def test_signal_pads_have_the_size_asked_for(gpus: Simulate) -> None:
    def body() -> None:
        before = symm_mem.get_signal_pad_size()
        symm_mem.set_signal_pad_size(2 * before)
        _, handle = _meet()
        symm_mem.set_signal_pad_size(before)
        pad = handle.get_signal_pad(handle.rank)
        assert handle.signal_pad_size == 2 * before == pad.numel() * 4
        assert pad.dtype is torch.uint32
        wide = handle.get_signal_pad(1, (8, 8), dtype=torch.uint64)
        assert (wide.shape, wide.data_ptr()) == ((8, 8), handle.signal_pad_ptrs[1])

    before = symm_mem.get_signal_pad_size()
    gpus(body)
    assert symm_mem.get_signal_pad_size() == before


# -- signals -------------------------------------------------------------------------------------------------------------


def test_signals_order_streams(gpus: Simulate) -> None:
    """Rank 0 reads what rank 1 has written, a millisecond later; hosts run ahead, and the ends of the streams say when."""

    def body() -> float:
        buffer, handle = _meet()
        end = torch.cuda.Event(enable_timing=True)
        begin = torch.cuda.Event(enable_timing=True)
        begin.record()
        if handle.rank == 0:
            handle.wait_signal(src_rank=1)
            assert buffer.eq(42).all()
        else:
            torch.cuda._sleep(1_000_000)
            handle.get_buffer(0, (64,), torch.float32).fill_(42)
            handle.put_signal(dst_rank=0)
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)

    waited, worked = gpus(body, 2)
    assert worked >= 1.0
    assert waited == pytest.approx(worked, abs=0.05)


def test_a_host_runs_ahead_of_its_waiting_stream(gpus: Simulate) -> None:
    """A wait on one stream ends because of what another stream of the same rank is given afterwards."""

    def body() -> float:
        buffer, handle = _meet()
        peer = 1 - handle.rank
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            handle.wait_signal(peer, channel=1)
        handle.get_buffer(peer, (64,), torch.float32).fill_(5)
        handle.put_signal(peer, channel=1)
        with torch.cuda.stream(side):
            return float(buffer.sum())

    assert gpus(body, 2) == [320.0, 320.0]


def test_barriers_hold_a_channel_and_not_the_others(gpus: Simulate) -> None:
    def body() -> tuple[float, float]:
        _, handle = _meet()
        slow, quick = torch.cuda.Stream(), torch.cuda.Stream()
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(3)]
        ends[0].record()
        with torch.cuda.stream(slow):
            if handle.rank == 0:
                torch.cuda._sleep(5_000_000)
            handle.barrier(channel=0)
            ends[1].record()
        with torch.cuda.stream(quick):
            handle.barrier(channel=1)
            ends[2].record()
        torch.cuda.synchronize()
        return ends[0].elapsed_time(ends[1]), ends[0].elapsed_time(ends[2])

    for slow, quick in gpus(body):
        assert slow == pytest.approx(5.0, abs=0.1)
        assert quick < 0.1


@pytest.mark.parametrize(
    ("call", "waits_for"),
    [
        (lambda handle: handle.barrier(timeout_ms=1000), "a signal from rank 1 on channel 0"),
        (lambda handle: handle.wait_signal(1, 3, timeout_ms=1000), "a signal from rank 1 on channel 3"),
        (
            lambda handle: (handle.put_signal(1), handle.put_signal(1, timeout_ms=1000)),
            "rank 1 to take down the signal that rank 0 has raised before on channel 0",
        ),
    ],
    ids=["barrier", "wait_signal", "put_signal"],
)
def test_timeouts_are_virtual(gpus: Simulate, call: Callable[[Any], Any], waits_for: str) -> None:
    def body() -> None:
        _, handle = _meet()
        if handle.rank == 0:
            call(handle)
            with pytest.raises(
                RuntimeError, match=rf"timed out after 1000 ms \(virtual time\): it waits for {waits_for}"
            ):
                torch.cuda.synchronize()

    gpus(body, 2)


def test_hosts_may_poll(gpus: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that asks again and again what is in a word lets the one that will write it go on."""
    monkeypatch.setattr("kernbench.simulation.time.polling._IDLE_POLLS", 50)

    def body() -> int:
        _, handle = _meet()
        mine = handle.get_signal_pad(handle.rank)
        if handle.rank == 0:
            asked = 0
            while mine[5].item() != 3:
                asked += 1
            return asked
        handle.get_signal_pad(0)[5] = 3
        return 0

    assert gpus(body, 2)[0] < 100

    def nobody_writes() -> None:
        _, handle = _meet()
        while handle.get_signal_pad(handle.rank)[5].item() != 3:
            pass

    with pytest.raises(
        kernbench.SpawnException, match="has asked 50 times whether '_local_scalar_dense of memory that"
    ):
        gpus(nobody_writes, 2)


def test_a_signal_that_nobody_sends_is_explained(gpus: Simulate) -> None:
    def body() -> None:
        buffer, handle = _meet()
        if handle.rank == 0:
            handle.wait_signal(src_rank=1, channel=2)
            buffer.add_(1)

    with pytest.raises(kernbench.runtime_api.multiprocessing.SpawnException) as caught:
        gpus(body, 2)
    report = str(caught.value.errors[0])
    assert isinstance(caught.value.errors[0], kernbench.DeadlockError)
    assert "symm_mem wait_signal of rank 0 is suspended: it waits for a signal from rank 1 on channel 2" in report
    assert "test_symmetric_memory.py" in report


def test_wrong_numbers_are_refused(gpus: Simulate) -> None:
    def body() -> None:
        _, handle = _meet()
        most = handle.signal_pad_size // 4 // handle.world_size
        for call in (
            handle.barrier,
            lambda channel: handle.put_signal(0, channel),
            lambda channel: handle.wait_signal(0, channel),
        ):
            with pytest.raises(RuntimeError, match="maximum supported channel"):
                call(channel=most)
        for call in (handle.put_signal, handle.wait_signal, handle.get_signal_pad):
            for rank in (-1, handle.world_size):
                with pytest.raises(RuntimeError, match=r"must be in \[0"):
                    call(rank)
        with pytest.raises(RuntimeError, match="take 260 bytes, and the buffer has 256"):
            handle.get_buffer(0, (65,), torch.float32)
        handle.barrier(channel=most - 1)

    gpus(body, 2)


def test_words_written_by_a_stream(gpus: Simulate) -> None:
    def body() -> None:
        buffer, _ = _meet(8, torch.int32)
        _SymmetricMemory.stream_write_value32(buffer, 3, 7)
        _SymmetricMemory.memset32(buffer, 4, -1, 2)
        assert buffer.tolist() == [0, 0, 0, 7, -1, -1, 0, 0]  # kernbench: ordered: the backend has cleared it
        with pytest.raises(RuntimeError, match="32-bit words"):
            _SymmetricMemory.memset32(buffer.to(torch.float64), 0, 1)

    gpus(body, 2)


# -- operations ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "part", "error", "words"),
    [
        (torch.int32, slice(None), NotImplementedError, "\"one_shot_all_reduce\" not implemented for 'Int'"),
        (torch.float16, slice(None), NotImplementedError, "\"one_shot_all_reduce\" not implemented for 'Half'"),
        (
            torch.bfloat16,
            slice(1, 9),
            RuntimeError,
            r"one_shot_all_reduce<BFloat16>: input ptr \+ offset must be at least 4",
        ),
        (
            torch.bfloat16,
            slice(0, 7),
            RuntimeError,
            "one_shot_all_reduce<BFloat16>: input size must be at least 4-byte",
        ),
    ],
)
def test_what_the_kernels_do_not_take_is_refused(
    gpus: Simulate, dtype: torch.dtype, part: slice, error: type[Exception], words: str
) -> None:
    def body() -> None:
        buffer, _ = _meet(16, dtype)
        with pytest.raises(error, match=words):
            ops.one_shot_all_reduce(buffer[part], "sum", _world().group_name)

    gpus(body)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_reduces(gpus: Simulate, dtype: torch.dtype) -> None:
    def body() -> None:
        tolerance = {"atol": 0.05, "rtol": 0.02} if dtype is torch.bfloat16 else {"atol": 1e-5, "rtol": 1e-5}
        buffer, handle = _meet(520, dtype)
        part = buffer[8:]
        for name in (
            "one_shot_all_reduce",
            "two_shot_all_reduce_",
            "multimem_all_reduce_",
            "multimem_one_shot_all_reduce",
        ):
            torch.manual_seed(handle.rank)
            part.normal_()
            want = part.clone()
            dist.all_reduce(want)
            got = getattr(ops, name)(part, "sum", _world().group_name)
            torch.testing.assert_close(got, want, **tolerance)  # whose ring rounds at every hop
            assert (got.data_ptr() == part.data_ptr()) is name.endswith("_")
            assert buffer[:8].eq(0).all()  # kernbench: ordered: the backend has cleared it
            handle.barrier()
        local = torch.randn(300, device="cuda").to(dtype)
        want = local.clone()
        dist.all_reduce(want)
        torch.testing.assert_close(
            ops.one_shot_all_reduce_copy(buffer, local, "sum", _world().group_name), want, **tolerance
        )

    gpus(body)


@pytest.mark.parametrize(
    ("name", "algorithm"), [("one_shot_all_reduce", "one_shot"), ("multimem_all_reduce_", "multimem")]
)
def test_small_all_reduces_take_what_their_own_models_say(name: str, algorithm: str) -> None:
    """Not what NCCL takes, three times as long."""

    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        part, _ = _meet(2048, torch.bfloat16)
        getattr(ops, name)(part, "sum", _world().group_name)

    with kernbench.simulate("dgx_h100", world_size=8, enable_data=False) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=8)
        last = [op for op in ctx.engine.op_log.operations if op.kind == "collective" and op.rank == 0][-1]
    modelled = collective_time("dgx_h100", "all_reduce", 4096, ranks=8, algorithm=algorithm, kind="kernel").seconds
    assert last.end - last.start == pytest.approx(modelled, rel=0.02)
    assert 2 * modelled < collective_time("dgx_h100", "all_reduce", 4096, ranks=8, kind="kernel").seconds


def test_gathers_and_scatters(gpus: Simulate) -> None:
    def body() -> None:
        name = _world().group_name
        rank = dist.get_rank()
        gathered, handle = _meet(32)
        mine = torch.arange(8.0, device="cuda") + 10 * rank
        ops.multimem_all_gather_out(mine, name, gathered)
        assert torch.equal(gathered, torch.cat([torch.arange(8.0) + 10 * r for r in range(4)]).cuda())
        handle.barrier()
        buffer = symm_mem.empty(8, 12, device="cuda")
        symm_mem.rendezvous(buffer, _world())
        torch.manual_seed(rank)
        buffer.normal_()
        want = buffer.clone()
        dist.all_reduce(want)
        for last, dim, shape in ((False, 0, (2, 12)), (True, 1, (8, 3))):
            out = torch.empty(shape, device="cuda")
            ops.reduce_scatter_out(buffer, name, last, out)
            torch.testing.assert_close(out, want.chunk(4, dim)[rank])
        for reduce_op in ("sum", "avg"):
            scattered = ops._low_contention_reduce_scatter(buffer, reduce_op, name)
            scattered = torch.ops._c10d_functional.wait_tensor(scattered)
            torch.testing.assert_close(scattered, want.chunk(4)[rank] / (4 if reduce_op == "avg" else 1))
        whole = torch.ops._c10d_functional.wait_tensor(ops._low_contention_all_gather(mine, name))
        assert torch.equal(whole, gathered)

    gpus(body)


def test_all_to_all_of_sizes_on_the_device(gpus: Simulate) -> None:
    def body() -> None:
        rank = dist.get_rank()
        splits = torch.tensor([rank + 1, 0, 2, 1], device="cuda")
        sent = symm_mem.empty(16, 2, device="cuda")
        out = symm_mem.empty(16, 2, device="cuda")
        sent.copy_(torch.arange(32.0).view(16, 2).cuda() + 100 * rank)
        where = torch.zeros(2, 4, dtype=torch.int64, device="cuda")
        ops.all_to_all_vdev(sent, out, splits, where, _world().group_name)
        counts = [[r + 1, 0, 2, 1][rank] for r in range(4)]
        assert where[0].tolist() == counts
        assert where[1].tolist() == [sum(counts[:r]) for r in range(4)]
        first = [sum([r + 1, 0, 2, 1][:rank]) for r in range(4)]
        want = [torch.arange(32.0).view(16, 2)[first[r] : first[r] + counts[r]] + 100 * r for r in range(4)]
        assert torch.equal(out[: sum(counts)].cpu(), torch.cat(want))

    gpus(body)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_fused_products(gpus: Simulate, dim: int) -> None:
    def body() -> None:
        name = _world().group_name
        torch.manual_seed(dist.get_rank())
        a = torch.randn(4, 8, 16, device="cuda")
        bs = [torch.randn(64 if dim == 2 else 16, 8, device="cuda") for _ in range(2)]
        whole, products = ops.fused_all_gather_matmul(a, bs, dim, name)
        want_whole, want = _fused_all_gather_matmul_fallback(a, bs, dim, name)
        assert torch.equal(whole, want_whole)
        torch.testing.assert_close(products, want)
        a = torch.randn(8, 8, 16, device="cuda")
        b = torch.randn(16, 8, device="cuda")
        got = ops.fused_matmul_reduce_scatter(a, b, "avg", dim, name)
        torch.testing.assert_close(got, _fused_matmul_reduce_scatter_fallback(a, b, "avg", dim, name))

    gpus(body)


# -- what is not there ---------------------------------------------------------------------------------------------------


def test_multicast_is_what_the_switch_can_do(gpus: Simulate) -> None:
    def body() -> None:
        from torch._C._autograd import DeviceType

        assert not _SymmetricMemory.has_multicast_support(DeviceType.CUDA, 0)
        buffer, handle = _meet()
        assert handle.multicast_ptr == 0
        with pytest.raises(
            RuntimeError, match=r"requires multicast support, which the switches of dgx_a100 do not have"
        ):
            ops.multimem_all_reduce_(buffer, "sum", _world().group_name)

    gpus(body, 2, "dgx_a100")


def test_what_cannot_be_pretended_raises(gpus: Simulate) -> None:
    def body() -> None:
        plain = torch.ones(8, device="cuda")
        with pytest.raises(RuntimeError, match="does not support device type cpu"):
            symm_mem.empty(8, device="cpu")
        with pytest.raises(RuntimeError, match=r"must be in symmetric memory: allocate it with symm_mem\.empty"):
            ops.one_shot_all_reduce(plain, "sum", _world().group_name)
        with pytest.raises(kernbench.KernbenchError, match=r"torch\.ops\.symm_mem\.nvshmem_put is not simulated"):
            ops.nvshmem_put(plain, 0)
        with pytest.raises(kernbench.KernbenchError, match=r"MemPool is not simulated: allocate with symm_mem\.empty"):
            symm_mem.get_mempool_allocator(torch.device("cuda"))
        assert not symm_mem.is_nvshmem_available()
        assert not symm_mem.is_symm_mem_tensor(plain)
        assert symm_mem.get_backend("cuda") == "CUDA"
        symm_mem.empty(8, device="cuda")
        with pytest.raises(RuntimeError, match="cannot be changed afterwards"):
            symm_mem.set_backend("NVSHMEM")

    gpus(body, 2)


def test_buffers_of_different_sizes_are_refused(gpus: Simulate) -> None:
    def body() -> None:
        with pytest.raises(RuntimeError, match="rank 0 of the group brings 256 bytes and rank 1 brings 260"):
            _meet(64 + dist.get_rank())

    gpus(body, 2)


def test_other_nodes_are_out_of_reach(gpus: Simulate) -> None:
    def body() -> None:
        with pytest.raises(RuntimeError, match="its ranks are on 2 nodes"):
            _meet()

    gpus(body, 16, "dgx_h100_2n")


def test_nothing_is_left_behind(gpus: Simulate) -> None:
    """Outside ranks the operations compute nothing, as before."""
    before = symm_mem._group_name_to_workspace_tensor
    gpus(lambda: None, 2)
    with pytest.raises(NotImplementedError, match="one_shot_all_reduce"):
        torch.ops.symm_mem.one_shot_all_reduce(torch.ones(2), "sum", "0")
    assert symm_mem._group_name_to_workspace_tensor is before
    assert isinstance(symm_mem._group_name_to_workspace_tensor, dict)


def _captured(rank: int) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    given = symm_mem.empty(4, device="cuda")
    symm_mem.rendezvous(given, dist.group.WORLD)
    given.copy_(torch.arange(4.0) + 10 * rank)
    graph, name = torch.cuda.CUDAGraph(), dist.group.WORLD.group_name
    with torch.cuda.graph(graph):
        summed = torch.ops.symm_mem.one_shot_all_reduce(given, "sum", name) + 1
    assert summed.tolist() == [11, 13, 15, 17]
    for times in (1, 2):
        given += 100
        graph.replay()
        assert summed.tolist() == [11 + 200 * times + 2 * at for at in range(4)]
        dist.barrier()


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_a_graph_has_its_collectives_in_each_replay(isolation: Any) -> None:
    """Values of what is there then, and the time."""
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(_captured, nprocs=2, isolation=isolation)
        log = [each for each in ctx.engine.op_log.operations if each.rank == 0 and each.name == "all_reduce"]
    assert len(log) == 3
    assert len({round((each.end - each.start) * 1e9) for each in log}) == 1
