"""One process that drives several GPUs: ``torch.cuda.comm`` and ``DataParallel``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.cuda import comm

import kernbench


def _one_rank(body: Callable[[], Any]) -> Any:
    found: list[Any] = []
    with kernbench.simulate("dgx_h100", seed=1, races=True) as ctx:
        ctx.multiprocessing.spawn(lambda rank: found.append(body()), nprocs=1)
    return found[0]


def _places(tensors: Any) -> list[int | None]:
    return [tensor.device.index for tensor in tensors]


def test_parts_go_to_gpus_and_come_back() -> None:
    def body() -> None:
        x = torch.arange(10.0).reshape(5, 2).cuda()
        parts = comm.scatter(x, [0, 2, 3])
        assert _places(parts) == [0, 2, 3]
        assert [part.shape[0] for part in parts] == [2, 2, 1]
        sized = comm.scatter(x.cpu(), [1, 2], chunk_sizes=[4, 1], streams=[torch.cuda.Stream(1), None])
        torch.cuda.synchronize(1)  # the copy was on a stream of its own
        assert [part.tolist() for part in sized] == [x[:4].tolist(), x[4:].tolist()]
        out = [torch.empty(2, 2, device="cuda:1"), torch.empty(3, 2, device="cuda:2")]
        assert [part.tolist() for part in comm.scatter(x, out=out)] == [x[:2].tolist(), x[2:].tolist()]
        whole = comm.gather(parts, destination=3)
        assert (whole.device.index, whole.tolist()) == (3, x.tolist())
        assert comm.gather(parts, destination="cpu").device.type == "cpu"
        assert comm.gather(parts, out=torch.empty(5, 2, device="cuda:1")).tolist() == x.tolist()
        assert comm.reduce_add([x, x.to("cuda:1")], destination=1).tolist() == (2 * x).tolist()

    _one_rank(body)


def test_copies_of_several_tensors_go_together() -> None:
    def body() -> None:
        x, y, z = torch.arange(6.0).reshape(2, 3).cuda(), torch.arange(4).cuda(), torch.ones(2).cuda()
        copies = comm.broadcast_coalesced([x, y, z], [0, 1, 4])
        assert [_places(of_gpu) for of_gpu in copies] == [[0] * 3, [1] * 3, [4] * 3]
        for of_gpu in copies:
            assert all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(of_gpu, (x, y, z), strict=True))
        assert _places(comm.broadcast(x, [0, 5])) == [0, 5]
        assert comm.broadcast(x, out=[torch.empty(2, 3, device="cuda:1")])[0].tolist() == x.tolist()

    _one_rank(body)


def test_data_parallel_trains_as_one_gpu_does() -> None:
    def losses(parallel: bool) -> list[float]:
        torch.manual_seed(0)
        model: torch.nn.Module = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
        ).cuda()
        if parallel:
            model = torch.nn.DataParallel(model, device_ids=[0, 1, 2])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.randn(12, 8, device="cuda")
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            found.append(loss.item())
        return found

    one, several = _one_rank(lambda: losses(False)), _one_rank(lambda: losses(True))
    torch.testing.assert_close(torch.tensor(one), torch.tensor(several))  # sums of parts round otherwise
    assert one[-1] < one[0]


def _refused() -> None:
    x, y = torch.ones(2, 5, device=0), torch.ones(2, 5, device=1)
    out = [torch.empty(1, 5, device=0), torch.empty(1, 5, device=1)]
    for call, words in (
        (lambda: comm.scatter(x, ()), "Expected at least one device to scatter to"),
        (lambda: comm.scatter(x, [0, 1], chunk_sizes=[1, 1, 0]), r"same length, but got len\(devices\) = 2"),
        (lambda: comm.scatter(x, out=[]), "Expected at least one output tensor to scatter to"),
        (lambda: comm.scatter(x, out=[out[0].cpu(), out[1]]), "but output tensor at index 0 has device 'cpu'"),
        (lambda: comm.scatter(x, out=[out[0].unsqueeze(0), out[1]]), "Output tensor at index 0 has incorrect shape"),
        (lambda: comm.scatter(x, out=[out[0], y]), "Total size for output tensors along scatter dim 0 does not match"),
        (lambda: comm.gather(()), "Expected at least one tensor to gather from"),
        (lambda: comm.gather((x.cpu(), y)), "Expected all input tensors to be CUDA tensors"),
        (lambda: comm.gather((x, y.unsqueeze(0))), "Expected all input tensors to have the same number of dimensions"),
        (lambda: comm.gather((x, y[:, 1:])), "Input tensor at index 1 has invalid shape"),
        (lambda: comm.gather((x, y), out=torch.empty(4, device=0)), "Expected out tensor to have shape"),
        (lambda: comm.broadcast(x, out=[x.cpu()]), "Expected all output tensors to be CUDA tensors, but output tensor"),
        (lambda: comm.broadcast(x, out=[y.unsqueeze(0)]), "to have same shape as the source .+ at index 0"),
    ):
        with pytest.raises(RuntimeError, match=words):
            call()


def test_what_cannot_be_copied_is_refused_in_torchs_words() -> None:
    _one_rank(_refused)


def test_copies_together_are_tensors_of_their_own() -> None:
    def body() -> None:
        x, y = torch.ones(3, device="cuda"), torch.full((2,), 2.0, device="cuda")
        sparse = torch.eye(3, device="cuda").to_sparse()
        _, (one, other, third) = comm.broadcast_coalesced([x, sparse, y], [0, 1])
        assert third.device == other.device == one.device == torch.device("cuda", 1)
        assert torch.equal(other.to_dense().cpu(), torch.eye(3))
        versions = one._version, third._version
        one.zero_()
        assert (one._version, third._version) == (versions[0] + 1, versions[1])
        assert third.tolist() == [2.0, 2.0]

    _one_rank(body)
