"""``sys.excepthook``: Python calls it with what ends a process; a rank's own is called with what ends the rank."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kernbench.own_files import is_own
from kernbench.scheduler import user_traceback
from kernbench.torch_backend.relies_on import Reliance

_WRAPS = "_distributed_excepthook"

RELIES_ON = (
    Reliance(
        "torch.distributed.init_process_group", "it wraps sys.excepthook by a function that has the one before as old_hook",
        holds=lambda function: any(
            getattr(each, "co_name", "") == _WRAPS and "old_hook" in each.co_freevars
            for each in inspect.unwrap(function).__code__.co_consts
        ),
    ),
)  # fmt: skip


def excepthook() -> Callable[..., Any]:
    """``sys.excepthook`` without what ``init_process_group`` has wrapped it in, to print a rank's number."""
    hook = sys.excepthook
    while getattr(getattr(hook, "__code__", None), "co_name", "") == _WRAPS:
        hook = inspect.getclosurevars(hook).nonlocals["old_hook"]
    return hook


@contextmanager
def hook_called(others: Callable[..., Any]) -> Iterator[None]:
    """A block of a rank: see :func:`call_excepthook` for what ends it."""
    try:
        yield
    except Exception as error:
        call_excepthook(error, others)
        raise


def call_excepthook(error: BaseException, others: Callable[..., Any]) -> None:
    """In a rank that ``error`` ends: call its hook, if it has one that is not ``others``, for which the report of the failure
    stands."""
    if excepthook() is others:
        return
    trace = error.__traceback__
    while trace is not None and is_own(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit:
        pass  # the rank ends by ``error``, which is what the report is to say
    except Exception as raised:
        print(f"Error in sys.excepthook:\n{user_traceback(raised)}", end="", file=sys.stderr)
