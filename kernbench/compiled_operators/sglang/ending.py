"""The end of ``sglang.Engine``, which kills its schedulers in the middle of what they do.

Here it asks them first, as SGLang's server does, so that their ranks end as programs do, with what they have to report.
"""

from __future__ import annotations

import functools
import time
from types import ModuleType
from typing import Any

_PATIENCE = 15.0
"""Seconds after which they are killed, as the server does it (``_SCHEDULER_EXIT_TIMEOUT_SECS``)."""


def ask_before_killing(module: ModuleType) -> None:
    """Have an engine's schedulers end by themselves: ``sglang.srt.entrypoints.engine``."""
    engine: Any = getattr(module, "Engine", None)
    method = getattr(engine, "shutdown", None)
    if not callable(method):
        return

    @functools.wraps(method)
    def shutdown(self: object) -> Any:
        if not getattr(self, "_attached", False):
            _ask(self)
        return method(self)

    engine.shutdown = shutdown


def _ask(engine: object) -> None:
    from sglang.srt.managers.io_struct import ShutdownReq  # type: ignore[import-not-found]
    from sglang.srt.managers.tokenizer_manager import collect_scheduler_processes  # type: ignore[import-not-found]

    manager = getattr(engine, "tokenizer_manager", None)
    send = getattr(manager, "_dispatch_to_scheduler", None)
    if manager is None or send is None or not collect_scheduler_processes():
        return
    watchdog = getattr(manager, "_subprocess_watchdog", None)
    if watchdog is not None:
        watchdog.stop()
    send(ShutdownReq())
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline and collect_scheduler_processes():
        time.sleep(0.1)
