"""The manager: which plugins there are, and how their hooks are called."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import pluggy

from kernbench.errors import OutputError
from kernbench.plugins import discovery, specs
from kernbench.plugins.problems import PluginError, reason, warn
from kernbench.suggestions import did_you_mean

Call = Callable[..., Any]


class _PluggyManager(pluggy.PluginManager):
    """Pluggy's manager, to which a function with a hook's name needs no marker."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        options = super().parse_hookimpl_opts(plugin, name)
        if options is None and name.startswith(specs.PREFIX) and _is_function(getattr(plugin, name, None)):
            return {}
        return options


class PluginManager:
    """Plugins in the order of their registration.

    Args:
        parent: its plugins come first, as long as they are registered when this one is made.
    """

    def __init__(self, parent: PluginManager | None = None) -> None:
        self._hooks = _PluggyManager(specs.PROJECT)
        self._hooks.add_hookspecs(specs)
        self.blocked: list[str] = [] if parent is None else list(parent.blocked)
        """Patterns of the names of plugins that are left out."""
        self.warned: set[tuple[str, str]] = set() if parent is None else set(parent.warned)
        """Plugins and hooks whose failure has been reported."""
        self._sources: dict[str, str] = {}
        self.given: dict[str, Any] = {}
        """Values of the plugins' options where a simulation does not say: those of the command line."""
        self.references: list[str] = [] if parent is None else list(parent.references)
        """What :meth:`load` has loaded, for processes that are to load the same."""
        self.broken: dict[str, str] = {} if parent is None else dict(parent.broken)
        """Plugins that were found and could not be loaded: the reason by name."""
        if parent is not None:
            for name in parent.names:
                self._hooks.register(parent.plugin(name), name)
                self._sources[name] = parent.source(name)

    # -- registering -------------------------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The registered plugins, in order."""
        return list(self._sources)

    def source(self, name: str) -> str:
        """Where a plugin came from, for people."""
        return self._sources[name]

    def plugin(self, name: str) -> Any:
        """The plugin of that name."""
        return self._hooks.get_plugin(name)

    def hooks_of(self, name: str) -> list[str]:
        """The hooks that a plugin implements."""
        callers = self._hooks.get_hookcallers(self.plugin(name)) or []
        return sorted(caller.name for caller in callers)

    def register(self, plugin: object, name: str | None = None, *, source: str = "registered") -> str | None:
        """Add a plugin: a module, an object, or a class, which is called without arguments.

        A module may name its plugin in a global ``plugin``. Returns the plugin's name, None if it is left out (``no:NAME``).

        Raises:
            PluginError: it has no hooks, one of a wrong name or with wrong arguments, or fails in ``kernbench_register``.
        """
        if inspect.ismodule(plugin):
            name = name or plugin.__name__
            plugin = getattr(plugin, "plugin", plugin)
        if inspect.isclass(plugin):
            name = name or getattr(plugin, "name", "") or plugin.__name__
            try:
                plugin = plugin()
            except Exception as error:
                raise PluginError(f"plugin {name} ({source}) cannot be made: {reason(error)}") from error
        if self._hooks.is_registered(plugin):
            return self._hooks.get_name(plugin)
        name = self._free_name(name or str(getattr(plugin, "name", "")) or type(plugin).__name__)
        if any(fnmatchcase(name, pattern) for pattern in self.blocked):
            return None
        try:
            self._hooks.register(plugin, name)
            self._hooks.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            if self._hooks.is_registered(plugin):
                self._hooks.unregister(plugin)
            raise PluginError(f"plugin {name} ({source}): {error}{_did_you_mean(plugin)}") from None
        callers = self._hooks.get_hookcallers(plugin) or []
        impls = [impl for caller in callers for impl in caller.get_hookimpls() if impl.plugin is plugin]
        wrappers = [impl.function.__name__ for impl in impls if impl.wrapper or impl.hookwrapper]
        if not impls or wrappers:
            self._hooks.unregister(plugin)
            raise PluginError(
                f"plugin {name} ({source}): hook wrappers are not supported ({', '.join(wrappers)})" if wrappers else
                f"plugin {name} ({source}) has no hooks: expected functions called {specs.PREFIX}..., as in docs/plugins.md"
            )  # fmt: skip
        self._sources[name] = source
        for impl in self._implementations("kernbench_register"):
            if impl.plugin is plugin:
                self._decide("kernbench_register", impl, {"manager": self})
        return name

    def _free_name(self, name: str) -> str:
        """Two objects of one class are two plugins."""
        number, free = 1, name
        while self._hooks.has_plugin(free):
            number += 1
            free = f"{name}#{number}"
        return free

    def load(self, reference: str) -> str | None:
        """Register what ``--plugin REFERENCE`` means: a module, ``module:object``, a ``.py`` file; ``no:NAME`` leaves out
        the plugins of that name (``*`` and ``?`` as in file names)."""
        text = reference.strip()
        self.references.append(text)
        if text.startswith("no:"):
            self.block(text.removeprefix("no:"))
            return None
        return self.register(discovery.load_reference(text), source=f"--plugin {text}")

    def block(self, pattern: str) -> None:
        """Leave out plugins of this name, also those that are registered."""
        self.blocked.append(pattern)
        for name in [name for name in self._sources if fnmatchcase(name, pattern)]:
            self._hooks.unregister(name=name)
            del self._sources[name]

    def load_found(self) -> None:
        """Register what is installed. One that cannot be imported is warned about, and is in :attr:`broken`."""
        for found in discovery.find_plugins():
            if any(fnmatchcase(found.name, pattern) for pattern in self.blocked):
                continue
            try:
                self.register(found.load(), found.name, source=found.source)
            except Exception as error:
                self.broken[found.name] = reason(error)
                warn(f"plugin {found.name} ({found.source}) is left out: {reason(error)}", error)

    def extended(self, plugins: Iterable[object]) -> PluginManager:
        """These plugins and ``plugins``, for one simulation. A text is a reference as for :meth:`load`."""
        added = list(plugins)
        if not added:
            return self
        manager = PluginManager(self)
        manager.given = self.given
        for plugin in added:
            if isinstance(plugin, str):
                manager.load(plugin)
            else:
                manager.register(plugin, source="given to simulate")
        return manager

    # -- calling -----------------------------------------------------------------------------------------------------

    def _implementations(self, hook: str) -> list[Any]:
        impls = getattr(self._hooks.hook, hook).get_hookimpls()
        order = list(self._sources)
        return sorted(impls, key=lambda impl: (_turn(impl), order.index(impl.plugin_name)))

    def observer(self, hook: str) -> Call | None:
        """A function that tells every plugin which implements ``hook``; None if there is none.

        A plugin that raises is warned about, once per plugin and hook, and the run goes on. A file that cannot be
        written is the run's failure (:class:`~kernbench.errors.OutputError`), once all have been called.
        """
        impls = self._implementations(hook)
        if not impls:
            return None
        calls = [(impl.plugin_name, impl.function, tuple(impl.argnames)) for impl in impls]

        def tell(**given: object) -> None:
            unwritten = []
            for name, function, wanted in calls:
                try:
                    function(*[given[argument] for argument in wanted])
                except OutputError as error:
                    unwritten.append(error)
                except (Exception, SystemExit) as error:
                    if (name, hook) not in self.warned:
                        self.warned.add((name, hook))
                        warn(
                            f"plugin {name} failed in {hook}; the run goes on, and further failures there are not shown",
                            error,
                        )
            if unwritten:
                raise unwritten[0]

        return tell

    def _decide(self, hook: str, impl: Any, given: Mapping[str, object]) -> Any:
        try:
            return impl.function(*[given[argument] for argument in impl.argnames])
        except Exception as error:
            raise PluginError(f"plugin {impl.plugin_name} failed in {hook}: {reason(error)}") from error

    def first(self, hook: str, **given: object) -> tuple[str, Any] | None:
        """The first result that is not None, and whose it is."""
        for impl in self._implementations(hook):
            result = self._decide(hook, impl, given)
            if result is not None:
                return impl.plugin_name, result
        return None

    def concatenated(self, hook: str, **given: object) -> list[tuple[str, Any]]:
        """All results one after the other, each with its plugin."""
        found: list[tuple[str, Any]] = []
        for impl in self._implementations(hook):
            result = self._decide(hook, impl, given)
            if result is None:
                continue
            if not isinstance(result, Sequence) or isinstance(result, str):
                raise PluginError(f"plugin {impl.plugin_name} returned {result!r} from {hook}: expected a sequence")
            found += [(impl.plugin_name, item) for item in result]
        return found

    def merged(self, hook: str, **given: object) -> dict[str, tuple[Any, str]]:
        """All results as one mapping, each value with its plugin. A name that two plugins give is an error naming both."""
        found: dict[str, tuple[Any, str]] = {}
        for impl in self._implementations(hook):
            result = self._decide(hook, impl, given)
            if result is None:
                continue
            if not isinstance(result, Mapping):
                raise PluginError(f"plugin {impl.plugin_name} returned {result!r} from {hook}: expected a mapping")
            _add(found, {str(name): (value, f"plugin {impl.plugin_name}") for name, value in result.items()}, hook)
        return found

    # -- what plugins bring ------------------------------------------------------------------------------------------

    def systems(self) -> dict[str, tuple[Path, str]]:
        """Systems that are not shipped, by name: the YAML file of each, and who brings it."""
        found = discovery.entry_point_systems()
        more = {name: (Path(path), owner) for name, (path, owner) in self.merged("kernbench_systems").items()}
        _add(found, more, "kernbench_systems")
        return found

    def algorithms(self) -> dict[str, tuple[Mapping[str, Any], str]]:
        """Collective algorithms that are not shipped, by name: the entry of ``ccl.yaml`` of each, and who brings it."""
        found = dict(discovery.entry_point_algorithms())
        more: dict[str, tuple[Mapping[str, Any], str]] = {}
        for name, (entry, owner) in self.merged("kernbench_algorithms").items():
            if not isinstance(entry, str | Mapping):
                raise PluginError(
                    f"{owner} gives {entry!r} as algorithm {name!r}: expected a module's name or a mapping"
                )
            try:
                given = discovery.algorithm_entry({"module": entry} if isinstance(entry, str) else entry)
            except Exception as error:
                raise PluginError(f"{owner}: algorithm {name!r} ({entry}): {reason(error)}") from error
            more[name] = (given, owner)
        _add(found, more, "kernbench_algorithms")
        return found

    def operator_costs(self) -> dict[str, tuple[Any, str]]:
        """Costs of operators by name: what each plugin gives, and who it is."""
        return self.merged("kernbench_operator_costs")

    def options(self) -> list[tuple[str, Any]]:
        """The options that plugins declare (``click.Option``), each with its plugin."""
        found = self.concatenated("kernbench_options")
        owners: dict[str, str] = {}
        for owner, option in found:
            name = getattr(option, "name", None)
            if not name or not hasattr(option, "opts"):
                raise PluginError(
                    f"plugin {owner} returned {option!r} from kernbench_options: expected click.Option objects"
                )
            if owners.setdefault(name, owner) != owner:
                raise PluginError(f"plugins {owners[name]} and {owner} both have an option {name!r}: leave one out")
        return found

    def option_values(self, given: Mapping[str, object]) -> dict[str, Any]:
        """The value of every declared option: the given one, else the command line's, else its default.

        Raises :class:`PluginError` for one that no plugin has.
        """
        values: dict[str, Any] = {}
        if declared := [option for _, option in self.options()]:
            import click

            try:
                values = dict(click.Command("plugins", params=declared).make_context("plugins", []).params) | self.given
            except click.UsageError as error:
                raise PluginError(f"options of plugins: {error.format_message()}") from error
        unknown = [name for name in given if name not in values]
        if unknown:
            raise PluginError(
                f"no plugin has an option {', '.join(map(repr, unknown))}{did_you_mean(unknown[0], values)}; there are "
                f"{', '.join(sorted(values)) or 'none'}, of plugins {', '.join(self.names) or 'none'}"
            )
        return values | dict(given)

    def cost_model(self, topology: Any) -> Callable[[Any, float], float] | None:
        """The durations of a plugin's cost model, checked; None if no plugin has one for ``topology``."""
        found = self.first("kernbench_cost_model", topology=topology)
        if found is None:
            return None
        owner, model = found
        if not callable(getattr(model, "seconds", None)):
            raise PluginError(
                f"plugin {owner} returned {model!r} from kernbench_cost_model: it has no seconds(op, modelled)"
            )

        def seconds(op: Any, modelled: float) -> float:
            try:
                result = float(model.seconds(op, modelled))
            except Exception as error:
                raise PluginError(f"the cost model of plugin {owner} failed for {op.name}: {reason(error)}") from error
            if not isfinite(result) or result < 0:
                raise PluginError(f"the cost model of plugin {owner} says {result} s for {op.name}")
            return result

        return seconds


def _is_function(value: object) -> bool:
    return inspect.isfunction(value) or inspect.ismethod(value)


def _turn(impl: Any) -> int:
    return -1 if impl.tryfirst else 1 if impl.trylast else 0


def _add(found: dict[str, tuple[Any, str]], more: Mapping[str, tuple[object, str]], hook: str) -> None:
    for name, (value, owner) in more.items():
        if name in found:
            raise PluginError(
                f"{hook}: {found[name][1]} and {owner} both give {name!r}: leave one out with --plugin no:NAME"
            )
        found[name] = (value, owner)


def _did_you_mean(plugin: object) -> str:
    for name in dir(plugin):
        if name.startswith(specs.PREFIX) and name not in specs.RULES and _is_function(getattr(plugin, name, None)):
            return did_you_mean(name, specs.RULES) or f"; hooks are {', '.join(specs.RULES)}"
    return ""


_in_use: list[PluginManager] = []


def default_manager() -> PluginManager:
    """The plugins of every simulation: what is installed and what ``KERNBENCH_PLUGINS`` names, or a command's."""
    return _in_use[-1] if _in_use else _installed()


@contextmanager
def using(manager: PluginManager, given: Mapping[str, object] | None = None) -> Iterator[None]:
    """For the length of a block, ``manager`` is the default one, with these values of its plugins' options."""
    before, manager.given = manager.given, dict(given or {})
    _in_use.append(manager)
    try:
        yield
    finally:
        _in_use.remove(manager)
        manager.given = before


@cache
def _installed() -> PluginManager:
    manager = PluginManager()
    references = [each for each in os.environ.get(discovery.VARIABLE, "").split(",") if each.strip()]
    for reference in references:
        if reference.strip().startswith("no:"):
            manager.load(reference)
    manager.load_found()
    for reference in references:
        if not reference.strip().startswith("no:"):
            manager.load(reference)
    return manager
