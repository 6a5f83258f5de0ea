"""What pytest shows of a failure: the test's own lines and the message, and not how the simulator came to raise it."""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

import pytest

from kernbench.own_files import PACKAGE, is_own

_PLUGIN = os.path.join(PACKAGE, "testing", "")


@contextmanager
def short_traceback(config: pytest.Config, excinfo: pytest.ExceptionInfo[BaseException] | None) -> Iterator[None]:
    """In a block, an exception and those that led to it have no frames of the simulator, torch and Triton.

    Other frames are kept: a debugger that is entered later finds all. Nothing is left out with ``--tb=long`` and
    ``--full-trace``, in tests of kernbench itself, and of exceptions that the simulator had no part in.
    """
    if excinfo is None or "kernbench.errors" not in sys.modules or shows_all(config):
        yield
        return
    whole = excinfo.traceback
    kept = [(error, error.__traceback__) for error in _chain(excinfo.value)]
    try:
        for error, frames in kept:
            error.__traceback__ = shown_frames(error, frames)
        if excinfo.value.__traceback__ is not None:
            # by its own class: ranks that run pytest have one each, and this module is all of theirs
            excinfo.traceback = type(excinfo).from_exception(excinfo.value).traceback
        yield
    finally:
        for error, frames in kept:
            error.__traceback__ = frames
        excinfo.traceback = whole


def shows_all(config: pytest.Config) -> bool:
    """Whether the simulator's frames are wanted."""
    if config.getoption("tbstyle", "auto") == "long" or config.getoption("fulltrace", False):
        return True
    package = Path(PACKAGE)
    return package.is_relative_to(config.rootpath) and not {"site-packages", "dist-packages"} & set(package.parts)


def shown_frames(error: BaseException, frames: TracebackType | None) -> TracebackType | None:
    """What is shown of a traceback: frames of the program; of an error of the simulator that has none, the place of it."""
    from kernbench.errors import KernbenchError

    every = []
    while frames is not None:
        every.append(frames)
        frames = frames.tb_next
    raised_by_plugin = bool(every) and _file(every[-1]).startswith(_PLUGIN)
    if not raised_by_plugin and not any(_is_of_simulator(each) for each in every):
        return every[0] if every else None
    shown = [each for each in every if _is_of_program(each)]
    if all(_file(each).startswith(_runners()) for each in shown):
        shown = every[-1:] if raised_by_plugin or isinstance(error, KernbenchError) else every
    linked: TracebackType | None = None
    for each in reversed(shown):
        linked = TracebackType(linked, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return linked


def text_of(error: BaseException, config: pytest.Config) -> str:
    """A traceback in a section of a report."""
    frames = error.__traceback__ if shows_all(config) else shown_frames(error, error.__traceback__)
    return "".join(traceback.format_exception(type(error), error, frames, chain=False))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


def _file(frames: TracebackType) -> str:
    return frames.tb_frame.f_code.co_filename


def _is_of_simulator(frames: TracebackType) -> bool:
    return is_own(_file(frames)) and not _file(frames).startswith(_PLUGIN)


def _is_of_program(frames: TracebackType) -> bool:
    file = _file(frames)
    return not is_own(file) and not file.startswith((*_libraries("torch", "triton"), "<frozen "))


def _runners() -> tuple[str, ...]:
    """Where the frames between pytest's main program and a test are."""
    return _libraries("_pytest", "pytest", "pluggy")


@lru_cache
def _libraries(*names: str) -> tuple[str, ...]:
    places = (getattr(find_spec(name), "origin", None) for name in names)
    return tuple(os.path.join(os.path.dirname(place), "") for place in places if place)


class NoDebugRecordsOfTorch(logging.Filter):
    """Of what torch's loggers say for its own developers nothing is in the report of a test that simulates: some of them have
    the level DEBUG whatever the program's is. With pytest's own level at DEBUG they are all there."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See :class:`logging.Filter`."""
        if record.levelno > logging.DEBUG or "kernbench.runtime_api.context" not in sys.modules:
            return True
        return record.name.split(".")[0] != "torch" and not record.name.startswith("c10d")


def hide_debug_records(config: pytest.Config) -> None:
    """Have the sections of failed tests without torch's records of the level DEBUG."""
    level: object = config.getoption("log_level", None) or config.getini("log_level")
    handler = getattr(config.pluginmanager.get_plugin("logging-plugin"), "report_handler", None)
    if handler is not None and str(level).upper() not in ("DEBUG", "NOTSET", str(logging.DEBUG), "0"):
        handler.addFilter(NoDebugRecordsOfTorch())
