"""Tests that depend on others: ``@pytest.mark.depends_on("test_build")``.

Dependencies come first, in the order of the file otherwise. Outcomes are files in the directory that the workers of a
run share: a dependency may run in another process, which has it or is done with it, because xdist's ``load`` gives every
worker its tests in order. Tests that depend on each other are also one ``xdist_group``, for ``--dist loadgroup``.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import pytest

_LONGEST_WAIT = 60.0  # seconds for a dependency that another worker has

_NEEDS: pytest.StashKey[list[str]] = pytest.StashKey()
_CIRCLE: pytest.StashKey[str] = pytest.StashKey()  # of a test that depends on itself: by way of which
_FAILED: pytest.StashKey[str] = pytest.StashKey()  # of a test that others depend on: how, empty if it has not


def order_items(items: list[pytest.Item]) -> None:
    """Move every test behind those that it depends on. Tests that depend on each other in a circle fail when they are set up:
    an error here would end xdist's workers without a word."""
    by_name = _by_name(items)
    edges = {id(item): _dependencies(item, by_name) for item in items}
    ordered: list[pytest.Item] = []
    state: dict[int, str] = {}

    def visit(item: pytest.Item, path: tuple[pytest.Item, ...]) -> None:
        if state.get(id(item)) == "done":
            return
        if state.get(id(item)) == "open":
            circle = path[path.index(item) :]
            words = " -> ".join(each.nodeid for each in (*circle, item))
            for each in circle:
                each.stash[_CIRCLE] = f"tests depend on each other in a circle: {words}"
            return
        state[id(item)] = "open"
        for other in edges[id(item)]:
            visit(other, (*path, item))
        state[id(item)] = "done"
        ordered.append(item)

    for item in items:
        visit(item, ())
    for group in _groups(items, edges):
        name = "kernbench-" + hashlib.sha256(min(item.nodeid for item in group).encode()).hexdigest()[:8]
        for item in group:
            item.add_marker(pytest.mark.xdist_group(name))
    for item in items:
        for other in edges[id(item)]:
            other.stash[_FAILED] = ""
        item.stash[_NEEDS] = [_key(other) for other in edges[id(item)]]
    items[:] = ordered


def _by_name(items: list[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """Tests by name within their file, by name with parameters, and by node id."""
    found: dict[str, list[pytest.Item]] = {}
    for item in items:
        plain = getattr(item, "originalname", None) or item.name
        for name in {item.nodeid, f"{item.path}::{item.name}", f"{item.path}::{plain}"}:
            found.setdefault(name, []).append(item)
    return found


def _dependencies(item: pytest.Item, by_name: dict[str, list[pytest.Item]]) -> list[pytest.Item]:
    """The collected tests that ``item`` names; one that was not selected is no reason to wait."""
    found: list[pytest.Item] = []
    for mark in item.iter_markers("depends_on"):
        for name in mark.args:
            found += by_name.get(str(name)) or by_name.get(f"{item.path}::{name}") or []
    return [other for other in found if other is not item]


def _groups(items: list[pytest.Item], edges: dict[int, list[pytest.Item]]) -> list[list[pytest.Item]]:
    """Tests that are connected by dependencies."""
    leader = {id(item): item for item in items}

    def find(item: pytest.Item) -> pytest.Item:
        while leader[id(item)] is not item:
            item = leader[id(item)]
        return item

    for item in items:
        for other in edges[id(item)]:
            leader[id(find(other))] = find(item)
    groups: dict[int, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(id(find(item)), []).append(item)
    return [group for group in groups.values() if len(group) > 1]


def _key(item: pytest.Item) -> str:
    """A name for a file; the suffix that xdist adds for its groups is left out."""
    return hashlib.sha256(f"{item.path}::{item.name}".encode()).hexdigest()


def note_outcome(item: pytest.Item, report: Any, directory: Path) -> None:
    """Write down how a test that others depend on ended, once its teardown is over; whatever failed before counts."""
    if _FAILED not in item.stash:
        return
    failed = item.stash[_FAILED]
    if report.outcome != "passed" and not failed:
        item.stash[_FAILED] = failed = f"{report.outcome} in {report.when}"
    if report.when == "teardown":
        directory.mkdir(parents=True, exist_ok=True)
        beside = directory / f"outcome-{_key(item)}.part"
        beside.write_text(f"{failed}\n{item.nodeid}")
        beside.replace(directory / f"outcome-{_key(item)}")


def require_dependencies(item: pytest.Item, directory: Path) -> None:
    """Skip a test whose dependencies did not pass; wait for those that another worker runs."""
    if _CIRCLE in item.stash:
        pytest.fail(item.stash[_CIRCLE], pytrace=False)
    deadline = time.monotonic() + _LONGEST_WAIT
    for key in item.stash.get(_NEEDS, ()):
        path = directory / f"outcome-{key}"
        while not path.exists():
            if time.monotonic() > deadline:
                pytest.fail(
                    f"a test that {item.nodeid} depends on has not ended after {_LONGEST_WAIT:g} s: "
                    "with xdist use --dist load or loadgroup; worksteal may put a test before what it depends on",
                    pytrace=False,
                )
            time.sleep(0.05)
        failed, _, nodeid = path.read_text().partition("\n")
        if failed:
            pytest.skip(f"depends on {nodeid}, which {failed}")
