"""Only the run that has started a cluster on this machine can use it: a peer of a Dask scheduler runs code as its owner."""

from __future__ import annotations

import ipaddress
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernbench.sweep.workers import connected

distributed = pytest.importorskip("distributed")

STRANGER = """
import sys
import distributed

security = {"none": lambda: None, "its own": distributed.Security.temporary}[sys.argv[2]]()
try:
    with distributed.Client(sys.argv[1], security=security, timeout=10, set_as_default=False) as client:
        print("joined", client.run_on_scheduler(lambda: __import__("os").getpid()))
except Exception:
    print("refused")
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[object]:
    """A cluster of one worker, as sweeps start one, and its client."""
    with connected(None, jobs=1) as (_, client):
        yield client


@pytest.mark.parametrize("keys", ["none", pytest.param("its own", marks=pytest.mark.long)])
def test_a_stranger_does_not_join(cluster, keys: str) -> None:
    """Another process of this machine that knows the address, with and without keys of its own, over TCP and TLS."""
    address = cluster.scheduler.address
    assert address.startswith("tls://127.0.0.1:")
    plain = address.replace("tls://", "tcp://")
    for tried in (address, plain) if keys == "its own" else (plain,):
        said = subprocess.run(
            [sys.executable, "-c", STRANGER, tried, keys], capture_output=True, text=True, check=False, timeout=120
        )
        assert said.stdout.strip() == "refused", said.stdout + said.stderr


def test_the_owner_still_runs_there(cluster) -> None:
    assert cluster.submit(sum, [1, 2, 3]).result() == 6


def _listeners(pids: set[int]) -> set[tuple[str, int]]:
    """Where these processes accept TCP connections: address and port."""
    inodes = set()
    for pid in pids:
        for name in Path(f"/proc/{pid}/fd").iterdir():
            target = os.readlink(name) if name.is_symlink() else ""
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and rest[5] in inodes:
                packed, port = local.split(":")
                words = [bytes.fromhex(packed[at : at + 8])[::-1] for at in range(0, len(packed), 8)]
                found.add((str(ipaddress.ip_address(b"".join(words))), int(port, 16)))
    return found


def test_everything_listens_on_the_loopback_address_alone(cluster) -> None:
    """Dask's web servers too: they are bound there, and have no pages."""
    worker, nanny = (cluster.run(os.getpid, nanny=which) for which in (False, True))
    listeners = _listeners({os.getpid(), *worker.values(), *nanny.values()})
    assert len(listeners) >= 3  # the scheduler, a worker, its nanny
    assert {address for address, _ in listeners if not ipaddress.ip_address(address).is_loopback} == set()
    web = cluster.cluster.scheduler.http_server.port
    for page in ("info/main/workers.html", "json/identity.json", "metrics"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{web}/{page}", timeout=10)
