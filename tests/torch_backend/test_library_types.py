"""Which types and reductions the libraries take: the table by itself, and what programs get, however their ranks are kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing

import kernbench
from kernbench.ccl.libraries import OPERATIONS, REFUSALS, library_of, refusal
from kernbench.ccl.reduce_op import ReduceOp

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
NO_TYPES_OF_NCCL = (torch.int16, torch.uint16, torch.uint32, torch.uint64)
TAKEN = (
    torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64,
)  # fmt: skip


def words(operation: str, dtype: torch.dtype, op: str = "SUM", **where: Any) -> tuple[type, str] | None:
    reduction = ReduceOp.parse(op) if operation in ("all_reduce", "reduce", "reduce_scatter") else None
    call = {"library": "nccl", "arch": 90, "version": (2, 27), **where}
    row = refusal(call["library"], operation, dtype, reduction, call["arch"], call["version"])
    if row is None:
        return None
    error = row.exception(dtype, reduction)
    return type(error), str(error)


def test_what_the_library_computes_with_is_taken() -> None:
    for operation in OPERATIONS:
        for dtype in TAKEN:
            assert words(operation, dtype) is None
            assert words(operation, dtype, library="rccl", arch=None) is None
    for op in ("MIN", "MAX", "PRODUCT", "AVG"):
        assert words("all_reduce", torch.float16, op) is None
        assert words("reduce_scatter", torch.int32, op) is None


@pytest.mark.parametrize("library", ["nccl", "rccl"])
@pytest.mark.parametrize("dtype", NO_TYPES_OF_NCCL, ids=str)
def test_types_that_nccl_lacks(library: str, dtype: torch.dtype) -> None:
    name = {"int16": "Short", "uint16": "UInt16", "uint32": "UInt32", "uint64": "UInt64"}[
        str(dtype).removeprefix("torch.")
    ]
    for operation in ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast"):
        error, text = words(operation, dtype, library=library) or (None, "")
        assert error is TypeError
        assert text.startswith(f"Input tensor data type is not supported for NCCL process group: {name}")
    for operation in ("all_to_all", "gather", "scatter", "send", "recv"):
        error, text = words(operation, dtype, library=library) or (None, "")
        assert error is RuntimeError
        assert text.startswith(f"Unconvertible NCCL type {name}")


@pytest.mark.parametrize("op", ["BAND", "BOR", "BXOR"])
def test_bitwise_reductions(op: str) -> None:
    for dtype in (torch.int32, torch.uint8, torch.bool):
        for operation in ("all_reduce", "reduce", "reduce_scatter"):
            error, text = words(operation, dtype, op) or (None, "")
            assert error is ValueError
            assert text.startswith(f"Cannot use ReduceOp.{op} with NCCL")
            assert words(operation, dtype, op, library="gloo") is None


def test_averages_of_booleans() -> None:
    assert words("all_reduce", torch.bool, "AVG") == (TypeError, "Cannot use ReduceOp.AVG with boolean inputs")
    assert words("all_reduce", torch.bool, "SUM") is None


@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_floats_of_eight_bits_by_architecture_and_version(dtype: torch.dtype) -> None:
    for op in ("SUM", "MAX", "MIN", "PRODUCT", "AVG"):
        for arch in (90, 100, 120):
            for version in ((2, 24), (2, 27), (2, 28), (2, 30)):
                assert words("reduce_scatter", dtype, op, arch=arch, version=version) is None
        for arch in (70, 80, 89):
            for version in ((2, 24), (2, 27), (2, 28), (2, 30)):
                error, text = words("all_reduce", dtype, op, arch=arch, version=version) or (None, "")
                assert error is dist.DistBackendError
                assert "FP8 reduction support begins with sm90 capable devices." in text
    # what is only moved is refused below sm90 until 2.28; messages, and what torch makes of them, never
    assert words("all_gather", dtype, arch=80, version=(2, 28)) is None
    assert words("broadcast", dtype, arch=80, version=(2, 27)) is not None
    assert words("all_to_all", dtype, arch=80, version=(2, 27)) is None
    # before, they were bytes to torch
    error, text = words("all_reduce", dtype, version=(2, 23)) or (None, "")
    assert (error, text.startswith("Unsupported Float8 type for NCCL reduction")) == (RuntimeError, True)
    assert words("all_gather", dtype, arch=80, version=(2, 23)) is None


def test_rccl_does_not_add_eight_bits() -> None:
    error, text = words("all_reduce", FP8[0], library="rccl", arch=None) or (None, "")
    assert (error, text.startswith("Unsupported Float8 type for NCCL reduction")) == (RuntimeError, True)


def test_each_row_has_a_source_and_names_known_operations() -> None:
    for row in REFUSALS:
        assert row.source in "TNAG"
        assert row.operations <= OPERATIONS
    assert library_of("nccl", "hip") == "rccl"
    assert library_of("mpi", "cuda") == ""


# -- programs ------------------------------------------------------------------------------------------------------------

CASES: dict[str, tuple[str, torch.dtype, str, type, str]] = {
    "int16": ("all_reduce", torch.int16, "SUM", TypeError, "not supported for NCCL process group: Short"),
    "uint16": ("all_gather", torch.uint16, "", TypeError, "not supported for NCCL process group: UInt16"),
    "uint32": ("broadcast", torch.uint32, "", TypeError, "not supported for NCCL process group: UInt32"),
    "sent": ("send", torch.int16, "", RuntimeError, "Unconvertible NCCL type Short"),
    "exchanged": ("all_to_all", torch.int16, "", RuntimeError, "Unconvertible NCCL type Short"),
    "band": ("all_reduce", torch.int32, "BAND", ValueError, "Cannot use ReduceOp.BAND with NCCL"),
    "bor": ("reduce", torch.int32, "BOR", ValueError, "Cannot use ReduceOp.BOR with NCCL"),
    "bxor": ("reduce_scatter", torch.uint8, "BXOR", ValueError, "Cannot use ReduceOp.BXOR with NCCL"),
    "floats": ("all_reduce", torch.float32, "BAND", ValueError, "Cannot use ReduceOp.BAND with NCCL"),
    "bool average": ("all_reduce", torch.bool, "AVG", TypeError, "Cannot use ReduceOp.AVG with boolean inputs"),
    "premultiplied integers": ("premul", torch.int32, "", TypeError, "PreMulSum Data type must be half, float, bfloat16"),
    "fp8 on Ampere": ("all_reduce", FP8[0], "SUM", dist.DistBackendError, "FP8 reduction support begins with sm90"),
}  # fmt: skip


def call(operation: str, x: torch.Tensor, op: str, rank: int) -> None:
    """A collective or a message of a tensor of four elements, in the default group."""
    reduction = getattr(dist.ReduceOp, op) if op else None
    match operation:
        case "all_reduce":
            dist.all_reduce(x, reduction)
        case "reduce":
            dist.reduce(x, 0, reduction)
        case "reduce_scatter":
            dist.reduce_scatter_tensor(x[:2].clone(), x, reduction)
        case "all_gather":
            dist.all_gather([torch.empty_like(x) for _ in range(2)], x)
        case "broadcast":
            dist.broadcast(x, 0)
        case "all_to_all":
            dist.all_to_all_single(torch.empty_like(x), x)
        case "send":
            dist.send(x, 1 - rank) if rank == 0 else dist.recv(x, 1 - rank)
        case "premul":
            dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))


def check_refused(rank: int, cases: dict[str, tuple[str, torch.dtype, str, type, str]]) -> None:
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    for name, (operation, dtype, op, error, text) in cases.items():
        with pytest.raises(error) as raised:
            call(operation, torch.zeros(4, device="cuda").to(dtype), op, rank)
        assert text in str(raised.value), name


@pytest.mark.parametrize("enable_data", [True, False], ids=["data", "no data"])
@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_programs_are_refused_in_torchs_words(isolation: str, enable_data: bool) -> None:
    with kernbench.simulate("dgx_a100", world_size=2, enable_data=enable_data) as ctx:
        ctx.multiprocessing.spawn(check_refused, args=(CASES,), nprocs=2, isolation=isolation)


def test_ranks_that_are_greenlets_are_refused_too() -> None:
    def worker(rank: int, torch_: Any) -> None:
        torch_.distributed.init_process_group("nccl")
        with pytest.raises(TypeError, match="not supported for NCCL process group: Short"):
            torch_.distributed.all_reduce(torch.zeros(4, dtype=torch.int16))
        with pytest.raises(ValueError, match=r"Cannot use ReduceOp\.BAND with NCCL"):
            torch_.distributed.all_reduce(torch.zeros(4, dtype=torch.int32), op="band")

    with kernbench.simulate("dgx_h100", world_size=2) as ctx:
        ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=2, isolation="greenlet")


@pytest.mark.parametrize("enable_data", [True, False], ids=["data", "no data"])
def test_eight_bits_on_hopper(enable_data: bool) -> None:
    def worker(rank: int) -> None:
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        x = torch.full((4,), 3.0 + rank, device="cuda").to(FP8[0])
        for operation, op in (("reduce_scatter", "SUM"), ("all_reduce", "MAX"), ("all_reduce", "SUM")):
            call(operation, x, op, rank)
        if enable_data:
            assert x.float().tolist() == [8.0] * 4  # the larger of 3 and 4, twice

    with kernbench.simulate("dgx_h100", world_size=2, enable_data=enable_data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)


def test_an_algorithm_that_is_named_is_no_librarys() -> None:
    """Algorithms of ``ccl.yaml`` that a program names are the simulator's own, and know what torch knows."""

    def worker(rank: int, torch_: Any) -> None:
        torch_.distributed.init_process_group("nccl")
        x = torch.full((2,), 1 << rank, dtype=torch.int16)
        torch_.distributed.all_reduce(x, op="bor", algorithm="ring_allreduce")
        assert x.tolist() == [3, 3]

    with kernbench.simulate("dgx_h100", world_size=2) as ctx:
        ctx.multiprocessing.spawn(worker, args=(ctx,), nprocs=2)


# -- gloo, asked ---------------------------------------------------------------------------------------------------------

ASKED = (*TAKEN, *NO_TYPES_OF_NCCL, *FP8)
ASKED_REDUCTIONS = ("SUM", "AVG", "MAX", "BAND")


def answers(rank: int) -> dict[str, str]:
    """What a group of gloo says to each type and reduction."""
    said = {}
    for dtype in ASKED:
        for operation, ops in (("all_reduce", ASKED_REDUCTIONS), ("broadcast", ("",)), ("all_gather", ("",))):
            for op in ops:
                try:
                    call(operation, torch.zeros(4).to(dtype), op, rank)
                    said[f"{operation} {dtype} {op}"] = "ok"
                except RuntimeError as error:
                    said[f"{operation} {dtype} {op}"] = str(error).splitlines()[0]
    return said


def _process(rank: int, directory: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{directory}/rendezvous", rank=rank, world_size=2)
    Path(directory, f"{rank}.json").write_text(json.dumps(answers(rank)))
    dist.destroy_process_group()


@pytest.mark.long  # seconds
def test_gloo_says_the_same(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_process, args=(str(tmp_path),), nprocs=2)
    real = json.loads((tmp_path / "0.json").read_text())
    found: dict[int, dict[str, str]] = {}

    def worker(rank: int) -> None:
        dist.init_process_group("gloo")
        found[rank] = answers(rank)

    with kernbench.simulate(world_size=2) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=2)
    for question, answer in real.items():
        assert found[0][question] == answer or found[0][question].startswith(f"{answer}. "), question
