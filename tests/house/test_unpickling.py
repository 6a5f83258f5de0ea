"""Where the package makes objects or code of bytes: each place is listed, with where the bytes come from. None is a file."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kernbench
from tests.house.source import Package

UNPICKLING = {
    "kernbench.benches.harness.distributed_sides": "pipes to processes that this one has started",
    "kernbench.commands.explore_runs": "a pipe to a process that this one has forked",
    "kernbench.commands.explore_worker": "pipes to a process that this one has started, and the other way round",
    "kernbench.grid": "an expression whose syntax tree has been checked",
    "kernbench.plugins.worker": "a pair of sockets to a process that this one has started",
    "kernbench.precompile.kernels": "the program that a spec names",
    "kernbench.processes.channel": "a pair of sockets to a fork, or one whose other end is this user's (SO_PEERCRED)",
    "kernbench.processes.lanes": "the same",
    "kernbench.runtime_api.launcher": "the program that is run, and what was marshalled of it in the same expression",
    "kernbench.runtime_api.rank_arguments": "what was pickled in this process, for a copy",
    "kernbench.torch_backend.rank_state.replaced_attributes": "what was marshalled in this process of the program that is run",
    "kernbench.torch_backend.features.remote_calls": "a simulated store of the program's own ranks",
}
"""Modules that make objects or code of bytes, and whose bytes these are."""

OWNERS = {"cloudpickle", "dill", "joblib", "marshal", "np", "numpy", "pickle", "shelve", "torch"}
"""Modules whose ``load``, ``loads``, ``open`` and ``Unpickler`` run what bytes tell them to."""


def makers_of(tree: list[ast.AST]) -> list[str]:
    """Calls and base classes that make objects or code of bytes, as they are written."""
    found = []
    for node in tree:
        names = [node.func] if isinstance(node, ast.Call) else node.bases if isinstance(node, ast.ClassDef) else []
        for name in names:
            owner = ast.unparse(name.value) if isinstance(name, ast.Attribute) else ""
            called = name.attr if isinstance(name, ast.Attribute) else name.id if isinstance(name, ast.Name) else ""
            if (
                (owner in OWNERS and called in ("load", "loads", "open", "Unpickler"))
                or (owner == "yaml" and called in ("unsafe_load", "full_load", "Loader", "UnsafeLoader"))
                or (not owner and called in ("eval", "exec"))
                or (
                    called == "recv" and isinstance(node, ast.Call) and not node.args
                )  # multiprocessing's: it unpickles
            ):
                found.append(ast.unparse(name))
    return found


@pytest.fixture(scope="module")
def house() -> Package:
    return Package(Path(kernbench.__file__).parent)


def test_whatever_makes_objects_of_bytes_is_listed(house: Package) -> None:
    found = {module: makers for module, nodes in house.nodes.items() if (makers := makers_of(nodes))}
    assert set(found) == set(UNPICKLING)


@pytest.mark.parametrize(("text", "found"), [
    ("pickle.loads(data)", ["pickle.loads"]), ("torch.load(path)", ["torch.load"]), ("eval(text)", ["eval"]),
    ("class A(pickle.Unpickler):\n    pass", ["pickle.Unpickler"]), ("json.loads(text)", []), ("tl.load(x)", []),
    ("end.recv(16)", []), ("self.connection.recv()", ["self.connection.recv"]), ("yaml.safe_load(x)", []),
])  # fmt: skip
def test_what_is_found(text: str, found: list[str]) -> None:
    assert makers_of(list(ast.walk(ast.parse(text)))) == found
