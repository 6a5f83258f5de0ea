"""A rank's GPUs have generators of their own, beside the host's."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import nn

from tests.torch_backend.conftest import Ranks


def expected(seed: int, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    """What a generator that was seeded so draws, one after the other."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def _two_streams() -> None:
    torch.manual_seed(5)
    torch.cuda.manual_seed(7)
    host = torch.get_rng_state()
    first = torch.randn(3, device="cuda")
    second = torch.empty(2, device="cuda").normal_()
    third = nn.functional.dropout(torch.ones(64, device="cuda"))
    assert torch.equal(torch.get_rng_state(), host)
    on_device = torch.cuda.get_rng_state()
    mine = [torch.randn(3), torch.randn(2)]
    assert torch.equal(torch.cuda.get_rng_state(), on_device)
    for drawn, wanted in zip([first, second, *mine], expected(7, (3,), (2,)) + expected(5, (3,), (2,)), strict=True):
        assert torch.equal(drawn.cpu(), wanted)
    assert 0 < int((third == 0).sum()) < 64


def _manual_seed_reaches_both() -> None:
    torch.manual_seed(11)
    assert torch.cuda.initial_seed() == torch.initial_seed() == 11
    assert torch.equal(torch.randn(3, device="cuda").cpu(), expected(11, (3,))[0])


def _states_come_back() -> None:
    torch.cuda.manual_seed(3)
    state = torch.cuda.get_rng_state()
    once = torch.rand(4, device="cuda")
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="cuda"), once)
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.set_state(state)
    assert torch.equal(torch.rand(4, device="cuda"), once)
    with torch.random.fork_rng():
        torch.rand(4), torch.rand(4, device="cuda")
        inside = torch.cuda.get_rng_state()
    assert not torch.equal(torch.cuda.get_rng_state(), inside)


def _states_are_shared_and_changed() -> None:
    """As trackers of random states do that work with CUDA graphs."""
    assert hasattr(torch.Generator, "graphsafe_set_state")
    assert hasattr(torch.Generator, "clone_state")
    torch.cuda.manual_seed(3)
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    first, other = generator.graphsafe_get_state(), generator.clone_state()
    other.manual_seed(5)
    assert torch.equal(torch.rand(4, device="cuda").cpu(), torch.rand(4, generator=torch.Generator().manual_seed(3)))
    generator.graphsafe_set_state(other)
    assert torch.equal(torch.randn(3, device="cuda").cpu(), expected(5, (3,))[0])
    assert torch.cuda.initial_seed() == 5
    assert torch.equal(other.get_state(), torch.cuda.get_rng_state())
    assert torch.equal(torch.randn(2, device="cuda", generator=generator).cpu(), expected(5, (3,), (2,))[1])
    generator.graphsafe_set_state(first)
    assert torch.cuda.initial_seed() == 3
    assert isinstance(first, torch.Generator)
    with pytest.raises(TypeError, match="a generator of a GPU"):
        generator.graphsafe_set_state(torch.Generator())


def _each_device_has_its_own() -> None:
    torch.cuda.manual_seed_all(3)
    assert torch.equal(torch.rand(4, device="cuda:0"), torch.rand(4, device="cuda:1").to("cuda:0"))
    torch.cuda.set_rng_state(torch.cuda.get_rng_state("cuda:0"), device="cuda:2")
    torch.rand(1, device="cuda:0")
    assert not torch.equal(torch.cuda.get_rng_state(0), torch.cuda.get_rng_state(2))
    states = torch.cuda.get_rng_state_all()
    torch.rand(1, device="cuda:1")
    torch.cuda.set_rng_state_all(states)
    assert all(torch.equal(now, then) for now, then in zip(torch.cuda.get_rng_state_all(), states, strict=True))
    assert len(torch.cuda.default_generators) == torch.cuda.device_count()


def _a_generator_that_is_given_is_used() -> None:
    torch.cuda.manual_seed(1)
    before = torch.cuda.get_rng_state()
    given = torch.Generator(device="cuda").manual_seed(9)
    assert torch.equal(torch.randn(3, device="cuda", generator=given).cpu(), expected(9, (3,))[0])
    assert torch.equal(torch.cuda.get_rng_state(), before)


def _checkpoint_draws_the_same_again() -> None:
    x = torch.ones(64, device="cuda", requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(lambda x: nn.functional.dropout(x) * x, x, use_reentrant=False)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, 2 * y)


def _a_tracker_leaves_the_host_alone() -> None:
    """As Megatron's does: the state of each rank's weights is kept beside the default one."""
    torch.manual_seed(0)
    default = torch.cuda.get_rng_state()
    torch.cuda.manual_seed(100 + dist.get_rank())
    weights = torch.randn(2, device="cuda")
    torch.cuda.set_rng_state(default)
    everybody: list[Any] = [None, None]
    dist.all_gather_object(everybody, (weights.cpu(), torch.randn(2), torch.randn(2, device="cuda").cpu()))
    (mine, host, shared), (others, their_host, their_shared) = everybody
    assert not torch.equal(mine, others)
    assert torch.equal(host, their_host)
    assert torch.equal(shared, their_shared)


@pytest.mark.parametrize(
    "case",
    [
        _two_streams,
        _manual_seed_reaches_both,
        _states_come_back,
        _states_are_shared_and_changed,
        _each_device_has_its_own,
        _a_generator_that_is_given_is_used,
        _checkpoint_draws_the_same_again,
        _a_tracker_leaves_the_host_alone,
    ],
)
def test_case(ranks: Ranks, case: Any) -> None:
    ranks(case, 2, backend="nccl")


def test_every_kind_of_drawing_is_seen(ranks: Ranks) -> None:
    """If torch tagged no longer what draws, numbers for a GPU would come from the host's generator."""

    def body() -> list[str]:
        x = torch.full((8,), 0.5, device="cuda")
        drawn = {
            "bernoulli": lambda: x.bernoulli(), "multinomial": lambda: x.multinomial(2),
            "uniform_": lambda: x.clone().uniform_(),
            "normal": lambda: torch.normal(x, x), "poisson": lambda: torch.poisson(x), "rand_like": lambda: torch.rand_like(x),
            "randint": lambda: torch.randint(9, (4,), device="cuda"), "randperm": lambda: torch.randperm(9, device="cuda"),
            "exponential_": lambda: x.clone().exponential_(), "dropout": lambda: nn.functional.dropout(x),
            "alpha_dropout": lambda: nn.functional.alpha_dropout(x, training=True),
            "rrelu": lambda: nn.functional.rrelu(-x, training=True),
            "truncated": lambda: nn.init.trunc_normal_(torch.empty(8, device="cuda")),
            "linear": lambda: nn.Linear(4, 4, device="cuda"),
        }  # fmt: skip
        missed = []
        for name, draw in drawn.items():
            host, on_device = torch.get_rng_state(), torch.cuda.get_rng_state()
            draw()
            if not torch.equal(torch.get_rng_state(), host) or torch.equal(torch.cuda.get_rng_state(), on_device):
                missed.append(name)
        return missed

    assert ranks(body, 1, backend="nccl") == [[]]


def test_copies_and_new_tensors_are_where_their_origin_is(ranks: Ranks) -> None:
    def body() -> None:
        here = torch.device("cuda", torch.cuda.current_device())
        layer = copy.deepcopy(nn.BatchNorm1d(2).cuda())
        assert {tensor.device for tensor in [*layer.parameters(), *layer.buffers()]} == {here}
        x = torch.ones(2, device="cuda")
        assert x.new_tensor([1.0]).device == x.new(3).device == x.new_zeros(2).device == here
        assert not x.new_tensor([1.0], device="cpu").is_cuda
        assert not copy.deepcopy(torch.ones(2)).is_cuda
        index = torch.cuda.current_device()
        host = torch.ones(2)
        made = [
            host.new_empty(2, device=index), host.new_zeros(size=[2], device=index), host.new_ones(2, device=index),
            host.new_full((2,), 1, device=index), host.new_empty_strided((2,), (1,), device=index),
            host.new_tensor([1.0], device=index), torch.randint_like(host, 3, device=index),
            torch.logspace(0, 1, 2, device=index),
            torch.hann_window(4, device=index), torch.normal(0.0, 1.0, (2,), device=index),
            torch.scalar_tensor(1, device=index), torch.empty_permuted((2, 3), (1, 0), device=index),
        ]  # fmt: skip
        assert {tensor.device for tensor in made} == {here}

    ranks(body, 2, backend="nccl")
