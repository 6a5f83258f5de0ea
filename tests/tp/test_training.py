"""Whole models: losses, gradients and weights do not depend on how the ranks share the work."""

from __future__ import annotations

import pytest
import torch

import kernbench
from kernbench import tp
from tests.tp import cases
from tests.tp.ranks import assert_equal_everywhere, fixed, simulated


@pytest.fixture(scope="module")
def gpt_alone() -> cases.Tensors:
    """The GPT of one rank after three steps."""
    return cases.joined(simulated(1, cases.gpt, False, 3))


@pytest.mark.parametrize(
    ("size", "sequence_parallel"), [(2, False), (4, False), (8, False), (2, True), (4, True), (8, True)]
)
def test_gpt_losses_gradients_and_weights(size, sequence_parallel, gpt_alone):
    found = cases.joined(simulated(size, cases.gpt, sequence_parallel, 3))
    cases.assert_matches(found, gpt_alone, 2e-5)


def test_grouped_queries():
    alone = cases.joined(simulated(1, cases.gpt, False, 1, 2))
    cases.assert_matches(cases.joined(simulated(2, cases.gpt, True, 1, 2)), alone, 2e-5)


def train_mlp(steps: int) -> torch.Tensor:
    """Losses ``[steps]`` of an MLP that learns another one's outputs."""
    model = tp.ParallelMLP(tp.TransformerConfig(24, 4, init_method_std=0.2))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for step in range(steps):
        x = fixed(16, 24, seed=step)
        target = torch.tanh(x @ fixed(24, 24, seed=99, scale=0.3))
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


@pytest.fixture(scope="module")
def mlp_alone() -> torch.Tensor:
    losses = simulated(1, train_mlp, 20)[0]
    assert losses[-5:].mean() < 0.8 * losses[:5].mean()
    return losses


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_twenty_training_steps(size, mlp_alone):
    """Adam divides by small numbers, so rounding grows: within 1e-5 after 20 steps."""
    results = simulated(size, train_mlp, 20)
    assert_equal_everywhere(results)
    torch.testing.assert_close(results[0], mlp_alone, rtol=1e-5, atol=1e-6)


def train_gpt_in_parts(steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses of the global batch, and gradient norms, of a GPT whose batch is split over the data parallel ranks."""
    config = tp.TransformerConfig(16, 4, num_layers=1, vocab_size=20, max_sequence_length=8, init_method_std=0.2)
    model = tp.DistributedDataParallel(tp.GPTModel(config), bucket_size=500)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    size, rank = tp.get_data_parallel_world_size(), tp.get_data_parallel_rank()
    source = torch.Generator().manual_seed(0)
    losses, norms = [], []
    for _ in range(steps):
        words = torch.randint(0, 20, (4, 9), generator=source).chunk(size)[rank]
        model.zero_grad_buffer()
        loss = model(words[:, :-1], words[:, 1:]).mean()
        loss.backward()
        tp.finalize_model_grads([model])
        norms.append(tp.clip_grad_norm(list(model.parameters()), 0.5))
        optimizer.step()
        mean = loss.detach() / size
        tp.comm.all_reduce(mean, group=tp.get_data_parallel_group())
        losses.append(mean)
    return torch.stack(losses), torch.tensor(norms)


@pytest.mark.parametrize(("world", "tensor"), [(2, 1), (4, 2), (8, 2)])
def test_data_and_tensor_parallel(world, tensor):
    alone = simulated(1, train_gpt_in_parts, 3)[0]
    for losses, norms in simulated(world, train_gpt_in_parts, 3, tensor=tensor):
        torch.testing.assert_close(losses, alone[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(norms, alone[1], rtol=1e-4, atol=1e-6)


def test_accumulated_micro_batches_are_one_batch():
    def body(micro_batches: int) -> torch.Tensor:
        model = tp.DistributedDataParallel(tp.ParallelMLP(tp.TransformerConfig(8, 2, init_method_std=0.2)))
        x = fixed(8, 8, seed=tp.get_data_parallel_rank())
        parts = x.chunk(micro_batches)
        with model.no_sync():
            for piece in parts[:-1]:
                model(piece).square().sum().backward()
        model(parts[-1]).square().sum().backward()
        tp.finalize_model_grads([model])
        return torch.cat([param.grad.reshape(-1) for param in model.parameters()])

    whole, pieces = (simulated(2, body, count, tensor=1) for count in (1, 4))
    assert_equal_everywhere(whole)
    torch.testing.assert_close(pieces[0], whole[0], rtol=1e-5, atol=1e-5)


def test_backward_travels_while_it_computes():
    """The input gradient's all-reduce is in flight during the weight gradient's gemm, on every rank's timeline."""

    def body(rank: int) -> None:
        torch.distributed.init_process_group("nccl")
        tp.initialize_model_parallel(4)
        layer = tp.ColumnParallelLinear(512, 1024, gather_output=False)
        x = fixed(512, 512).requires_grad_()
        layer(x)[0].sum().backward()

    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(body, nprocs=4)
        operations = ctx.engine.op_log.operations
    for rank in range(4):
        mine = [op for op in operations if op.rank == rank]
        gemms = [op for op in mine if op.name == "gemm_kernel"]
        (reduce,) = (op for op in mine if op.kind == "collective" and op.nbytes == 512 * 512 * 4)
        assert len(gemms) == 3  # forward, input gradient, weight gradient
        assert reduce.start >= gemms[1].end
        assert reduce.start < gemms[2].end
        assert gemms[2].start < reduce.end
