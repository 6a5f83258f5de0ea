"""The bare path of an operation is the whole one, only shorter: the same log, memory, FLOPs and values (ADR 0160).

A host that has a reason for a detour takes the whole path for every operation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

import kernbench
import kernbench.cost
from kernbench.memory.ledger import DIED, SIZE
from kernbench.torch_backend.operations.recorder import Recorder
from tests.parity.gpu_programs import PROGRAMS

WORLD = 4
SLOW = ("tensor_and_sharded", "hsdp", "dtensor_ops", "zero_bubble", "interleaved")
IN_ANY_ORDER = ("zero_bubble", "zero_bubble_v")
"""torch walks sets of autograd's nodes there: gradients of a stage are added in an order that differs from run to run."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """torch warns once per process: a rank that does looks at the clock, which takes it time."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    yield
    logging.disable(before)


def outcome(program: Callable[..., Any], *, data: bool, bare: bool, system: str = "dgx_h100") -> dict[str, Any]:
    """All that a run leaves behind: the log in its order, allocations, FLOPs, clocks, what the program gives."""
    given: dict[int, Any] = {}
    with kernbench.simulate(system, enable_data=data) as ctx:
        if not bare:
            ctx.simulation.hosts.add_detour()

        def worker(rank: int) -> None:
            torch.cuda.set_device(rank)
            dist.init_process_group("nccl")
            given[rank] = program(rank, WORLD, 128)
            dist.destroy_process_group()

        ctx.multiprocessing.spawn(worker, nprocs=WORLD)
        hosts = ctx.simulation.hosts.of_rank
        return {
            "log": [
                (op.name, op.kind, op.rank, op.sip, op.stream, op.enqueue, op.start, op.end, op.duration, op.spread,
                 op.nbytes, op.host, op.interval)
                for op in ctx.engine.op_log.operations
            ],
            "waits": [(rank, begin, end, what.name, sip) for rank, begin, end, what, sip in ctx.engine.op_log.waits],
            "memory": [
                # but for deaths: some are those of cycles, whenever Python collects them
                (ledger.sip, ledger.peak, ledger.peak_time, [entry[SIZE:DIED] for entry in ledger.at_peak()])
                for ledger in ctx.engine.op_log.ledgers
            ],
            "hosts": {
                rank: (host.clock, host.busy, host.account.flops, host.account.recomputed) for rank, host in hosts.items()
            },
            "unmodelled": ctx.op_costs.unmodelled.sentences,
            "values": given,
        }  # fmt: skip


def equal(program: Callable[..., Any], **options: Any) -> dict[str, Any]:
    """What is left of two runs, one on the bare path, which are the same."""
    bare, whole = outcome(program, bare=True, **options), outcome(program, bare=False, **options)
    for part, left in whole.items():
        assert bare[part] == left, part
    return bare


@pytest.mark.parametrize("data", [True, False], ids=["data", "no data"])
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(each, marks=pytest.mark.long) if each.__name__ in SLOW else each
        for each in PROGRAMS
        if each.__name__ not in IN_ANY_ORDER
    ],
    ids=lambda program: program.__name__,
)
def test_a_program_leaves_the_same_behind(program, data):
    equal(program, data=data)


def mixed(rank: int, world: int, width: int) -> list[Any]:
    """What plans must tell apart: numbers by value and type, dtypes, layouts, devices, results that are what was given."""
    torch.manual_seed(7)
    a = torch.arange(width * width, dtype=torch.float32, device="cuda").reshape(width, width) / 8
    b, host = a + 1, torch.ones(width, width)
    found: list[Any] = []
    for _ in range(3):
        found += [
            (a + 1).sum(), (a + True).sum(), (a + 1.0).sum(), (a + 2).sum(), a.add(b, alpha=2).sum(), a.add(b, alpha=3).sum(),
            (a.int() + 1).sum(), (a.to(torch.bfloat16) @ b.to(torch.bfloat16)).float().sum(), (a.t() + b).sum(),
            (host + host).sum(), (a * torch.tensor(2.0)).sum(), torch.nn.functional.dropout(a, 0.5, training=False).sum(),
            a[a > 3].sum(), torch.stack([a, b]).sum(), torch.cat([a, b], 1).amax(), a.clone().t().contiguous().sum(),
            torch.native_dropout(a, 0.0, True)[0].sum(), a.max(0)[0].sum(), torch.unique(a.int() % 5).numel(),
        ]  # fmt: skip
        with torch.cuda.stream(torch.cuda.Stream()):
            found.append((a + 1).sum())
        a.add_(0.5).mul_(b).clamp_(max=3.0)
        torch._foreach_add_([a, b], 1.0)
        if world > 1:
            dist.all_reduce(a)
            a /= world
    weight = torch.ones(width, width, device="cuda", requires_grad=True)
    for _ in range(3):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.layer_norm(a @ weight, (width,)).float().pow(2).mean()
        loss.backward()
        found += [loss.detach(), weight.grad.sum()]
    return [float(each) if isinstance(each, torch.Tensor) else each for each in found]


@pytest.mark.parametrize("data", [True, False], ids=["data", "no data"])
def test_calls_that_differ_in_little(data):
    bare = equal(mixed, data=data)
    assert len(bare["log"]) > 400


def test_a_program_without_a_gpu():
    def program(rank: int, world: int, width: int) -> list[float]:
        x = torch.ones(width, width)
        return [float((x @ x + step).sum()) for step in range(4)]

    def run(bare: bool) -> Any:
        with kernbench.simulate() as ctx:
            if not bare:
                ctx.simulation.hosts.add_detour()
            found: dict[int, Any] = {}
            ctx.multiprocessing.spawn(lambda rank: found.update({rank: program(rank, 2, 64)}), nprocs=2)
            return (
                found,
                [(op.name, op.rank, op.start, op.end, op.host) for op in ctx.engine.op_log.operations],
                ctx.now(),
            )

    assert run(bare=True) == run(bare=False)


def test_most_operations_take_the_bare_path(monkeypatch: pytest.MonkeyPatch):
    """Else the tests above compare the whole path with itself."""
    taken = {"bare": 0, "whole": 0}
    for name, what in (("_run_plan", "bare"), ("_whole", "whole")):
        stock = getattr(Recorder, name)

        def counted(self: Any, *args: Any, stock: Any = stock, what: str = what) -> Any:
            taken[what] += 1
            return stock(self, *args)

        monkeypatch.setattr(Recorder, name, counted)

    def program(rank: int, world: int, width: int) -> None:
        a = torch.ones(width, width, device="cuda")
        for _ in range(50):
            a = torch.relu(a @ a + a)

    for data in (True, False):
        taken.update(bare=0, whole=0)
        outcome(program, data=data, bare=True)
        assert taken["bare"] >= 140 * WORLD
        assert taken["whole"] < 40 * WORLD


def test_another_cost_or_kernel_makes_other_plans():
    """What is registered while a program runs counts from then on."""
    registered: list[Any] = []

    def of_relu(given: Any, made: Any) -> kernbench.cost.StatedWork:
        return kernbench.cost.StatedWork(1 << 34)

    def program(rank: int, world: int, width: int) -> list[float]:
        a = torch.ones(1024, 1024, device="cuda")
        took = []
        for known in (False, True, False):
            if known and rank == 0:
                registered.append(
                    kernbench.cost.register(
                        "aten::relu", lambda given, made: kernbench.cost.StatedWork(1 << 34), replace=True
                    )
                )
            dist.barrier()
            torch.relu(a)
            torch.cuda.synchronize()
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            begin.record()
            torch.relu(a)
            end.record()
            torch.cuda.synchronize()
            took.append(begin.elapsed_time(end))
            dist.barrier()
            if known and rank == 0:
                registered.pop().unregister()
            dist.barrier()
        return took

    before, known, after = outcome(program, data=True, bare=True)["values"][0]
    assert before == pytest.approx(after)  # differences of clocks that have gone on
    assert known > 5.0 > 1.0 > before
