"""Operators that each rank registers are each rank's."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.distributed as dist

import kernbench
from tests.torch_backend.conftest import Ranks


def test_a_custom_operator_with_a_gradient(ranks: Ranks) -> None:
    def body() -> tuple[float, float, float, tuple[int, ...]]:
        rank = dist.get_rank()

        @torch.library.custom_op("kernbench_test::scaled", mutates_args=())
        def scaled(x: torch.Tensor) -> torch.Tensor:
            return x * (rank + 1)

        @scaled.register_fake
        def _(x: torch.Tensor) -> torch.Tensor:
            return x.new_empty(rank)

        scaled.register_autograd(lambda ctx, grad: grad * (rank + 10), setup_context=lambda ctx, inputs, output: None)
        dist.barrier()  # by now all have defined it
        x = torch.ones(1, requires_grad=True)
        y = scaled(x)
        y.sum().backward()
        assert x.grad is not None
        by_name = torch.ops.kernbench_test.scaled(torch.full((1,), 2.0))
        meta = torch.ops.kernbench_test.scaled(torch.empty(7, device="meta"))
        dist.barrier()
        return y.item(), x.grad.item(), by_name.item(), tuple(meta.shape)

    for _ in range(2):
        assert ranks(body) == [(rank + 1.0, rank + 10.0, 2.0 * (rank + 1), (rank,)) for rank in range(4)]


@pytest.mark.long  # seconds
def test_a_library_that_all_ranks_define(ranks: Ranks) -> None:
    def body() -> float:
        rank = dist.get_rank()
        library = torch.library.Library("kernbench_defined", "DEF")
        library.define("plus(Tensor x) -> Tensor")
        library.impl("plus", lambda x: x + rank, "CompositeExplicitAutograd")
        dist.barrier()
        return float(torch.ops.kernbench_defined.plus(torch.zeros(1)).item())

    for _ in range(2):
        assert ranks(body) == [0.0, 1.0, 2.0, 3.0]
        gc.collect()


@pytest.mark.long  # seconds
def test_what_torch_refuses_is_refused(ranks: Ranks) -> None:
    def twice() -> None:
        keep = torch.library.Library("kernbench_twice", "DEF")
        torch.library.Library("kernbench_twice", "DEF")
        keep.define("never() -> ()")

    def unlike() -> None:
        library = torch.library.Library("kernbench_unlike", "DEF")
        library.define("op(Tensor x) -> Tensor" if dist.get_rank() else "op(Tensor x, int n) -> Tensor")
        dist.barrier()

    for body, message in ((twice, "Only a single TORCH_LIBRARY"), (unlike, "multiple times")):
        with pytest.raises(kernbench.SpawnException, match=message):
            ranks(body)
        gc.collect()


def test_rules_of_modes_and_types_of_arguments(ranks: Ranks) -> None:
    from torch._library.opaque_object import register_opaque_type
    from torch._library.simple_registry import singleton
    from torch._opaque_base import OpaqueBase

    def body() -> tuple[int, str]:
        rank = dist.get_rank()
        rules = singleton.find("kernbench_test::ruled").torch_dispatch_rules
        handle = rules.register(int, lambda: rank)
        mine = type("Tag", (OpaqueBase,), {"__module__": __name__})
        register_opaque_type(mine, typ="reference")
        dist.barrier()  # by now all have registered both
        with pytest.raises(RuntimeError, match="already has a `__torch_dispatch__` rule"):
            rules.register(int, lambda: -1)
        with pytest.raises(RuntimeError, match="already registered"):
            register_opaque_type(mine, typ="reference")
        rule = rules.find(int)
        assert rule is not None
        found = rule()
        handle.destroy()
        assert rules.find(int) is None
        dist.barrier()
        return found, torch._library.opaque_object.get_opaque_type_name(mine)

    for _ in range(2):  # a second simulation in the same process registers the same
        assert ranks(body) == [(rank, f"{__name__}.Tag") for rank in range(4)]
    assert singleton.find("kernbench_test::ruled").torch_dispatch_rules.find(int) is None


def test_a_type_that_one_rank_takes_back_stays_that_of_the_others(ranks: Ranks) -> None:
    from torch._library import opaque_object

    if not hasattr(opaque_object, "unregister_custom_class"):
        pytest.skip("torch takes types back since 2.15")

    def body() -> list[bool]:
        mine = type("Returned", (opaque_object.CustomClassBase,), {"__module__": __name__})
        found = []
        opaque_object.register_custom_class(mine, typ="symbolic")
        dist.barrier()
        for rank in range(dist.get_world_size()):
            if rank == dist.get_rank():
                opaque_object.unregister_custom_class(mine)
            dist.barrier()
            found.append(torch._C._is_opaque_type_registered(f"{__name__}.Returned"))
            dist.barrier()
        opaque_object.register_custom_class(mine, typ="symbolic")  # as after any other taking back
        dist.barrier()
        opaque_object.unregister_custom_class(mine)
        return found

    for _ in range(2):
        assert ranks(body) == [[True, True, True, False]] * 4


def test_a_kernel_for_autocast_is_that_of_the_device() -> None:
    found = []

    def worker(rank: int) -> None:
        library = torch.library.Library("kernbench_autocast", "FRAGMENT")
        library.define("plus(Tensor x) -> Tensor")
        library.impl("plus", lambda x: x + 1, "CompositeExplicitAutograd")
        again = torch.ops.kernbench_autocast.plus
        library.impl("plus", lambda x: again(x.float()), "AutocastCUDA")
        narrow = torch.ones(1, device="cuda", dtype=torch.float16)
        with torch.autocast("cuda"):
            found.extend(each.dtype for each in (again(narrow), again(narrow.cpu())))
        library.impl("plus", lambda x: again(x.double()), "AutocastCPU")
        with torch.autocast("cuda"), torch.autocast("cpu"):
            found.extend(each.dtype for each in (again(narrow), again(narrow.cpu())))
        found.append(again(narrow).dtype)

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    assert found == [torch.float32, torch.float16, torch.float32, torch.float64, torch.float16]
