"""Workspaces of a process' libraries on a GPU: cuBLAS has one for each stream that multiplies, made at its first use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kernbench.memory.ledger import BACKWARD, PHASES, WORKSPACES, Entry, claim
from kernbench.memory.workspaces import BLAS, LT, NOT_IN_A_CAPTURE, Workspaces
from kernbench.simulation.ranks.hosts import Host


class MemoryOfProcess(Protocol):
    """A process' memory of a GPU."""

    host: Host

    def take(self, nbytes: int) -> Entry | None:
        """Memory for ``nbytes``; None for none. Raises ``torch.OutOfMemoryError``."""

    def give_back(self, entry: Entry) -> None:
        """What :meth:`take` gave is not needed any more."""


class LibraryWorkspaces:
    """Those of one process on one GPU.

    Args:
        sizes: how large a process' are now; None: its GPUs have no such libraries.
    """

    def __init__(self, sizes: Callable[[Host], Workspaces | None]) -> None:
        self._sizes = sizes
        self._entries: dict[tuple[str, bool, str], Entry | None] = {}
        self._opened: set[str] = set()

    def provide(self, memory: MemoryOfProcess, library: str) -> None:
        """Before a product by a library (:mod:`kernbench.memory.workspaces`): the workspace of the current stream, and of the
        thread that multiplies, which is the backward pass's own in one. Raises ``torch.OutOfMemoryError``."""
        host = memory.host
        self._open(host, BLAS if library == LT else library)
        if library not in (BLAS, LT):
            return
        place = host.stream, host.phase % PHASES == BACKWARD, library
        if place in self._entries or not host.takes_memory:
            return
        if library == LT:
            self.provide(memory, BLAS)
        sizes = self._sizes(host)
        if sizes is not None:
            entry = memory.take(sizes.lt if library == LT else sizes.blas)
            claim(entry, WORKSPACES)
            self._entries[place] = entry

    def _open(self, host: Host, library: str) -> None:
        """A library is called. Raises RuntimeError, in its words, if that is for the first time and in a capture."""
        if library in self._opened:
            return
        graph = host.capture
        if graph is not None:
            graph.broken = True
            raise RuntimeError(
                f"{NOT_IN_A_CAPTURE[library]}: its first call on this GPU is in the capture of a CUDA graph; call it "
                "once before"
            )
        self._opened.add(library)

    def drop(self, memory: MemoryOfProcess) -> None:
        """Give them back, until they are needed again."""
        entries, self._entries = self._entries, {}
        for entry in entries.values():
            if entry is not None:
                memory.give_back(entry)
