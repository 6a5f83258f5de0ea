"""Plugins: what others add to kernbench without touching it. See ``docs/plugins.md``.

A plugin is a module or an object with functions called ``kernbench_...``, the hooks of :mod:`kernbench.plugins.specs`. It is
found by its entry point in the group ``kernbench``, as a module of the package ``kernbench.plugins`` (any distribution may
have a part of that package), by ``--plugin MODULE`` and ``KERNBENCH_PLUGINS``, or given to ``kernbench.simulate``.

This room stands at the bottom: it knows neither torch nor time, and calls the registered plugins.
"""

from __future__ import annotations

import os
from pkgutil import extend_path
from typing import TYPE_CHECKING

from kernbench.lazy_names import lazily

# Parts of this package in other distributions: every `kernbench/plugins` folder on sys.path, after our own.
for _portion in extend_path(list[str](), "kernbench"):
    _folder = os.path.join(_portion, "plugins")
    if _folder not in __path__ and os.path.isdir(_folder):
        __path__.append(_folder)

if TYPE_CHECKING:
    from kernbench.plugins.manager import PluginManager as PluginManager
    from kernbench.plugins.manager import default_manager as default_manager
    from kernbench.plugins.problems import PluginError as PluginError
    from kernbench.plugins.problems import PluginWarning as PluginWarning
    from kernbench.plugins.specs import CostModel as CostModel
    from kernbench.plugins.specs import Plugin as Plugin
    from kernbench.plugins.specs import hookimpl as hookimpl
    from kernbench.plugins.worker import Worker as Worker
    from kernbench.plugins.worker import WorkerPlugin as WorkerPlugin

_HOMES = {
    "CostModel": ".specs",
    "Plugin": ".specs",
    "PluginError": ".problems",
    "PluginManager": ".manager",
    "PluginWarning": ".problems",
    "Worker": ".worker",
    "WorkerPlugin": ".worker",
    "default_manager": ".manager",
    "hookimpl": ".specs",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
