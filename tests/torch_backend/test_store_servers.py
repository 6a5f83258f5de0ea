"""Servers of ``TCPStore``: what torch's own sockets do, said in a simulation without them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch.distributed as dist

import kernbench

ISOLATIONS = ["carrier", "process"]
SOON = timedelta(seconds=3)


def ranks(program: Callable[[int], None], isolation: str) -> None:
    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(program, nprocs=2, isolation=isolation)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_client_waits_for_a_server(isolation: str) -> None:
    def program(rank: int) -> None:
        begin = time.monotonic()
        if rank == 0:
            time.sleep(2)
        store = dist.TCPStore("127.0.0.1" if rank else "localhost", 29700, is_master=rank == 0, timeout=SOON)
        assert time.monotonic() - begin == pytest.approx(2, abs=0.1)  # virtual
        store.set(str(rank), "here")
        assert store.get(str(1 - rank)) == b"here"

    ranks(program, isolation)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_client_without_a_server_times_out(isolation: str) -> None:
    def program(rank: int) -> None:
        if rank == 1:
            time.sleep(10)
            return
        with pytest.raises(dist.DistNetworkError, match=r"timed out after 3000ms while .* to \(localhost, 29700\)"):
            dist.TCPStore("localhost", 29700, timeout=SOON)

    ranks(program, isolation)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_client_without_a_server_and_a_time_of_its_own_is_a_deadlock(isolation: str) -> None:
    def program(rank: int) -> None:
        if rank == 0:
            dist.TCPStore("localhost", 29700)

    with pytest.raises(kernbench.SpawnException) as caught:
        ranks(program, isolation)
    assert isinstance(caught.value.errors[0], kernbench.DeadlockError)
    assert "waits for store server at localhost:29700" in str(caught.value.errors[0])


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_port_has_one_server(isolation: str) -> None:
    def program(rank: int) -> None:
        if rank == 0:
            first = dist.TCPStore("localhost", 29700, is_master=True)
            with pytest.raises(
                dist.DistNetworkError, match=r"port: 29700.*EADDRINUSE.*\(rank 0's TCPStore is the server"
            ):
                dist.TCPStore("localhost", 29700, is_master=True)
            dist.TCPStore("localhost", 29701, is_master=True).set("made", "1")
            first.set("made", "1")
            time.sleep(1)
            del first
            dist.TCPStore("localhost", 29700, is_master=True)  # the first one is gone
        else:
            first = dist.TCPStore("localhost", 29700)
            first.wait(["made"])
            with pytest.raises(dist.DistNetworkError, match="EADDRINUSE"):
                dist.TCPStore("localhost", 29700, is_master=True)

    ranks(program, isolation)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_server_waits_for_its_clients(isolation: str) -> None:
    def program(rank: int) -> None:
        if rank == 1:
            time.sleep(2)
        begin = time.monotonic()
        store = dist.TCPStore("localhost", 29700, world_size=2, is_master=rank == 0, timeout=SOON)
        assert time.monotonic() - begin == pytest.approx(0 if rank else 2, abs=0.1)
        assert (store.list_keys(), store.num_keys()) == ([], 1)
        if rank == 0:
            with pytest.raises(
                dist.DistStoreError, match=r"Timed out after 3 seconds waiting for clients. 1/3 clients joined"
            ):
                dist.TCPStore("localhost", 29701, world_size=3, is_master=True, timeout=SOON)
            dist.TCPStore("localhost", 29702, world_size=3, is_master=True, wait_for_workers=False)

    ranks(program, isolation)


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_group_is_made_at_one_address_again_and_again(isolation: str) -> None:
    def program(rank: int) -> None:
        for _ in range(3):
            dist.init_process_group("gloo", init_method="tcp://localhost:29700", rank=rank, world_size=2)
            dist.barrier()
            dist.destroy_process_group()

    ranks(program, isolation)


def test_the_launchers_address_is_served() -> None:
    def program(rank: int) -> None:
        store = dist.TCPStore("127.0.0.1", 29500, world_size=2)  # as under torchrun, whose agent has it
        store.set(str(rank), "here")
        assert store.get(str(1 - rank)) == b"here"

    ranks(program, "carrier")
