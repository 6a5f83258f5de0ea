"""Who holds the lock that a thread waits for.

Python does not tell which lock a thread waits for. But the function that waits names it, and so does the one that took it:
what both name, and is locked, is the lock. A reentrant lock also tells who owns it.
"""

from __future__ import annotations

import re
import threading
import traceback
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from kernbench.own_files import PACKAGE
from kernbench.scheduler.thread_frames import current_frames

_LOCKS = (type(threading.Lock()), type(threading.RLock()))
_OWNER = re.compile(r"owner=(\d+)")


def held_lock(waiting: int, others: Mapping[int, int]) -> str:
    """Which lock a thread waits for and which of the others holds it, with its stack; empty where that is not known.

    Args:
        waiting: the identity of the thread.
        others: the ranks of the threads that may hold it, by their identities.
    """
    frames = current_frames()
    if waiting not in frames:
        return ""
    wanted = _locks_named_by(frames[waiting])
    for name, lock in wanted.values():
        owner = _OWNER.search(repr(lock))
        for identity, rank in others.items():
            frame = frames.get(identity)
            if frame is None:
                continue
            holds = (
                int(owner.group(1)) == identity
                if owner
                else any(id(lock) in _locks_named_by(each) for each in _out(frame))
            )
            if holds:
                return f"`{name}` is held by rank {rank}, which waits in the simulation:\n{_stack(frame)}"
    return ""


def _locks_named_by(frame: FrameType) -> dict[int, tuple[str, object]]:
    """The locks, taken now, that a function speaks of, by their identities: variables, and attributes of variables."""
    code = frame.f_code
    spaces = (frame.f_locals, frame.f_globals)
    found: dict[int, tuple[str, Any]] = {}
    for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars, *code.co_names):
        value = next((space[name] for space in spaces if name in space), None)
        attributes = getattr(value, "__dict__", {})
        for text, each in ((name, value), *((f"{name}.{at}", attributes.get(at)) for at in code.co_names)):
            if isinstance(each, _LOCKS) and "unlocked" not in repr(each):
                found.setdefault(id(each), (text, each))
    return found


def _out(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _stack(frame: FrameType) -> str:
    """A rank's stack without the simulator's frames."""
    inner = [
        entry
        for entry in traceback.extract_stack(frame)
        if not entry.filename.startswith((PACKAGE, threading.__file__))
    ]
    return "".join(traceback.format_list(inner)).rstrip()
