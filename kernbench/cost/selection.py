"""What the vendor's library runs for a collective: algorithm, protocol, channels and chunk; ``choose``.

>>> from kernbench.cost.selection import choose
>>> choose("dgx_h100", "all_reduce", 64 << 20, ranks=8)
Choice(algorithm='nvls', protocol='simple', channels=16, chunk=131072)

The ranking is NCCL's (:mod:`kernbench.cost.collective_choice`, ADR 0030), and so are the restrictions that a user may
set: ``NCCL_ALGO``, ``NCCL_PROTO``, ``NCCL_MIN_NCHANNELS`` and ``NCCL_MAX_NCHANNELS``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernbench.collective_kinds import timed_name
from kernbench.cost.collective_choice import Candidate, candidates, direct_candidates, rank_value
from kernbench.cost.collective_models import tree_chunk
from kernbench.cost.collective_world import CollectiveWorld, build_world, resolve_system
from kernbench.errors import ConfigError
from kernbench.input_files import shortened, whole_number

# NCCL, src/include/device.h and src/graph/tuning.cc (docs/cost_models.md): threads of a channel, and the bytes that make
# one of them worth while.
_THREADS = {"ll": 512, "ll128": 640, "simple": 512}
_THREAD_BYTES = {"ll": 8, "ll128": 8, "simple": 64}
# Data bytes of one of the eight slots of a channel's buffer, by protocol (buffers of 512 KiB, 4800 KiB and 4 MiB); a ring
# of the Simple protocol fills four at once.
_SLOT = {"ll": 32 * 1024, "ll128": 600 * 1024 * 120 // 128, "simple": 512 * 1024, "direct": 0, "multicast": 0}
_NVLS_CHUNK = 128 * 1024


@dataclass(frozen=True, slots=True)
class Choice:
    """What runs.

    Attributes:
        algorithm: ``ring``, ``tree``, ``nvls``, ``nvls_tree``, ``p2p``, ``one_shot``, ``two_shot``, ``multimem``,
            or ``copy`` for a rank alone.
        protocol: ``ll``, ``ll128``, ``simple``, or ``direct`` for kernels that read the peers' buffers, ``multicast`` for
            those that read and write all of them through a switch.
        channels: blocks that work side by side, each with its own queue to the next rank.
        chunk: most bytes of data that one channel sends at once.
    """

    algorithm: str
    protocol: str
    channels: int
    chunk: int


def choose(
    system: object,
    collective: str,
    nbytes: float,
    *,
    ranks: int,
    nodes: int = 1,
    algorithm: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Choice:
    """What the library runs for a collective of one size.

    Args:
        system: shipped name, YAML path, topology or its handle.
        collective: one of :data:`kernbench.cost.COLLECTIVES`; nccl-tests' names are understood.
        nbytes: nccl-tests' size in bytes.
        ranks: GPUs taking part, as many on each of ``nodes``.
        algorithm: as :func:`kernbench.cost.collective_time` takes it: ``"tree"``, ``"ring/ll128"``, ``"/direct"``.
        environ: of ``NCCL_ALGO``, ``NCCL_PROTO`` (``"tree"``, ``"^ll128"``, ``"ring;allreduce:tree,nvls"``),
            ``NCCL_MIN_NCHANNELS`` and ``NCCL_MAX_NCHANNELS``; other keys are not read. None: no restrictions.

    Raises:
        ConfigError: unknown system or collective, ranks that do not fit, or nothing left that could run.
    """
    collective = timed_name(collective)
    world = build_world(resolve_system(system), ranks=ranks, nodes=nodes)
    size = np.array([float(nbytes)])
    if not np.isfinite(size[0]) or size[0] < 0:
        raise ConfigError(f"nbytes is {nbytes!r}; expected a number of bytes >= 0")
    options = eligible(world, collective, algorithm)
    if environ:
        options = _restricted(options, collective, environ)
    found = options[0]
    if len(options) > 1:
        found = min(options, key=lambda option: float(rank_value(world, collective, option, size)[0]))
    channels = channel_count(world, found, float(nbytes), environ or {})
    return Choice(*found, channels, _chunk(world, found, size, channels))


def eligible(world: CollectiveWorld, collective: str, algorithm: str | None = None) -> list[Candidate]:
    """What could run, narrowed to ``algorithm`` where given. Raises ConfigError when nothing is left."""
    if world.ranks == 1:
        return [("copy", "simple")]
    options = candidates(world, collective)
    if algorithm is None:
        return options
    options = [*options, *direct_candidates(world, collective)]
    name, _, protocol = algorithm.lower().partition("/")
    kept = [option for option in options if name in ("", option[0]) and protocol in ("", option[1])]
    if not kept:
        known = ", ".join(f"{option[0]}/{option[1]}" for option in options)
        raise ConfigError(f"algorithm {algorithm!r} does not exist for {collective} here; possible: {known}")
    return kept


def channel_count(world: CollectiveWorld, candidate: Candidate, nbytes: float, environ: Mapping[str, str]) -> int:
    """Channels for one size: as many as have enough bytes for each of their threads."""
    algorithm, protocol = candidate
    if algorithm in ("nvls", "nvls_tree"):
        return world.generation.nvls_channels
    most = max(1, round(world.net_channels)) if world.nodes > 1 else world.channels
    least = 1
    for name in ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"):
        text = environ.get(name)
        if text is None:
            continue
        number = whole_number(text.strip()) or 0
        if number < 1:
            raise ConfigError(f"{name} is {shortened(repr(text))}; expected a whole number of at least 1")
        if name == "NCCL_MIN_NCHANNELS":
            least, most = number, max(most, number)
        else:
            least, most = min(least, number), min(most, number)
    if protocol in ("direct", "multicast") or algorithm in ("p2p", "copy"):
        return most
    threads = _THREADS[protocol] * _THREAD_BYTES[protocol]
    if (algorithm, protocol) == ("ring", "ll"):
        threads *= world.ranks
    return int(min(most, max(least, nbytes // threads)))


def _chunk(world: CollectiveWorld, candidate: Candidate, size: Any, channels: int) -> int:
    algorithm, protocol = candidate
    if algorithm in ("nvls", "nvls_tree"):
        return _NVLS_CHUNK
    if (algorithm, protocol) == ("tree", "simple"):
        return int(tree_chunk(world, size, channels=channels)[0])
    if protocol == "simple":
        return 4 * _SLOT["simple"]
    return _SLOT[protocol] or max(1, int(size[0]))


def _restricted(options: Sequence[Candidate], collective: str, environ: Mapping[str, str]) -> list[Candidate]:
    kept = list(options)
    for index, name in enumerate(("NCCL_ALGO", "NCCL_PROTO")):
        text = environ.get(name)
        if not text:
            continue
        allowed = _parse(text, collective)
        kept = [option for option in kept if allowed(option[index])]
        # Collectives that have but one way to run are not passed how.
        if not kept and {option[0] for option in options} <= {"p2p", "copy"}:
            kept = list(options)
        if not kept:
            known = ", ".join(f"{option[0]}/{option[1]}" for option in options)
            raise ConfigError(f"{name}={shortened(text)} leaves nothing for {collective} here; possible: {known}")
    return kept


def _parse(text: str, collective: str) -> Callable[[str], bool]:
    """Which names a list such as ``"ring,tree"``, ``"^ll128"`` or ``"ring;allreduce:^tree"`` allows for a collective."""
    chosen = None
    for part in text.lower().split(";"):
        prefix, colon, names = part.rpartition(":")
        if not colon or _same(prefix.strip(), collective):
            chosen = names.strip()
    if chosen is None:
        return lambda name: True
    excluded = chosen.startswith("^")
    listed = {name.strip().replace("nvlstree", "nvls_tree") for name in chosen.removeprefix("^").split(",")}
    return lambda name: (name in listed) != excluded


def _same(prefix: str, collective: str) -> bool:
    try:
        return timed_name(prefix) == collective
    except ConfigError:
        return False
