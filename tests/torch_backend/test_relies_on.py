"""What torch_backend relies on in torch and Python is so in those that are installed, and is all that it uses of their own."""

from __future__ import annotations

import importlib
import inspect
from inspect import Parameter
from types import ModuleType
from typing import Any

import pytest

import kernbench
from kernbench.torch_backend import relies_on, replaced_names
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state.imports import INSTALLERS
from kernbench.torch_backend.relies_on import Reliance, find
from tests.torch_backend.private_names import private_names

MODULES = relies_on.modules()
OF_MODULES = [(name, each) for name, of_module in relies_on.reliances().items() for each in of_module]


@pytest.mark.parametrize(("module", "reliance"), OF_MODULES, ids=[f"{name}-{each.name}" for name, each in OF_MODULES])
def test_it_is_so(module: str, reliance: Reliance) -> None:
    assert reliance.broken() == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_private_names_that_are_used_are_relied_on(module: ModuleType) -> None:
    said = {name for reliance in getattr(module, "RELIES_ON", ()) for name in reliance.names}
    whole = tuple(f"{name}." for name in said if not isinstance(find(name), ModuleType))  # its attributes come with it
    used = {name for name in private_names(module) if name not in said and not name.startswith(whole)}
    assert {
        name for name in used if not any(each.startswith(f"{name}.") for each in said)
    } == set()  # ways to something


@pytest.mark.parametrize("isolation", ["carrier", "greenlet"])
def test_what_stands_for_a_function_takes_what_that_takes(isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what has a signature: parameters that torch, or a later torch, gives by name are found."""
    replaced: list[tuple[str, Any, Any]] = []
    stock_add = Patches.add

    def add(self: Patches, owner: Any, name: str, value: Any) -> None:
        replaced.append(
            (f"{getattr(owner, '__name__', type(owner).__name__)}.{name}", getattr(owner, name, None), value)
        )
        stock_add(self, owner, name, value)

    for installer in INSTALLERS:
        importlib.import_module(installer)
    monkeypatch.setattr(Patches, "add", add)
    monkeypatch.setattr(replaced_names, "_idle", [])  # names that an earlier spawn has made are not made again
    with kernbench.simulate() as ctx:
        ctx.multiprocessing.spawn(lambda rank: None, nprocs=1, isolation=isolation)
    assert len(replaced) > (300 if isolation == "carrier" else 10)
    missing = {name: lacking for name, stock, value in replaced if (lacking := _lacking(stock, value))}
    missing.pop("torch.cuda._DeviceGuard", None)  # torch calls it by position only
    assert missing == {}


def _lacking(stock: Any, value: Any) -> set[str]:
    """Parameters of ``stock`` that ``value`` cannot be given by name."""
    try:
        theirs, ours = (inspect.signature(getattr(each, "__func__", each), follow_wrapped=False).parameters.values()
                        for each in (stock, value))  # fmt: skip
    except (TypeError, ValueError):  # no functions, or of C++
        return set()
    variable = {parameter.kind for parameter in ours} & {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    if Parameter.VAR_KEYWORD in variable:
        return set()
    named = {
        parameter.name for parameter in theirs if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD and not variable
    }
    named |= {parameter.name for parameter in theirs if parameter.kind is Parameter.KEYWORD_ONLY}
    return named - {parameter.name for parameter in ours} - {"self"}


def test_every_reliance_says_why() -> None:
    assert [each.name for _, each in OF_MODULES if len(each.why.split()) < 2 or each.why.endswith(".")] == []


@pytest.mark.parametrize(
    ("reliance", "wrong"),
    [
        (Reliance("json.dumps", ""), []),
        (Reliance("json.decoder.JSONDecoder", "", has=("decode", "raw_decode"), subclassed=True), []),
        (Reliance("json.no_such_thing", ""), ["does not exist: module 'json' has no attribute 'no_such_thing'"]),
        (Reliance("no_such_module.name", ""), ["does not exist: No module named 'no_such_module'"]),
        (Reliance("json", "", has=("dumps", "gone")), ["has no gone"]),
        (Reliance("json.loads", "", parameters=("s", "cls")), []),
        (Reliance("json.loads", "", parameters=("text",)), [
            "takes (s, cls, object_hook, parse_float, parse_int, parse_constant, object_pairs_hook, kw), "
            "expected (text) among them"
        ]),
        (Reliance("json.JSONEncoder", "", looked_up_by=("json.dumps", "json")), []),
        (Reliance("json.JSONDecoder", "", looked_up_by=("json.dumps",)), ["is not looked up by json.dumps"]),
        (Reliance("builtins.bool", "", subclassed=True), ["cannot be derived from"]),
        (Reliance("json.dumps", "", holds=lambda dumps: dumps(1) == "2"), ["does not behave as expected"]),
        (Reliance("json.dumps", "", holds=lambda dumps: dumps()), [
            "does not behave as expected: TypeError: dumps() missing 1 required positional argument: 'obj'"
        ]),
    ],
)  # fmt: skip
def test_what_is_not_so_is_said(reliance: Reliance, wrong: list[str]) -> None:
    assert reliance.broken() == wrong


def test_the_list_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Reliance("json.dumps", "values become text"), Reliance("json.gone", "text becomes values")
    monkeypatch.setattr(relies_on, "reliances", lambda: {"room": (good, bad)})
    assert relies_on.main() == 1
    printed = capsys.readouterr().out
    assert "ok     json.dumps: values become text" in printed
    assert "BROKEN json.gone: text becomes values\n         does not exist" in printed
    assert printed.endswith("1 of 2 are broken\n")
    monkeypatch.setattr(relies_on, "reliances", lambda: {"room": (good,)})
    assert relies_on.main() == 0
