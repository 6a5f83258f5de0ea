"""The path of an operation stays one: no subclasses of the recorder, no questions on the bare path, one reading of schemas."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import textwrap
from pathlib import Path

import pytest

import kernbench.torch_backend
from kernbench.sim_engine import GraphEngine
from kernbench.simulation.launches.streams import Streams
from kernbench.torch_backend.operations import plans
from kernbench.torch_backend.operations.recorder import Recorder

ROOM = Path(kernbench.torch_backend.__file__).parent


@pytest.fixture(scope="module", autouse=True)
def whole_room() -> None:
    for module in pkgutil.walk_packages([str(ROOM)], "kernbench.torch_backend."):
        importlib.import_module(module.name)


@pytest.mark.parametrize("one", [Recorder, Streams])
def test_features_listen_and_do_not_derive(one: type) -> None:
    assert one.__subclasses__() == []


BARE = (
    Recorder.__torch_dispatch__, Recorder._view, Recorder._run_plan, plans.Plans.of, plans.signature, GraphEngine.append,
)  # fmt: skip
"""What an operation goes through whose plan is known."""

ALLOWED = {
    "_view": {"block_of(args[0]) is not None"},
    "signature": {"value is not None", "memory is not None"},
    "append": {"tail is None", "free is None"},
}
"""Tests for None that say what a thing is, not whether a feature is on."""


@pytest.mark.parametrize("function", BARE, ids=lambda function: function.__qualname__)
def test_no_feature_is_asked_for_on_the_bare_path(function: object) -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))  # type: ignore[arg-type]
    found = {
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and any(isinstance(each, ast.Is | ast.IsNot) for each in node.ops)
        and any(isinstance(each, ast.Constant) and each.value is None for each in node.comparators)
    }  # fmt: skip
    assert found <= ALLOWED.get(function.__name__, set())  # type: ignore[attr-defined]


def test_alias_information_is_read_in_one_place() -> None:
    """Which arguments an operator writes is said by its schema once."""
    readers = {
        str(path.relative_to(ROOM)) for path in ROOM.rglob("*.py") if ".alias_info" in path.read_text(encoding="utf-8")
    }
    assert readers == {"operations/operators.py"}
