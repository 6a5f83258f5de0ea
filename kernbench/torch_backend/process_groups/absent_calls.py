"""What torch's groups and backends have and simulated ones do not: each is refused, and what to do instead is said."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn


def _refusing(name: str, instead: str) -> Callable[..., NoReturn]:
    def refuse(self: object, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{name} is not modelled: {instead}")

    refuse.__name__ = name
    return refuse


_RECORDS = "what each rank called last is written by `kernbench run --flight-recorder FOLDER`"

ABSENT_FUNCTIONS = {
    name: partial(_refusing(name, _RECORDS), None) for name in ("_dump_nccl_trace", "_dump_nccl_trace_json")
}
"""Of ``torch._C._distributed_c10d``, in builds with NCCL."""


class AbsentInGroups:
    """Methods of ``torch.distributed.ProcessGroup``."""

    _register_on_completion_hook = _refusing(
        "_register_on_completion_hook",
        "simulated groups have no thread that watches their works. Use work.get_future().then(...), or the trace of the run "
        "(kernbench run --trace) for when collectives begin and end",
    )
    merge_remote_group = _refusing(
        "merge_remote_group", "make a new group of all members (torch.distributed.new_group)"
    )


class AbsentInBackends:
    """Methods of a group's backend."""

    suspend = _refusing("suspend", "memory of a communicator stays where it is; destroy the group and make it again")
    resume = _refusing("resume", "a communicator cannot be suspended here")
    memory_stats = _refusing(
        "memory_stats", "torch.cuda.mem_get_info counts a communicator's memory with that of the device"
    )
    shrink = _refusing("shrink", "make a new group of those members that are left (torch.distributed.new_group)")
