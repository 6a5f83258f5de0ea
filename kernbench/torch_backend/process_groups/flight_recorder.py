"""Flight-recorder files: what ``python -m torch.distributed.flight_recorder.fr_trace <dir> -p <prefix>`` reads.

One pickle per rank, in the format (version 2.10) that NCCL's watchdog dumps: the last collectives and messages of the rank,
with sizes, dtypes, states and the user's line. Times are virtual.
"""

from __future__ import annotations

import pickle
from pathlib import Path

from kernbench.collective_kinds import KINDS
from kernbench.output_files import make_folder, write_file
from kernbench.simulation.matching.groups import Communicator
from kernbench.simulation.matching.history import Call
from kernbench.simulation.simulation import Simulation

VERSION = "2.10"
PREFIX = "kernbench_rank_"

_NAMES = {"monitored_barrier": "barrier"}


def write_flight_record(simulation: Simulation, directory: str | Path, prefix: str = PREFIX) -> list[Path]:
    """Write the last calls of every rank of the last spawn, also of one that failed, to ``<directory>/<prefix><rank>``."""
    target = make_folder(directory)
    history = simulation.matcher.history
    calls = {rank: history.of(rank) for rank in (sorted(simulation.hosts.of_rank) or history.ranks)}
    groups: dict[int, Communicator] = {}
    for of_rank in calls.values():
        for call in of_rank:
            groups.setdefault(id(call.group), call.group)
    names = {key: str(number) for number, key in enumerate(groups)}
    written = []
    for rank, of_rank in calls.items():
        config = {
            names[key]: {"name": names[key], "desc": group.name, "ranks": str(list(group.ranks))}
            for key, group in groups.items()
            if rank in group.index
        }
        dump = {
            "version": VERSION,
            "pg_config": config,
            "pg_status": {},
            "entries": [_entry(call, names[id(call.group)]) for call in of_rank],
        }
        path = target / f"{prefix}{rank}"
        write_file(path, pickle.dumps(dump))
        written.append(path)
    return written


def _entry(call: Call, group_name: str) -> dict[str, object]:
    signature, group = call.signature, call.group
    name = _NAMES.get(signature.op, signature.op)
    if call.sequence < 0:
        me, peer = group.index[call.rank], -1 if call.peer is None else group.index[call.peer]
        name = f"send {me}->{peer}" if signature.op == "send" else f"recv {me}<-{peer}"
    shape = list(signature.shape or ())
    into, out = _tensors(signature.op, group.size)
    dtype = str(signature.dtype).removeprefix("torch.").capitalize() if signature.dtype is not None else "Int"
    return {
        "record_id": call.number,
        "pg_id": int(group_name),
        "process_group": (group_name, group.name),
        "collective_seq_id": max(call.sequence, 0),
        "p2p_seq_id": call.number if call.sequence < 0 else 0,
        "op_id": call.number,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": round(call.op.enqueue * 1e9),
        "time_discovered_started_ns": None if call.op.start is None else round(call.op.start * 1e9),
        "time_discovered_completed_ns": None if call.op.end is None else round(call.op.end * 1e9),
        "duration_ms": None if call.op.end is None or call.op.start is None else (call.op.end - call.op.start) * 1e3,
        "input_sizes": [shape] * into,
        "input_dtypes": [dtype] * into,
        "output_sizes": [shape] * out,
        "output_dtypes": [dtype] * out,
        "state": call.state,
        "timeout_ms": 600_000,
        "is_p2p": call.sequence < 0,
        "retired": call.state == "completed",
        "frames": [{"name": call.location.function, "filename": call.location.file, "line": call.location.line}],
    }


def _tensors(op: str, members: int) -> tuple[int, int]:
    """How many tensors of the signature's shape go in and out. An exchange has tensors of any shape, and is recorded as one."""
    kind = KINDS.get(op)
    if kind is None or kind.exchanges:
        return 1, 1
    return members if kind.brings == "each" else 1, members if kind.gets == "each" else 1
