"""The hooks: when each is called, with what, and what becomes of the results.

A plugin implements those it cares about, under their names, and may leave out arguments that it does not need. Plugins are
called in the order in which they were registered; ``@hookimpl(tryfirst=True)`` and ``trylast`` move one.

**Setup hooks decide.** What they return is used, by the rule that each states; if one raises, that is a
:class:`~kernbench.plugins.PluginError` naming the plugin.

**Run hooks observe.** They are called where it happens, in the rank that does it, and get plain data
(:mod:`kernbench.plugins.events`). One that raises is warned about, once, with its traceback, and the run goes on. They cannot
wait, launch or communicate; torch operations of their own are not part of the program. Completions are reported when they
become known, which is not the order of virtual time: sort by ``end``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pluggy

if TYPE_CHECKING:
    from kernbench.plugins.events import (
        CollectiveEvent,
        ContextEvent,
        DeadlockEvent,
        HostReadEvent,
        KernelEvent,
        RankEvent,
        TimelineEvent,
    )

PROJECT = "kernbench"
PREFIX = "kernbench_"

hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a function as an implementation, for its options: ``tryfirst``, ``trylast``, ``specname``. Not needed without."""

_hookspec = pluggy.HookspecMarker(PROJECT)
F = TypeVar("F", bound=Callable[..., Any])

RULES: dict[str, str] = {}
"""Hook to what becomes of its results: ``first``, ``concatenated``, ``merged``, ``none`` (setup) or ``observed`` (run)."""


def _rule(rule: str) -> Callable[[F], F]:
    def mark(function: F) -> F:
        RULES[function.__name__] = rule
        return _hookspec(function)

    return mark


class Plugin:
    """A base class for plugins that are objects. It brings nothing but a name; any object with hooks is a plugin."""

    name: str = ""
    """What messages call it; by default the class's."""


class Registry(Protocol):
    """Where plugins are registered: a :class:`~kernbench.plugins.manager.PluginManager`."""

    def register(self, plugin: Any, name: str | None = None) -> str | None:
        """Add a plugin: a module, an object, or a class, which is called. Returns its name, None if it is left out."""


class CostModel(Protocol):
    """Says how long operations take."""

    def seconds(self, op: Any, modelled: float) -> float:
        """Duration of an operation of a device's stream (seconds, finite, not negative).

        ``op`` has name, kind (``"kernel"``, ``"gemm"``, ``"attention"``, ``"math"``, ``"dma"``), rank, sip, nbytes, and detail
        (a mapping or None: the grid, and what the executor counted of a Triton kernel). ``modelled``: what kernbench says.
        """


# -- setup: these decide -----------------------------------------------------------------------------------------------


@_rule("none")
def kernbench_register(manager: Registry) -> None:
    """The plugin has been registered with ``manager``, and may register others with it."""


@_rule("concatenated")
def kernbench_options() -> Sequence[object] | None:
    """Options of the plugin, ``click.Option`` objects: ``kernbench run`` and the benches offer them. Their values are in
    ``ctx.options``, by the option's name; ``simulate(options={...})`` gives them too. Results are concatenated."""


@_rule("merged")
def kernbench_systems() -> Mapping[str, str | Path] | None:
    """Systems by name: paths of YAML files. Merged; a name that is taken is an error."""


@_rule("merged")
def kernbench_algorithms() -> Mapping[str, str | Mapping[str, object]] | None:
    """Collective algorithms by name: an entry of ``ccl.yaml`` (``{"module": ..., "topology": ...}``), or only the module.
    Merged; a name that is taken is an error. ``ccl.yaml`` may change their parameters."""


@_rule("merged")
def kernbench_operator_costs() -> Mapping[str, object] | None:
    """Costs of operators that torch does not bring, by qualified name (``"mylib::flash"``): a function of operands and
    results, or the torch operator that it is priced like, as ``kernbench.cost.register`` takes them. Asked when a simulation
    opens. Merged; a name that is taken is an error."""


@_rule("first")
def kernbench_cost_model(topology: Any) -> CostModel | None:
    """A model of durations on ``topology`` (a ``kernbench.topology.Topology``). Asked when a simulation opens; the first
    result that is not None is used."""


# -- run: these observe ------------------------------------------------------------------------------------------------


@_rule("observed")
def kernbench_context_opened(ctx: Any, event: ContextEvent) -> None:
    """A simulation begins. ``ctx`` is its RuntimeContext, also below."""


@_rule("observed")
def kernbench_rank_started(ctx: Any, event: RankEvent) -> None:
    """A rank's function is about to run."""


@_rule("observed")
def kernbench_rank_ended(ctx: Any, event: RankEvent) -> None:
    """A rank has returned, or was unwound because another failed."""


@_rule("observed")
def kernbench_rank_failed(ctx: Any, event: RankEvent) -> None:
    """A rank has raised, or has left something behind that failed: a root cause."""


@_rule("observed")
def kernbench_kernel_launched(ctx: Any, event: KernelEvent) -> None:
    """An operation has been put on a compute stream."""


@_rule("observed")
def kernbench_kernel_completed(ctx: Any, event: KernelEvent) -> None:
    """It has its values and its times, or has failed."""


@_rule("observed")
def kernbench_collective_enqueued(ctx: Any, event: CollectiveEvent) -> None:
    """A rank has called a collective, a send or a receive."""


@_rule("observed")
def kernbench_collective_matched(ctx: Any, event: CollectiveEvent) -> None:
    """All members have called it (of a message: both sides); it starts."""


@_rule("observed")
def kernbench_collective_completed(ctx: Any, event: CollectiveEvent) -> None:
    """The last member's part has ended."""


@_rule("observed")
def kernbench_host_read(ctx: Any, event: HostReadEvent) -> None:
    """The program looks at a value. Not seen: reads of a plain tensor on the host that torch does not report."""


@_rule("observed")
def kernbench_deadlock_detected(ctx: Any, event: DeadlockEvent) -> None:
    """No rank can go on; the ranks concerned are about to be notified."""


@_rule("observed")
def kernbench_timeline_finished(ctx: Any, event: TimelineEvent) -> None:
    """The simulation ends, well or not: ``ctx.engine.op_log`` is as it will stay."""


@_rule("observed")
def kernbench_context_closed(ctx: Any, event: ContextEvent) -> None:
    """The simulation has ended; the last hook."""


OBSERVED = tuple(name for name, rule in RULES.items() if rule == "observed")
