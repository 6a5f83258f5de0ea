"""Names of collectives: ours, and those of nccl-tests and of torch."""

from __future__ import annotations

from kernbench.errors import ConfigError

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "sendrecv")

_ALIASES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "send_recv": "sendrecv",
    "bcast": "broadcast",
}


def collective_name(name: str) -> str:
    """The name that is used here for ``alltoall_perf``, ``AllReduce``, ``send_recv`` and the like. Raises ConfigError."""
    plain = str(name).strip().lower().replace("-", "_").removesuffix("_perf")
    plain = _ALIASES.get(plain, plain)
    if plain not in COLLECTIVES:
        raise ConfigError(f"unknown collective {name!r}; known: {', '.join(COLLECTIVES)}")
    return plain
