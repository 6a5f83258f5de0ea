"""The marks of a test against what they take, when it is collected.

A mark that is wrong is an error of the collection: a test that ran all the same, without what its mark asks for, would pass
and have tested nothing.
"""

from __future__ import annotations

import inspect
import unittest
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pytest

from kernbench.options import Option
from kernbench.suggestions import did_you_mean
from kernbench.testing.declared import FIXTURES, MARKS, OF_SIMULATE, DeclaredMark

PARAMETER = "world_size"
"""The parameter of a test that says how many ranks it has."""


class MarkError(ValueError):
    """A mark that its test cannot have. The message says which, and why."""


@dataclass(frozen=True)
class RanksOfTest:
    """What the mark ``world_size`` says of a test.

    Attributes:
        count: how many ranks run its body.
        isolation: what keeps them apart.
        system: whose devices they drive; None: the default one.
        options: more of :func:`kernbench.simulate`.
    """

    count: int
    isolation: str
    system: Any
    options: Mapping[str, Any]


# -- one mark --------------------------------------------------------------------------------------------------------


def read_mark(name: str, mark: pytest.Mark | None) -> dict[str, Any]:
    """The arguments of a mark by name, those that are not given by default; without a mark all are. Raises MarkError."""
    declared = next(each for each in MARKS if each.name == name)
    known = {argument.name: argument for argument in (*declared.positional, *declared.named)}
    values = {argument.name: argument.default for argument in known.values()}
    if declared.many:
        values[declared.positional[-1].name] = ()
    if mark is None:
        return values
    given = _by_name(declared, mark)
    options = {key: given.pop(key) for key in list(given) if key not in known}
    _require_options(declared, options, known)
    for key, value in given.items():
        argument = known[key]
        if declared.many and argument is declared.positional[-1]:
            values[key] = tuple(_read(argument, each) for each in value)
        else:
            values[key] = _read(argument, value)
    return values | options


def _by_name(declared: DeclaredMark, mark: pytest.Mark) -> dict[str, Any]:
    """What a mark was given, by the names of the arguments."""
    given: dict[str, Any] = {}
    named = dict(mark.kwargs)
    single = declared.positional[:-1] if declared.many else declared.positional
    for argument, value in zip(single, mark.args, strict=False):
        if argument.name in named:
            raise MarkError(f"{argument.name} is there twice: it takes {declared.signature}")
        given[argument.name] = value
    rest = mark.args[len(single) :]
    if declared.many:
        name = declared.positional[-1].name
        if name in named:
            rest = (*rest, named.pop(name))
        given[name] = rest
    elif rest:
        raise MarkError(f"{rest[0]!r} has no place: it takes {declared.signature}")
    return given | named


def _read(argument: Option, value: object) -> Any:
    try:
        return argument.read(value)
    except (TypeError, ValueError):
        raise MarkError(f"{argument.name} {value!r}: expected {argument.kind.takes}") from None


def _require_options(declared: DeclaredMark, options: Mapping[str, object], known: Mapping[str, Option]) -> None:
    """Only what :func:`kernbench.simulate` takes."""
    others = OF_SIMULATE if declared.simulates else {}
    for name, value in options.items():
        for denied, why in declared.denied:
            if name == denied:
                raise MarkError(f"{name}: it does not take this option of kernbench.simulate: {why}")
        if name not in others:
            names = sorted({*known, *others} - {name for name, _ in declared.denied})
            raise MarkError(
                f"{name!r}: there is no such argument{did_you_mean(name, names)}. It takes {declared.signature}"
            )
        _read(others[name], value)


# -- the marks of a test ---------------------------------------------------------------------------------------------


def sizes_to_run(metafunc: pytest.Metafunc) -> tuple[int, ...]:
    """The sizes of a mark ``world_size`` that has several; none if it is wrong, which is reported for the tests."""
    mark = metafunc.definition.get_closest_marker("world_size")
    if mark is None or _parametrised(metafunc.definition):
        return ()
    try:
        sizes = read_mark("world_size", mark)["n"]
    except MarkError:
        return ()
    return sizes if len(set(sizes)) == len(sizes) > 1 else ()


def _parametrised(item: pytest.Item) -> bool:
    """Whether a ``parametrize`` of the test names its size."""
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs.get("argnames", ())
        if PARAMETER in (names.replace(",", " ").split() if isinstance(names, str) else names):
            return True
    return False


def _params(item: pytest.Item) -> Mapping[str, Any]:
    return getattr(getattr(item, "callspec", None), "params", {})


def ranks_of(item: pytest.Item) -> RanksOfTest | None:
    """What the mark ``world_size`` says of a test; None if it has none. Raises MarkError."""
    mark = item.get_closest_marker("world_size")
    if mark is None:
        return None
    values = read_mark("world_size", mark)
    sizes = values.pop("n")
    if PARAMETER in _params(item):
        count = _read(next(each for each in MARKS if each.name == "world_size").positional[0], _params(item)[PARAMETER])
        if sizes and (count not in sizes or (len(sizes) > 1 and _parametrised(item))):
            here = ", ".join(map(str, sizes))
            raise MarkError(
                f"the test's parameter world_size is {count}, the mark says {here}: leave the size to the parameter, "
                "@pytest.mark.world_size()"
            )
    elif not sizes:
        raise MarkError("how many ranks? Write @pytest.mark.world_size(4), or give the test a parameter world_size")
    elif len(sizes) > 1:
        twice = (
            "a size is there twice"
            if len(set(sizes)) < len(sizes)
            else "a mark that is added to a collected test has one size"
        )
        raise MarkError(f"{', '.join(map(str, sizes))}: {twice}")
    else:
        count = sizes[0]
    options = {name: value for name, value in values.items() if name not in ("isolation", "system")}
    return RanksOfTest(count, values["isolation"], values["system"], options)


def problems_of(item: pytest.Item) -> Iterator[str]:
    """What is wrong with the plugin's marks of a test: a line each, with file and line."""
    path, line, name = item.location
    where = f"{path}:{(line or 0) + 1}: {name}: "
    for declared in MARKS:
        try:
            _require_mark(declared, item)
        except MarkError as error:
            yield f"{where}@pytest.mark.{declared.name}: {error}"


def _require_mark(declared: DeclaredMark, item: pytest.Item) -> None:
    marks = list(item.iter_markers_with_node(declared.name))
    if not marks:
        return
    for _, mark in marks:
        read_mark(declared.name, mark)
    closest = [mark for node, mark in marks if node is marks[0][0]]
    if not declared.repeats and any(
        (mark.args, mark.kwargs) != (closest[0].args, closest[0].kwargs) for mark in closest
    ):
        raise MarkError("it is there twice, and says two things")
    match declared.name:
        case "world_size":
            _require_ranks(item)
        case "kernbench_gpu":
            _require_gpu(item)
        case "depends_on":
            _require_tests(item, [read_mark("depends_on", mark)["names"] for _, mark in marks])


def _require_ranks(item: pytest.Item) -> None:
    ranks = ranks_of(item)
    assert ranks is not None
    if not isinstance(item, pytest.Function):
        raise MarkError(f"a {type(item).__name__} has no body that ranks could run")
    if isinstance(item.cls, type) and issubclass(item.cls, unittest.TestCase):
        raise MarkError(
            "a method of unittest.TestCase would run once, and not on ranks: write it as a function, or as a method of a class "
            "without that base (cases of torch.testing that start processes: --kernbench-distributed)"
        )
    body = inspect.unwrap(getattr(item.obj, "__func__", item.obj))
    if inspect.iscoroutinefunction(body) or inspect.isasyncgenfunction(body) or inspect.isgeneratorfunction(body):
        raise MarkError(
            "the body is a coroutine or a generator, which ranks would make and not run: write def, and asyncio.run in it"
        )
    if item.get_closest_marker("kernbench_gpu"):
        raise MarkError("not together with kernbench_gpu: ranks have GPUs of their own")
    for fixture in FIXTURES:
        if fixture.of_body and fixture.name in _params(item):
            raise MarkError(f"{fixture.name} is each rank's own, and cannot be a parameter of the test")
    _require_fit(ranks.count, ranks.system, ranks.options)


def _require_gpu(item: pytest.Item) -> None:
    mark = item.get_closest_marker("kernbench_gpu")
    assert mark is not None
    values = read_mark("kernbench_gpu", mark)
    if (mark.args or mark.kwargs) and item.config.getoption("--kernbench-gpu") is not None:
        raise MarkError("a system of its own cannot be had under --kernbench-gpu: the run has one already")
    _require_fit(1, values["system"], values)


def _require_tests(item: pytest.Item, named: Sequence[Sequence[str]]) -> None:
    """The tests that a test depends on are there, whether or not they are selected in this run."""
    if not all(named):
        raise MarkError("on which tests? It takes their names")
    for name in (name for names in named for name in names):
        *file, plain = name.partition("[")[0].split("::")
        if file:
            if not (item.config.rootpath / file[0]).is_file():
                raise MarkError(f"{name!r}: there is no file {file[0]}")
        elif (module := getattr(item, "module", None)) is not None:
            owners = [module, *(each for each in vars(module).values() if isinstance(each, type))]
            if not any(hasattr(owner, plain) for owner in owners):
                tests = sorted({each for owner in owners for each in vars(owner) if each.startswith("test")})
                raise MarkError(f"{name!r}: this file has no such test{did_you_mean(plain, tests)}")


def _require_fit(count: int, system: object, options: Mapping[str, object]) -> None:
    if options.get("plugins") or not isinstance(system, str | None):
        return  # plugins may bring systems, and a handle is one: the simulation looks whether the ranks fit
    if problem := _no_fit(count, system, options.get("nodes")):
        raise MarkError(problem)


@lru_cache(maxsize=256)
def _no_fit(count: int, system: str | None, nodes: int | None) -> str:
    """Why there is no such system, or not with so many devices; empty if there is."""
    from kernbench.errors import KernbenchError
    from kernbench.topology import resolve_topology

    try:
        resolve_topology(system, nodes=nodes).topology_obj.require_world(count)
    except KernbenchError as error:
        return str(error)
    return ""
