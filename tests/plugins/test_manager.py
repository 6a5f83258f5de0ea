"""Registering plugins, the rules of their results, and what is said when one is wrong."""

from __future__ import annotations

import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from kernbench.errors import ConfigError
from kernbench.plugins import Plugin, PluginError, PluginManager, PluginWarning, hookimpl
from kernbench.plugins import specs as hook_specs
from kernbench.plugins.specs import OBSERVED, RULES


def plugin(name: str = "mine", **hooks: Callable[..., Any]) -> Any:
    made = types.SimpleNamespace(name=name)
    for hook, function in hooks.items():
        setattr(made, f"kernbench_{hook}", function)
    return made


def manager_of(*plugins: Any) -> PluginManager:
    manager = PluginManager()
    for each in plugins:
        manager.register(each)
    return manager


def test_every_hook_has_a_rule_and_says_when_it_is_called() -> None:
    hooks = [name for name in vars(hook_specs) if name.startswith("kernbench_")]
    assert hooks == list(RULES)
    assert all(getattr(hook_specs, name).__doc__ for name in hooks)
    assert set(RULES.values()) == {"first", "concatenated", "merged", "none", "observed"}


@pytest.mark.parametrize("hook", OBSERVED)
def test_who_observes_is_told_in_the_order_of_registration(hook: str) -> None:
    told: list[str] = []
    short = hook.removeprefix("kernbench_")
    first = plugin("a", **{short: lambda event: told.append(f"a {event}")})
    second = plugin("b", **{short: lambda ctx: told.append(f"b {ctx}")})
    third = plugin("c", **{short: hookimpl(tryfirst=True)(lambda: told.append("c"))})
    tell = manager_of(first, second, third).observer(hook)
    assert tell is not None
    tell(ctx="context", event="event")
    assert told == ["c", "a event", "b context"]
    assert PluginManager().observer(hook) is None


def test_who_observes_and_fails_is_warned_about_once_and_the_others_are_told() -> None:
    def broken(event: Any) -> None:
        raise ValueError("broken on purpose")

    told: list[int] = []
    tell = manager_of(
        plugin("bad", rank_started=broken), plugin("good", rank_started=lambda event: told.append(event))
    ).observer("kernbench_rank_started")
    assert tell is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(3):
            tell(ctx=None, event=number)
    assert told == [0, 1, 2]
    (warning,) = caught
    assert warning.category is PluginWarning
    text = str(warning.message)
    assert "plugin bad failed in kernbench_rank_started" in text
    assert "in broken\n" in text
    assert "ValueError: broken on purpose" in text


def test_a_warning_that_is_an_error_fails_nothing() -> None:
    def broken(event: Any) -> None:
        sys.exit("broken on purpose")

    tell = manager_of(plugin(rank_ended=broken)).observer("kernbench_rank_ended")
    assert tell is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tell(ctx=None, event=None)


def test_first_result_concatenated_and_merged() -> None:
    class Model:
        def seconds(self, op: Any, modelled: float) -> float:
            return 1.0

    model = Model()
    options = [click.Option(["--one"]), click.Option(["--two"])]
    manager = manager_of(
        plugin("a", cost_model=lambda topology: None, options=lambda: options[:1], systems=lambda: {"x": "/x.yaml"}),
        plugin("b", cost_model=lambda: model, options=lambda: options[1:], systems=lambda: {"y": "/y.yaml"}),
        plugin("c", cost_model=lambda: "never asked for", systems=lambda: None),
    )
    assert manager.first("kernbench_cost_model", topology=None) == ("b", model)
    assert manager.concatenated("kernbench_options") == [("a", options[0]), ("b", options[1])]
    assert manager.merged("kernbench_systems") == {"x": ("/x.yaml", "plugin a"), "y": ("/y.yaml", "plugin b")}


def _raise(*_: Any) -> Any:
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("hooks", "use", "message"),
    [
        ({"systems": _raise}, PluginManager.systems, "plugin mine failed in kernbench_systems: KeyError: 'lost'"),
        ({"systems": lambda: ["x"]}, PluginManager.systems, "plugin mine returned .* expected a mapping"),
        ({"options": lambda: "--x"}, PluginManager.options, "plugin mine returned .* expected a sequence"),
        ({"options": lambda: ["--x"]}, PluginManager.options, "plugin mine returned .* expected click.Option objects"),
        ({"algorithms": lambda: {"a": 3}}, PluginManager.algorithms, "plugin mine gives 3 as algorithm 'a'"),
        ({"algorithms": lambda: {"a": "no.such"}}, PluginManager.algorithms, "plugin mine: algorithm 'a' .*no.such"),
        ({"cost_model": lambda: 3}, lambda m: m.cost_model(None), "plugin mine returned 3 .* no seconds"),
        ({"cost_model": _raise}, lambda m: m.cost_model(None), "plugin mine failed in kernbench_cost_model"),
    ],
)
def test_who_decides_and_fails_is_an_error_naming_the_plugin(
    hooks: dict[str, Any], use: Callable[[PluginManager], Any], message: str
) -> None:
    with pytest.raises(PluginError, match=message):
        use(manager_of(plugin(**hooks)))


def test_two_plugins_that_give_one_name() -> None:
    manager = manager_of(plugin("a", systems=lambda: {"x": "1"}), plugin("b", systems=lambda: {"x": "2"}))
    with pytest.raises(PluginError, match="plugin a and plugin b both give 'x'"):
        manager.systems()


def test_a_name_that_is_shipped_cannot_be_taken() -> None:
    from kernbench.ccl.config import load_ccl_config
    from kernbench.topology import added_systems

    with pytest.raises(ConfigError, match="plugin mine brings a system 'sip8'"):
        added_systems(manager_of(plugin(systems=lambda: {"sip8": "x.yaml"})))
    entry = {"module": "kernbench.ccl.algorithms.ring_allreduce", "topology": "ring_1d"}
    with pytest.raises(ConfigError, match="plugin mine brings an algorithm 'ring_allreduce'"):
        load_ccl_config(plugins=manager_of(plugin(algorithms=lambda: {"ring_allreduce": entry})))


def _imported() -> types.ModuleType:
    module = types.ModuleType("acme_hooks")
    vars(module)["kernbench_rank_started"] = lambda event: None
    return module


def test_what_can_be_a_plugin_and_what_it_is_called() -> None:
    class Named(Plugin):
        name = "called so"

        def kernbench_rank_started(self) -> None: ...

    class Plain:
        def kernbench_rank_started(self) -> None: ...

    holder = types.ModuleType("acme_holder")
    vars(holder)["plugin"] = Plain
    manager = PluginManager()
    names = [manager.register(each) for each in (_imported(), Named(), Named, Plain(), holder)]
    assert names == ["acme_hooks", "called so", "called so#2", "Plain", "acme_holder"]
    assert manager.names == names
    module = _imported()
    assert manager.register(module, "again") == manager.register(module, "twice") == "again"
    assert manager.hooks_of("Plain") == ["kernbench_rank_started"]


def _broken_init() -> Any:
    class Needs:
        def __init__(self, more: int) -> None: ...

    return Needs


def _wrapper() -> Any:
    @hookimpl(wrapper=True)
    def around(event: Any) -> Any:
        return (yield)

    return plugin(rank_started=around)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: plugin(), "plugin mine .* has no hooks"),
        (lambda: types.ModuleType("empty"), "plugin empty .* has no hooks"),
        (lambda: plugin(rank_strated=lambda: None), "'kernbench_rank_strated'.* .did you mean kernbench_rank_started"),
        (lambda: plugin(rank_started=lambda evnt: None), "plugin mine .*evnt"),
        (_broken_init, "plugin Needs .* cannot be made: TypeError"),
        (_wrapper, "hook wrappers are not supported"),
        (lambda: plugin(register=_raise, rank_ended=lambda: None), "plugin mine failed in kernbench_register"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_plugin(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(PluginError, match=f"(?s){message}"):
        PluginManager().register(made())


def test_a_plugin_may_register_another() -> None:
    child = plugin("child", rank_started=lambda: None)
    manager = manager_of(plugin("parent", register=lambda manager: manager.register(child)))
    assert manager.names == ["parent", "child"]


def test_a_manager_for_one_simulation_leaves_its_parent_alone() -> None:
    parent = manager_of(plugin("a", rank_started=lambda: None))
    assert parent.extended([]) is parent
    child = parent.extended([plugin("b", rank_started=lambda: None), "no:a"])
    assert child.names == ["b"]
    assert parent.names == ["a"]


def test_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "acme_observer.py").write_text(
        "def kernbench_rank_started(): ...\nclass Other:\n    def kernbench_rank_ended(self): ...\n"
    )
    manager = PluginManager()
    assert manager.load(f"{tmp_path}/acme_observer.py") == "acme_observer"
    assert manager.load(f"{tmp_path}/acme_observer.py:Other") == "Other"
    monkeypatch.syspath_prepend(tmp_path)
    assert PluginManager().load("acme_observer") == "acme_observer"
    manager.load("no:Oth*")
    assert manager.names == ["acme_observer"]
    assert manager.load(f"{tmp_path}/acme_observer.py:Other") is None


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("acme_missing", "plugin 'acme_missing' cannot be imported: ModuleNotFoundError"),
        ("acme_missing.py", "cannot be imported: FileNotFoundError: there is no file .*acme_missing.py"),
        ("json:nothing", "plugin 'json:nothing': json has no 'nothing'"),
    ],
)
def test_references_that_lead_nowhere(reference: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        PluginManager().load(reference)


def test_options_have_values_by_default_and_by_name() -> None:
    options = [click.Option(["--csv-file"]), click.Option(["--every"], type=int, default=3)]
    manager = manager_of(plugin(options=lambda: options))
    assert manager.option_values({}) == {"csv_file": None, "every": 3}
    assert manager.option_values({"every": 5}) == {"csv_file": None, "every": 5}
    with pytest.raises(
        PluginError,
        match=r"'evry' \(did you mean every\?\); there are csv_file, every, of plugins mine",
    ):
        manager.option_values({"evry": 5})
