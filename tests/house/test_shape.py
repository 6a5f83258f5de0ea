"""The shape of the house: no circles, imports downward, private names at home, one meaning per class name.

The one table of what does not hold, ``UPWARD``, only shrinks: an entry that is no longer needed has to go.
"""

from __future__ import annotations

from pathlib import Path

import networkx
import pytest

import kernbench
from tests.house.source import Package

LAYERS = (
    ("child_processes", "notebook_html"),
    (
        "defaults",
        "errors",
        "lazy_names",
        "plurals",
        "process_end",
        "own_files",
        "reporting",
        "standard_output",
        "suggestions",
        "version",
    ),
    ("environment_variables", "input_files", "interruption"),
    (
        "callable_module",
        "collective_kinds",
        "grid",
        "output_files",
        "plugins",
        "program_files",
        "scheduler",
    ),
    ("stand_ins",),
    ("advice", "memory", "order", "topology"),
    ("spec_files",),
    ("command_ends", "cost", "names", "sim_engine"),
    ("ccl", "triton_engine"),
    ("options", "precompile", "simulation"),
    ("trace",),
    ("html_report", "torch_backend"),
    ("compiled_operators", "driver_tools", "processes"),
    ("runtime_api",),
    ("autotune", "benching", "explore", "programs", "sweep", "testing", "tp"),
    ("what_if",),
    ("validation",),
    ("kernbench",),
    ("commands",),
    ("cli",),
    ("benches",),
    ("__main__",),
)
"""The rooms, from the bottom. Each imports from lower layers only."""

INNER = {
    "kernbench.simulation": ("ranks", "time", "memory", "values", "order", "launches", "matching"),
    "kernbench.torch_backend.gpu": ("tensors", "kernels", "device", "memory", "names"),
}
"""The rooms within large rooms, from the bottom. Above them are the modules that are in none."""

UPWARD = {("triton_engine", "torch_backend")}
"""Rooms that import from a higher one: Triton's values are computed outside of torch's modes, which are the backend's."""

LIBRARIES = {"programs": {"commands"}, "tp": {"benches"}}
"""Rooms of programs that run on a GPU as they are, and the rooms that may import them. The simulator is none of those."""

OFFERED = {"errors", "input_files", "reporting", "runtime_api.running_rank", "topology", "triton_engine"}
"""What libraries import of the simulator, which they run without, too."""

BENCHES = "benches"
"""Programs that measure the house from within: their classes are their own, and what they measure may be private."""

CONTRACT = {"_HOST_READ_BARRIERS", "_drain_pending", "_pending_worker_waits", "_rank_by_greenlet"}
"""Names with an underscore that are promised: anybody may use them."""

TORCH = {"_config", "_device", "_load", "_name", "_plugins"}
"""Private names of torch, and of ctypes, that a class of ours happens to have too."""


@pytest.fixture(scope="module")
def house() -> Package:
    return Package(Path(kernbench.__file__).parent)


def circles(package: Package) -> list[set[str]]:
    graph = networkx.DiGraph([(module, other) for module, others in package.imports.items() for other in others])
    return [found for found in networkx.strongly_connected_components(graph) if len(found) > 1]


def test_no_module_imports_itself_by_way_of_others(house: Package) -> None:
    assert circles(house) == []


def test_imports_point_downward(house: Package) -> None:
    level = {room: number for number, layer in enumerate(LAYERS) for room in layer}
    assert set(level) == house.rooms
    upward: dict[tuple[str, str], list[str]] = {}
    for module, others in house.imports.items():
        for other in others:
            pair = house.room(module), house.room(other)
            if pair[0] != pair[1] and level[pair[0]] <= level[pair[1]]:
                upward.setdefault(pair, []).append(f"{module} -> {other}")
    assert {pair: found for pair, found in upward.items() if pair not in UPWARD} == {}
    assert set(upward) == UPWARD, "nobody does that any more: take it out of UPWARD"


@pytest.mark.parametrize("whole", INNER)
def test_imports_within_a_room_point_downward(house: Package, whole: str) -> None:
    """Each inner room imports from those before it, and none from the modules above them."""
    level = {f"{whole}.{room}": number for number, room in enumerate(INNER[whole])}
    found = {module for module in house.packages if module.rpartition(".")[0] == whole}
    assert found == set(level)

    def floor(module: str) -> int:
        return level.get(".".join(module.split(".")[: whole.count(".") + 2]), len(level))

    upward = [
        f"{module} -> {other}"
        for module, others in house.imports.items()
        for other in others
        if module.startswith(f"{whole}.") and other.startswith(f"{whole}.") and floor(module) < floor(other)
    ]
    assert upward == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_libraries_of_programs_are_beside_the_simulator(house: Package, library: str) -> None:
    users = {house.room(module) for module, others in house.imports.items() if library in map(house.room, others)}
    assert users == {library, *LIBRARIES[library]}
    imported = {
        other.partition(".")[2]
        for module, others in house.imports.items()
        if house.room(module) == library
        for other in others
        if house.room(other) != library
    }
    assert {name for name in imported if not any(f"{name}.".startswith(f"{each}.") for each in OFFERED)} == set()


def test_private_names_stay_in_their_module(house: Package) -> None:
    ours = house.without(BENCHES)
    assert [access for access in ours.foreign_accesses() if access.name not in CONTRACT | TORCH] == []


def test_a_class_name_means_one_thing(house: Package) -> None:
    assert {name: places for name, places in house.without(BENCHES).classes.items() if len(places) > 1} == {}


def test_what_is_read_from_source(tmp_path: Path) -> None:
    """A package of five modules with one fault of each kind."""
    for name, text in {
        "__init__": "",
        "low/__init__": "",
        "low/a": "if TYPE_CHECKING:\n    from pkg.low.b import B\n\nclass A:\n    _hidden = 1\n",
        "low/b": "class B:\n    def f(self):\n        from pkg.low import a\n        self._mine = a.A()._hidden\n",
        "low/c": "from . import b\nfrom .a import A\nfrom ..top import _own\n",
        "top": "import pkg.low.b\nfrom pkg.low.a import A\nfrom os import _exit\nclass A:\n    x = pkg.low.b.B()._mine\n",
    }.items():
        path = tmp_path / "pkg" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    package = Package(tmp_path / "pkg")
    assert package.rooms == {"pkg", "low", "top"}
    assert package.imports["pkg.top"] == {"pkg.low.a", "pkg.low.b"}
    assert package.imports["pkg.low.c"] == {"pkg.low.a", "pkg.low.b", "pkg.top"}
    assert circles(package) == [{"pkg.low.a", "pkg.low.b"}]
    assert package.classes == {"A": ["pkg.low.a:4", "pkg.top:4"], "B": ["pkg.low.b:1"]}
    assert [(access.module, access.line, access.name) for access in package.foreign_accesses()] == [
        ("pkg.low.b", 4, "_hidden"),
        ("pkg.low.c", 3, "_own"),
        ("pkg.top", 5, "_mine"),
    ]
