"""Devices, memory and ports shared by the worker processes of a test run.

The state is one JSON file under a file lock. Every process holds a *lease*, a lock on a file of its own, for as long as
it lives: the kernel releases it when the process dies, however it dies, and the next reader of the state takes back
what it had. Process ids are not asked: they are reused.

A request is granted whole or not at all, so that holders never wait for each other. Waiting requests are served in
order of arrival, except that a request which fits may overtake one that does not, a bounded number of times: none
starves.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from kernbench.errors import KernbenchError

OVERTAKINGS = 16
"""How often a waiting request may be overtaken by later ones that fit."""

_POLL_SECONDS = (0.005, 0.1)  # first and longest pause between two looks


class ResourceError(KernbenchError):
    """What a test asks for does not exist, or did not come free in time."""


@dataclass(frozen=True)
class Capacity:
    """What there is to share.

    Attributes:
        device_memory: bytes of each device.
        ports: first port, and how many follow it.
        simulated: False for real GPUs.
    """

    device_memory: tuple[int, ...]
    ports: tuple[int, int] = (25900, 1024)
    simulated: bool = True


@dataclass(frozen=True)
class ResourceRequest:
    """What a test needs: ``devices``, ``memory`` bytes on each of them, ``ports``."""

    devices: int = 0
    memory: int = 0
    ports: int = 0


@dataclass(frozen=True)
class Grant:
    """What a test was given.

    Attributes:
        devices: indices of its devices.
        memory: bytes that it may use on each.
        ports: its TCP ports, free on loopback when they were granted.
        simulated: whether the devices are simulated.
    """

    id: str
    devices: tuple[int, ...]
    memory: int
    ports: tuple[int, ...]
    simulated: bool = True


class ResourcePool:
    """One process's view of the shared pool in ``directory``. All processes must name the same capacity."""

    def __init__(self, directory: str | Path, capacity: Capacity) -> None:
        self.directory = Path(directory)
        self.capacity = capacity
        self.directory.mkdir(parents=True, exist_ok=True)
        self._state_file = self.directory / "state.json"
        self._lock = FileLock(self.directory / "state.lock")
        self.owner = uuid.uuid4().hex
        self._lease = FileLock(self._lease_file(self.owner))
        self._lease.acquire(timeout=0)

    def close(self) -> None:
        """Give everything back and end the lease. Idempotent."""
        if not self._lease.is_locked:
            return
        with self._state() as state:
            state["grants"] = [grant for grant in state["grants"] if grant["owner"] != self.owner]
            state["queue"] = [ticket for ticket in state["queue"] if ticket["owner"] != self.owner]
        self._lease.release()
        self._lease_file(self.owner).unlink(missing_ok=True)

    # -- granting ----------------------------------------------------------------------------------------------------

    def acquire(self, request: ResourceRequest, *, timeout: float | None = None) -> Grant:
        """Wait for what ``request`` asks for.

        Args:
            timeout: seconds; None waits as long as another holder has what is missing.

        Raises:
            ResourceError: it is more than there is, or the time is up.
        """
        self._require_possible(request)
        ticket = uuid.uuid4().hex
        with self._state() as state:
            state["queue"].append({"id": ticket, "owner": self.owner, "overtaken": 0})
        pause, longest = _POLL_SECONDS
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                with self._state() as state:
                    grant = self._try(state, ticket, request)
                    holders = len(state["grants"])
                if grant is not None:
                    return grant
                if deadline is not None and time.monotonic() >= deadline:
                    raise ResourceError(
                        f"{_words(request)} did not come free within {timeout:g} s; {holders} tests hold the rest"
                    )
                time.sleep(pause)
                pause = min(2 * pause, longest)
        except BaseException:
            with self._state() as state:
                state["queue"] = [each for each in state["queue"] if each["id"] != ticket]
                state["grants"] = [each for each in state["grants"] if each["id"] != ticket]
            raise

    def release(self, grant: Grant) -> None:
        """Give a grant back."""
        with self._state() as state:
            state["grants"] = [each for each in state["grants"] if each["id"] != grant.id]

    @contextmanager
    def granted(self, request: ResourceRequest, *, timeout: float | None = None) -> Iterator[Grant]:
        """:meth:`acquire` and :meth:`release` around a block."""
        grant = self.acquire(request, timeout=timeout)
        try:
            yield grant
        finally:
            self.release(grant)

    def _try(self, state: dict[str, Any], ticket: str, request: ResourceRequest) -> Grant | None:
        at = next(index for index, each in enumerate(state["queue"]) if each["id"] == ticket)
        before = state["queue"][:at]
        if any(each["overtaken"] >= OVERTAKINGS for each in before):
            return None
        devices = self._devices(state, request)
        if devices is None:
            return None
        ports = self._ports(state, request.ports)
        if ports is None:
            return None
        for each in before:
            each["overtaken"] += 1
        del state["queue"][at]
        state["grants"].append(
            {"id": ticket, "owner": self.owner, "devices": devices, "memory": request.memory, "ports": ports}
        )
        return Grant(ticket, tuple(devices), request.memory, tuple(ports), self.capacity.simulated)

    def _devices(self, state: dict[str, Any], request: ResourceRequest) -> list[int] | None:
        """The emptiest devices that have room, or None."""
        free = dict(enumerate(self.capacity.device_memory))
        for grant in state["grants"]:
            for device in grant["devices"]:
                free[device] -= grant["memory"]
        fitting = sorted((device for device in free if free[device] >= request.memory), key=lambda at: (-free[at], at))
        return sorted(fitting[: request.devices]) if len(fitting) >= request.devices else None

    def _ports(self, state: dict[str, Any], count: int) -> list[int] | None:
        """Ports that are neither granted nor have a listener on this machine, or None."""
        taken = {port for grant in state["grants"] for port in grant["ports"]}
        first, number = self.capacity.ports
        found: list[int] = []
        for port in range(first, first + number):
            if len(found) == count:
                break
            if port not in taken and port_is_free(port):
                found.append(port)
        return found if len(found) == count else None

    def _require_possible(self, request: ResourceRequest) -> None:
        able = sum(size >= request.memory for size in self.capacity.device_memory)
        if request.devices > able:
            sizes = ", ".join(f"{size / 1e9:g} GB" for size in self.capacity.device_memory) or "none"
            raise ResourceError(f"{_words(request)} asked for, but the devices have {sizes}")
        if request.ports > self.capacity.ports[1]:
            raise ResourceError(f"{request.ports} ports asked for, but the pool has {self.capacity.ports[1]}")

    # -- state -------------------------------------------------------------------------------------------------------

    @contextmanager
    def _state(self) -> Iterator[dict[str, Any]]:
        """The shared state, locked; written back when the block ends, without what the dead have left."""
        with self._lock:
            try:
                state = json.loads(self._state_file.read_text())
            except FileNotFoundError:
                state = {"grants": [], "queue": []}
            self._bury(state)
            yield state
            beside = self.directory / f"state.{self.owner}"
            beside.write_text(json.dumps(state))
            beside.replace(self._state_file)  # a process that dies here leaves the old state whole

    def _bury(self, state: dict[str, Any]) -> None:
        owners = {each["owner"] for each in (*state["grants"], *state["queue"])} - {self.owner}
        dead = {owner for owner in owners if not self._alive(owner)}
        for name in ("grants", "queue"):
            state[name] = [each for each in state[name] if each["owner"] not in dead]

    def _alive(self, owner: str) -> bool:
        """Whether the process that holds this lease lives: its lock cannot be taken."""
        path = self._lease_file(owner)
        if not path.exists():
            return False
        probe = FileLock(path)
        try:
            probe.acquire(timeout=0)
        except Timeout:
            return True
        probe.release()
        with contextlib.suppress(OSError):
            path.unlink()
        return False

    def _lease_file(self, owner: str) -> Path:
        return self.directory / f"lease-{owner}"


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this port of loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: a port in TIME_WAIT is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def workers_that_fit(capacity: Capacity, memory: int) -> int:
    """Worker processes that may run side by side, if each holds ``memory`` bytes of one device. At least one."""
    if not capacity.device_memory or not memory:
        return os.cpu_count() or 1
    return max(1, sum(size // memory for size in capacity.device_memory))


def _words(request: ResourceRequest) -> str:
    parts = []
    if request.devices:
        each = f" with {request.memory / 1e9:g} GB each" if request.memory else ""
        parts.append(f"{request.devices} device{'s' if request.devices > 1 else ''}{each}")
    if request.ports:
        parts.append(f"{request.ports} port{'s' if request.ports > 1 else ''}")
    return " and ".join(parts) or "nothing"
