"""What torch_backend relies on in torch and Python is so in those that are installed, and is all that it uses of their own."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from inspect import Parameter
from pathlib import Path
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
OF_MODULES = [
    (name, each) for name, of_module in relies_on.reliances().items() for each in of_module if not each.unasked()
]


@pytest.mark.parametrize(("module", "reliance"), OF_MODULES, ids=[f"{name}-{each.name}" for name, each in OF_MODULES])
def test_it_is_so(module: str, reliance: Reliance) -> None:
    assert reliance.broken() == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_private_names_that_are_used_are_relied_on(module: ModuleType) -> None:
    reliances = getattr(module, "RELIES_ON", ())
    said = {name for reliance in reliances for name in reliance.names}
    there = {name for reliance in reliances if not reliance.unasked() for name in reliance.names}
    whole = tuple(f"{name}." for name in there if not isinstance(find(name), ModuleType))  # its attributes come with it
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
        if importlib.util.find_spec(installer.partition(".")[0]) is not None:  # some are of packages that may be there
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


def test_calls_of_c_that_ours_does_not_take_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here and there a release of torch gives its functions of C++ an argument more, which no signature of theirs says."""
    (tmp_path / "calls_of_c.py").write_text(
        "def f(_C, x):\n    _C._one(x, mode=1)\n    _C._two(*x)\n    _C._two(x, x, x)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def one(x: Any, mode: int = 0) -> None: ...

    def two(x: Any, y: Any) -> None: ...

    assert Reliance("calls_of_c", "", holds=relies_on.fit({"_one": one})).broken() == []
    assert Reliance("calls_of_c", "", holds=relies_on.fit({"_one": one, "_two": two})).broken() == [
        "does not behave as expected: TypeError: line 4 calls _two: too many positional arguments"
    ]
    assert Reliance("calls_of_c", "", holds=relies_on.fit({"_one": lambda x: None})).broken() == [
        "does not behave as expected: TypeError: line 2 calls _one: got an unexpected keyword argument 'mode'"
    ]


def test_what_is_not_to_be_there_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relies_on, "installed", lambda name: "2.14.1+cpu")
    later, now = (Reliance("json.gone", "", since=since) for since in ("2.15", "2.14"))
    assert (later.unasked(), later.broken()) == ("torch has it since 2.15", [])
    assert (now.unasked(), len(now.broken())) == ("", 1)
    alone, beside = (Reliance("json.gone", "", needs=needs) for needs in ("no_such_package", "pytest"))
    assert (alone.unasked(), alone.broken()) == ("no_such_package is not installed", [])
    assert (beside.unasked(), len(beside.broken())) == ("", 1)


@pytest.mark.parametrize(
    ("version", "broken", "said"),
    [
        (
            "2.16.0",
            True,
            "torch 2.16.0 is newer than the newest that is tested (2.15.0), and differs in 1 of 2 things ",
        ),
        ("2.15.3+cu132", True, ""),
        ("2.16.0", False, ""),
    ],
)
def test_a_later_torch_is_warned_of_where_something_is_broken(
    monkeypatch: pytest.MonkeyPatch, version: str, broken: bool, said: str
) -> None:
    monkeypatch.setattr(relies_on, "installed", lambda name: version)
    monkeypatch.setitem(relies_on.TESTED, "torch", ("2.13.0", "2.15.0"))
    names = (Reliance("json.dumps", ""), Reliance("json.gone" if broken else "json.loads", ""))
    monkeypatch.setattr(relies_on, "reliances", lambda: {"room": names})
    found = relies_on.warning()
    assert found.startswith(said)
    assert bool(found) is bool(said)
    assert "\n" not in found


def test_the_list_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = Reliance("json.dumps", "values become text"), Reliance("json.gone", "text becomes values")
    later = Reliance("json.later", "both", since="1000.0")
    monkeypatch.setattr(relies_on, "reliances", lambda: {"room": (good, bad, later)})
    assert relies_on.main() == 1
    printed = capsys.readouterr().out
    assert "ok     json.dumps: values become text" in printed
    assert "BROKEN json.gone: text becomes values\n         does not exist" in printed
    assert "-      json.later: both\n         not looked up: torch has it since 1000.0" in printed
    assert printed.endswith("1 of 3 are broken\n")
    monkeypatch.setattr(relies_on, "reliances", lambda: {"room": (good,)})
    assert relies_on.main() == 0
