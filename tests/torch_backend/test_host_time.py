"""What the host's side of a program takes: by class of operation, and not where operators are not called."""

from __future__ import annotations

import importlib
import logging
import re
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

import kernbench
from kernbench.simulation.active_simulation import current_simulation
from kernbench.topology.system import HostSpec

SPEC = HostSpec()


def spent(body, system="dgx_h100"):
    """Host seconds of ``body(x)``, called twice: the second time nothing is made for the first time."""
    found = []

    def worker(rank):
        x = torch.ones(64, 64, device="cuda", requires_grad=True)
        for _ in range(2):
            host = current_simulation().hosts.current()
            before = host.clock
            body(x)
            found.append(host.clock - before)

    with kernbench.simulate(system) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        found.append(ctx.topology.device.launch.overhead)
    return found[1:]


def without_gradient(body):
    return lambda x: body(x.detach())


CASES = {
    "a launch": (lambda x: x + 1, 1, {"operator": 1, "autograd": 1}),
    "a launch without gradient": (without_gradient(lambda x: x + 1), 1, {"operator": 2}),
    "a view": (lambda x: x.transpose(0, 1), 0, {"operator": 1}),
    "a view of torch's": (lambda x: x.t(), 0, {"view": 1}),
    "a layer": (without_gradient(lambda x: torch.nn.functional.linear(x, x)), 1, {"operator": 2, "view": 1}),
    "two kernels": (without_gradient(lambda x: torch.nn.functional.embedding(x[0].long() * 0, x)), 3, {"operator": 5}),
    "a list": (without_gradient(lambda x: torch._foreach_mul_([x] * 5, 2.0)), 1, {"operator": 2, "tensor": 5}),
}


CASES["a convolution"] = (
    without_gradient(lambda x: torch.nn.functional.conv2d(x.view(1, 1, 64, 64), x[:3, :3].reshape(1, 1, 3, 3))),
    1,
    {"operator": 6, "library": 1},
)


@pytest.mark.parametrize("name", CASES)
def test_each_class_of_operation_has_its_cost(name):
    body, launches, rest = CASES[name]
    took, overhead = spent(body)
    assert took == pytest.approx(
        launches * overhead + sum(getattr(SPEC, field) * count for field, count in rest.items())
    )


def test_a_backward_pass_pays_for_the_engine():
    """``sum`` expands what came back; its gradient is ones, which are made."""
    took, overhead = spent(lambda x: torch.autograd.grad((x * x).sum(), x))
    forward = 2 * (overhead + SPEC.operator + SPEC.autograd)
    # ones like the loss, before the engine starts; then two products and their sum, and a view of the ones
    ones = overhead + SPEC.operator + SPEC.autograd
    assert took - forward == pytest.approx(ones + SPEC.begin + 3 * (overhead + SPEC.backward) + SPEC.view)


def test_nothing_but_launches_costs_anything_where_operators_are_not_called_one_by_one():
    def body(x):
        host = current_simulation().hosts.current()
        with host.launching(2e-6):
            (x.t() @ x + 1).sum()

    assert spent(body)[0] == pytest.approx(3 * 2e-6)

    def graph(x):
        with current_simulation().hosts.current().launching(0.0):
            body_of_graph = x * 2
            body_of_graph.sum().backward()

    assert spent(graph)[0] == 0.0


def test_another_cpu_takes_longer(tmp_path):
    path = tmp_path / "slow.yaml"
    path.write_text("extends: dgx_h100\nsystem: {name: slow, host: {cpu: an old one, factor: 3}}\n")
    assert spent(lambda x: x.t(), str(path))[0] == pytest.approx(3 * SPEC.view)


def test_tensors_that_see_their_operations_pay_for_it():
    def worker(rank):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        whole = torch.ones(8, 8, device="cuda")
        shared = distribute_tensor(whole, init_device_mesh("cuda", (1,)), [Replicate()])
        took = []
        for each in (whole, shared):
            for _ in range(2):
                host = current_simulation().hosts.current()
                before = host.clock
                each.mul_(2.0)
            took.append(host.clock - before)
        found.append(took)

    found = []
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    plain, wrapped = found[0]
    assert wrapped - plain == pytest.approx(SPEC.subclass)


def test_the_host_runs_ahead_of_long_kernels_and_is_waited_for_by_short_ones():
    def worker(rank, size, out):
        x = torch.ones(size, size, device="cuda", dtype=torch.bfloat16)
        torch.cuda.synchronize()
        host = current_simulation().hosts.current()
        before = host.clock
        for _ in range(20):
            x.t().t().t() @ x
        issued = host.clock
        torch.cuda.synchronize()
        out.append((issued - before, host.clock - before))

    small, large = [], []
    with kernbench.simulate("dgx_h100", enable_data=False) as ctx:
        launch = ctx.topology.device.launch
        ctx.multiprocessing.spawn(worker, args=(16, small), nprocs=1)
        ctx.multiprocessing.spawn(worker, args=(4096, large), nprocs=1)
    issue = 20 * (launch.overhead + SPEC.operator + 3 * SPEC.view)
    assert small[0][0] == pytest.approx(issue)
    assert large[0][0] == pytest.approx(issue)
    assert small[0][1] < issue + 20e-6
    assert large[0][1] > 5 * issue


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_pays_for_its_step_and_its_parameters(make):
    """Beside its operators, which lists of parameters share."""
    took = {}
    for count in (1, 2):
        weights = [torch.nn.Parameter(torch.ones(8, device="meta")) for _ in range(count)]

        def body(x, count=count, weights=weights):
            mine = [torch.nn.Parameter(x.detach()[: each.numel(), 0].clone()) for each in weights]
            for each in mine:
                each.grad = torch.ones_like(each)
            optimizer = make(mine, lr=0.1, foreach=True)
            optimizer.step()
            host = current_simulation().hosts.current()
            before = host.clock
            optimizer.step()
            took[count] = host.clock - before

        spent(body)
    more = took[2] - took[1]
    assert SPEC.parameter < more < SPEC.parameter + 30 * SPEC.tensor + 10 * SPEC.operator
    assert took[1] > SPEC.step + SPEC.parameter


class _Slice(torch.nn.Parameter):
    """A part of a larger parameter: its gradient is a part of that one's, made anew at each look."""

    whole: torch.Tensor

    @property
    def grad(self):
        return None if self.whole.grad is None else self.whole.grad[:4].view(2, 2)


class _Idle(torch.optim.Optimizer):
    """Does nothing in a step."""

    def step(self):
        pass


@pytest.mark.parametrize("enable_data", [True, False])
def test_looks_of_the_simulator_at_gradients_that_a_program_computes_cost_nothing(enable_data):
    found = []

    def worker(rank):
        model = torch.nn.Linear(2, 2, bias=False)
        whole = torch.ones(8, requires_grad=True)
        model.weight = _Slice(torch.ones(2, 2))
        model.weight.whole = whole
        optimizer = _Idle([model.weight], {})
        host = current_simulation().hosts.current()
        for _ in range(2):
            whole.sum().backward()
            before = host.clock
            optimizer.step()
            found.append(host.clock - before)

    with kernbench.simulate("dgx_h100", enable_data=enable_data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    assert found == [0.0, 0.0]


def test_a_line_of_a_log_costs_nothing_and_a_look_at_the_clock_does():
    """What torch logs once is logged by one of the ranks of a process, and by each that is one."""
    assert spent(lambda x: logging.LogRecord("", logging.INFO, "", 0, "", (), None))[0] == 0.0
    assert spent(lambda x: time.time())[0] == pytest.approx(50e-9)


def test_a_module_of_a_package_that_looks_at_the_clock_when_it_is_imported_takes_no_time(tmp_path):
    """Ranks of one process import one with compiled parts once, and each that is a process for itself."""
    module = "import time\nSTART = time.time()\ndef look():\n    return time.time()"
    code = compile(module, str(tmp_path / "site-packages" / "a_package.py"), "exec")
    names = {"__name__": "a_package"}
    assert spent(lambda x: exec(code, names))[0] == 0.0
    assert spent(lambda x: names["look"]())[0] == pytest.approx(50e-9)
    assert spent(lambda x: exec(compile(module, str(tmp_path / "program.py"), "exec"), names))[0] == pytest.approx(
        50e-9
    )


@pytest.mark.long  # seconds
def test_every_figure_is_used():
    """A figure of the description that nothing reads is a class of operations that costs nothing."""
    package = Path(kernbench.__file__).parent
    text = "".join(
        path.read_text() for path in package.rglob("*.py") if path.name not in ("system.py", "host_speed.py")
    )
    figures = [name for name in HostSpec.model_fields if name not in ("cpu", "factor")]
    assert [name for name in figures if not re.search(rf"\b(host|spec|_host)\.{name}\b", text)] == []


@pytest.mark.parametrize("enable_data", [True, False])
def test_what_a_module_of_torch_makes_when_it_is_imported_is_nobodys(tmp_path, monkeypatch, enable_data):
    """Ranks share the module: the one that imports it first would pay for all."""
    (tmp_path / "of_constants.py").write_text("import torch\n\nTWO = (torch.tensor(1.0) + 1).view(1)\n")
    monkeypatch.setattr(torch, "__path__", [*torch.__path__, str(tmp_path)])
    imports, views, values = [], [], []

    def worker(rank):
        host = current_simulation().hosts.current()
        begin = host.clock
        found = importlib.import_module("torch.of_constants")
        imports.append(host.clock - begin)
        begin = host.clock
        torch.tensor(1.0).view(1)
        views.append(host.clock - begin)
        values.append(found.TWO.item())

    try:
        with kernbench.simulate("dgx_h100", enable_data=enable_data) as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=2)
    finally:
        sys.modules.pop("torch.of_constants", None)
        vars(torch).pop("of_constants", None)
    assert imports == [0.0, 0.0]
    assert min(views) > 0  # as for a program that makes the same
    assert values == [2.0, 2.0]
