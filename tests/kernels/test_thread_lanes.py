"""Kernels that tell their threads apart: scalar inline assembly and special registers are each thread's own."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from triton.language import core

from kernbench.errors import KernbenchError
from kernbench.triton_engine import machine, thread_lanes

pytestmark = pytest.mark.beyond_interpreter("has no inline assembly")


@triton.jit
def _thread():
    return tl.inline_asm_elementwise("mov.u32 $0, %tid.x;", "=r", [], dtype=tl.int32, is_pure=True, pack=1)


@triton.jit
def _threads():
    return tl.inline_asm_elementwise("mov.u32 $0, %ntid.x;", "=r", [], dtype=tl.int32, is_pure=True, pack=1)


@core.extern
def _register(name: core.constexpr, _semantic=None):
    symbol = f"llvm.nvvm.read.ptx.sreg.{core._unwrap_if_constexpr(name)}"
    return core.extern_elementwise("", "", [], {(): (symbol, core.dtype("int32"))}, is_pure=True, _semantic=_semantic)


@triton.jit
def _put(target, value):
    tl.inline_asm_elementwise(
        "st.global.b32 [$1], $2; mov.u32 $0, 0;", "=r,l,r", [target.to(tl.int64), value],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def copy_kernel(source, target, n):
    """One element per thread, guarded by a predicate."""
    at = tl.program_id(0) * _threads() + _thread()
    tl.inline_asm_elementwise(
        """
        {
            .reg .pred here;
            .reg .b32 word;
            setp.lt.s32 here, $3, $4;
            @here ld.global.b32 word, [$1];
            @here st.global.b32 [$2], word;
            mov.u32 $0, 0;
        }
        """,
        "=r,l,l,r,r", [(source + at).to(tl.int64), (target + at).to(tl.int64), at, n],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def branching_kernel(source, target, n):
    """One element per thread, guarded by a branch, which parts the threads of the last program only."""
    at = tl.program_id(0) * _register("ntid.x") + _register("tid.x")
    if at < n:
        _put(target + at, tl.load(source + at))


@triton.jit
def striding_kernel(source, target, n):
    """Threads walk through the data with a stride of the whole grid: some take a turn more than others."""
    at = tl.program_id(0) * _threads() + _thread()
    while at < n:
        _put(target + at, tl.load(source + at))
        at += tl.num_programs(0) * _threads()


@pytest.mark.parametrize("warps", [1, 4, 8])
@pytest.mark.parametrize("kernel", [copy_kernel, branching_kernel, striding_kernel])
def test_every_thread_moves_its_element(kernel, warps):
    n = 1000
    source, target = torch.arange(n, dtype=torch.int32), torch.full((1024,), -1, dtype=torch.int32)
    programs = 2 if kernel is striding_kernel else triton.cdiv(n, 32 * warps)
    kernel[(programs,)](source, target, n, num_warps=warps)
    assert torch.equal(target[:n], source)
    assert (target[n:] == -1).all()


@triton.jit
def registers_kernel(out):
    base = out + tl.program_id(0) * 5 * 64 + _register("tid.x")
    _put(base, _register("tid.x"))
    _put(base + 64, _register("ntid.x"))
    _put(base + 2 * 64, _register("laneid"))
    _put(base + 3 * 64, _register("warpid"))
    _put(base + 4 * 64, _register("ctaid.x"))


def test_registers_by_the_names_of_llvm():
    out = torch.full((3, 5, 64), -1, dtype=torch.int32)
    registers_kernel[(3,)](out, num_warps=2)
    thread = torch.arange(64, dtype=torch.int32)
    for program in range(3):
        want = [thread, torch.full_like(thread, 64), thread % 32, thread // 32, torch.full_like(thread, program)]
        assert torch.equal(out[program], torch.stack(want))


@triton.jit
def once_kernel(x, stored, counted, added, N: tl.constexpr):
    """What has tiles, scalar stores and atomics are a program's; scalar assembly is every thread's."""
    program, thread = tl.program_id(0), _thread()
    total = tl.sum(tl.load(x + program * N + tl.arange(0, N)), 0)
    tl.store(stored + program, total + thread)
    before = tl.atomic_add(counted, 1)
    tl.inline_asm_elementwise(
        "red.global.add.u32 [$1], $2; mov.u32 $0, 0;", "=r,l,r", [(added + program).to(tl.int64), thread + before * 0],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


def test_what_is_a_programs_happens_once():
    x = torch.randint(0, 9, (3, 64), dtype=torch.int32)
    stored, counted, added = (torch.zeros(n, dtype=torch.int32) for n in (3, 1, 3))
    once_kernel[(3,)](x, stored, counted, added, N=64)
    assert torch.equal(stored, x.sum(1).int())  # thread 0 stores
    assert counted.item() == 3
    assert added.tolist() == [sum(range(128))] * 3


@triton.jit
def elected_kernel(flag, x, out, N: tl.constexpr):
    """One thread waits and tells, all go on with tiles: the usual shape of a barrier between programs."""
    program, thread = tl.program_id(0), _thread()
    tl.store(x + program * N + tl.arange(0, N), tl.arange(0, N) * (program + 1))
    tl.debug_barrier()
    if thread == 0:
        tl.inline_asm_elementwise(
            "red.global.add.u32 [$1], 1; mov.u32 $0, 0;", "=r,l", [flag.to(tl.int64)],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
        tl.inline_asm_elementwise(
            """
            {
                .reg .pred some;
                again: ld.global.acquire.u32 $0, [$1];
                setp.ne.u32 some, $0, $2;
                @some bra again;
            }
            """,
            "=r,l,r", [flag.to(tl.int64), tl.num_programs(0)], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    tl.debug_barrier()
    other = (program + 1) % tl.num_programs(0)
    tl.store(out + program * N + tl.arange(0, N), tl.load(x + other * N + tl.arange(0, N)))


def test_threads_meet_where_tiles_are():
    flag, x, out = torch.zeros(1, dtype=torch.int32), torch.zeros(4, 32, dtype=torch.int32), torch.zeros(4, 32).int()
    elected_kernel[(4,)](flag, x, out, N=32)
    assert torch.equal(out, torch.stack([torch.arange(32) * (p + 1) for p in (1, 2, 3, 0)]).int())
    assert flag.item() == 4


@triton.jit
def exchange_kernel(flags, x, out, PROGRAMS: tl.constexpr, N: tl.constexpr):
    """Programs meet at a barrier of which each thread keeps a part, with a tile and two scalars that they need afterwards."""
    program, thread = tl.program_id(0), _thread()
    at = tl.arange(0, N)
    tile, scale = tl.load(x + program * N + at), tl.load(x + program)
    if thread < PROGRAMS:
        tl.inline_asm_elementwise(
            """
            {
                .reg .pred some;
                .reg .b32 seen;
                red.global.add.u32 [$1], 1;
                again: ld.global.acquire.u32 seen, [$1];
                setp.ne.u32 some, seen, $2;
                @some bra again;
                mov.u32 $0, 0;
            }
            """,
            "=r,l,r", [(flags + thread).to(tl.int64), PROGRAMS], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip
    tl.debug_barrier()
    tl.store(out + program * N + at, tile * scale)
    _put(flags + PROGRAMS + thread, thread)


def test_threads_that_have_met_hold_a_tile_once(monkeypatch):
    programs, threads, n = 4, 64, 32
    held = []

    def watched(batch):
        batch = thread_lanes.together(batch)
        types = batch.execution.program.types
        tiles = [v for v, ty in zip(batch.env, types, strict=True) if type(v) is torch.Tensor and ty.shape]
        held.append((batch.lanes, max((v.shape[1] for v in tiles), default=1)))
        return batch

    monkeypatch.setattr(machine, "together", watched)
    x = torch.randint(0, 9, (programs, n), dtype=torch.int32)
    flags, out = torch.zeros(programs + threads, dtype=torch.int32), torch.zeros_like(x)
    exchange_kernel[(programs,)](flags, x, out, PROGRAMS=programs, N=n, num_warps=threads // 32)
    assert torch.equal(out, x * x.reshape(-1)[:programs, None])
    assert flags.tolist() == [programs] * programs + list(range(threads))
    assert held[-1] == ((programs, threads), 1)


@triton.jit
def guarded_kernel(flags, N: tl.constexpr, MOST: tl.constexpr):
    thread = _thread()
    if thread < MOST:
        tl.inline_asm_elementwise(
            "atom.global.add.u32 $0, [$1], 1;", "=r,l", [(flags + tl.arange(0, N)).to(tl.int64)],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


def test_a_thread_for_each_element_runs_assembly_of_a_tile_once():
    flags = torch.zeros(8, dtype=torch.int32)
    guarded_kernel[(3,)](flags, N=8, MOST=8)
    assert flags.tolist() == [3] * 8
    with pytest.raises(KernbenchError, match="by some threads of a program only"):
        guarded_kernel[(3,)](flags, N=8, MOST=4)


@triton.jit
def tile_of_threads_kernel(out):
    tl.store(out + _thread() * 2 + tl.arange(0, 2), tl.arange(0, 2))


@triton.jit
def tile_number_kernel(out, N: tl.constexpr):
    at = tl.arange(0, N)
    number = tl.inline_asm_elementwise("mov.u32 $0, %tid.x; // $1", "=r,r", [at], dtype=tl.int32, is_pure=True, pack=1)
    tl.store(out + at, number)


def test_a_tile_that_depends_on_the_layout_is_refused():
    with pytest.raises(KernbenchError, match="differs between the threads of a program"):
        tile_of_threads_kernel[(1,)](torch.zeros(256, dtype=torch.int32))
    out = torch.zeros(128, dtype=torch.int32)
    tile_number_kernel[(1,)](out, N=128)
    assert torch.equal(out, torch.arange(128).int())
    for n in (64, 256):
        with pytest.raises(KernbenchError, match=f"tile of \\[{n}\\] uses %tid, and which of 128 threads"):
            tile_number_kernel[(1,)](torch.zeros(n, dtype=torch.int32), N=n)


@triton.jit
def warp_kernel(x, total, below, even):
    """A sum over each warp by shuffles, the value of the thread below, and a ballot."""
    at = tl.program_id(0) * _threads() + _thread()
    value = tl.load(x + at)
    result, lower, votes = tl.inline_asm_elementwise(
        """
        {
            .reg .b32 t;
            .reg .pred p;
            mov.b32 $0, $3;
            shfl.sync.bfly.b32 t, $0, 16, 0x1f, -1; add.s32 $0, $0, t;
            shfl.sync.bfly.b32 t, $0, 8, 0x1f, -1;  add.s32 $0, $0, t;
            shfl.sync.bfly.b32 t, $0, 4, 0x1f, -1;  add.s32 $0, $0, t;
            shfl.sync.bfly.b32 t, $0, 2, 0x1f, -1;  add.s32 $0, $0, t;
            shfl.sync.bfly.b32 t, $0, 1, 0x1f, -1;  add.s32 $0, $0, t;
            shfl.sync.up.b32 $1|p, $3, 1, 0, -1;
            @!p mov.b32 $1, -7;
            and.b32 t, $3, 1;
            setp.eq.s32 p, t, 0;
            vote.sync.ballot.b32 $2, p, -1;
        }
        """,
        "=&r,=&r,=&r,r", [value], dtype=(tl.int32, tl.int32, tl.int32), is_pure=True, pack=1,
    )  # fmt: skip
    _put(total + at, result)
    _put(below + at, lower)
    _put(even + at, votes)


def test_threads_of_a_warp_talk_to_each_other():
    x = torch.randint(0, 100, (2, 2, 32), dtype=torch.int32)
    total, below, even = (torch.zeros_like(x) for _ in range(3))
    warp_kernel[(2,)](x, total, below, even, num_warps=2)
    assert torch.equal(total, x.sum(-1, keepdim=True).int().expand_as(x))
    assert torch.equal(below[..., 1:], x[..., :-1])
    assert (below[..., 0] == -7).all()
    ballots = ((x % 2 == 0).long() << torch.arange(32)).sum(-1, keepdim=True).expand_as(x)
    assert torch.equal(even.long() & 0xFFFFFFFF, ballots)


def test_shuffles_of_tiles_are_refused():
    @triton.jit
    def kernel(x):
        at = x + tl.arange(0, 128)
        y = tl.inline_asm_elementwise("shfl.sync.bfly.b32 $0, $1, 1, 0x1f, -1;", "=r,r", [tl.load(at)],
                                      dtype=tl.int32, is_pure=True, pack=1)  # fmt: skip
        tl.store(at, y)

    with pytest.raises(KernbenchError, match="uses shfl"):
        kernel[(1,)](torch.zeros(128, dtype=torch.int32))
