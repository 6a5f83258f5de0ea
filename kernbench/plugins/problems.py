"""What may go wrong with a plugin, and how it is reported."""

from __future__ import annotations

import logging
import traceback
import warnings

from kernbench.errors import KernbenchError, message_of

_log = logging.getLogger("kernbench.plugins")


class PluginError(KernbenchError):
    """A plugin cannot be loaded, or failed in a hook that decides something. The message names the plugin and the hook."""

    exit_code = 2


class PluginWarning(UserWarning):
    """A plugin that only observes has failed. The run goes on as if it were not there."""


def warn(message: str, error: BaseException | None = None) -> None:
    """Warn, with the traceback of ``error``; never raises, also where warnings are errors."""
    if error is not None:
        message = f"{message}\n{''.join(traceback.format_exception(error)).rstrip()}"
    try:
        warnings.warn(message, PluginWarning, stacklevel=3)
    except PluginWarning:
        _log.warning("%s", message)


def reason(error: BaseException) -> str:
    """An error in one line."""
    said = message_of(error)
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
