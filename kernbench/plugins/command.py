"""Commands that take ``--plugin`` and the options that plugins declare.

    kernbench run --plugin examples/csv_recorder.py --csv ops.csv train.py

``--plugin`` is read before anything else, so that what it loads can add options to the very command. While the command
runs, its plugins are those of every simulation.
"""

from __future__ import annotations

from typing import Any

import click

from kernbench.plugins.manager import PluginManager, default_manager, using
from kernbench.plugins.problems import PluginError

_MANAGER = "kernbench.plugins.manager"
_LOADED = "kernbench.plugins.loaded"


def _all_loaded(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:
    late = [reference for reference in value if reference not in ctx.meta[_LOADED]]
    if late:
        raise click.BadParameter(f"{', '.join(late)} stands behind an option that no plugin before it has", ctx, param)


def _plugin_option() -> click.Option:
    return click.Option(
        ["--plugin", "references"], metavar="MODULE", multiple=True, expose_value=False, callback=_all_loaded,
        help="Load a plugin: a module, module:object or .py file; no:NAME leaves one out. Before its own options; repeatable.",
    )  # fmt: skip


class _TakesPlugins(click.Command):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_plugin_option())

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_MANAGER] = default_manager()
        loaded: list[str] = []
        while len(references := self._references(ctx, args)) > len(loaded):
            loaded = references  # the options of these may stand before further ones
            ctx.meta[_MANAGER] = default_manager().extended(loaded)
        own = {option for param in self.params for option in param.opts}
        for owner, option in ctx.meta[_MANAGER].options():
            if clash := own.intersection(option.opts):
                raise PluginError(
                    f"plugin {owner} has an option {', '.join(sorted(clash))}, which {ctx.info_name} has itself"
                )
        ctx.meta[_LOADED] = loaded
        return super().parse_args(ctx, args)

    def _references(self, ctx: click.Context, args: list[str]) -> list[str]:
        parser = self.make_parser(ctx)
        parser.ignore_unknown_options = True
        try:
            found, _, _ = parser.parse_args(list(args))
        except click.UsageError:
            return []  # the real parser will say it
        return list(found.get("references") or ())

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        own = super().get_params(ctx)
        manager: PluginManager | None = ctx.meta.get(_MANAGER)
        return own if manager is None else [*own, *(option for _, option in manager.options())]

    def invoke(self, ctx: click.Context) -> Any:
        manager: PluginManager = ctx.meta[_MANAGER]
        given = {option.name: ctx.params.pop(option.name, None) for _, option in manager.options()}
        with using(manager, given):
            return super().invoke(ctx)


class PluginCommand(_TakesPlugins):
    """A click command with ``--plugin``."""


class PluginGroup(_TakesPlugins, click.Group):
    """A click group with ``--plugin``, for itself and its subcommands."""
