"""What the plugin takes: its marks, options and fixtures, in one table.

pytest's registration, the checks of :mod:`kernbench.testing.checks` and ``python -m kernbench.testing``, which the
documentation shows, are made from it. It imports nothing heavy, since pytest reads it in every run.
"""

from __future__ import annotations

import argparse
import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernbench.testing.sizes import parse_ports, parse_size


@dataclass(frozen=True)
class ArgumentKind:
    """What an argument or an option may be.

    Attributes:
        takes: in words, after "expected".
        read: the value that is meant by what was given. Raises ValueError or TypeError for anything else.
        written: what the text of an option stands for.
    """

    takes: str
    read: Callable[[Any], Any]
    written: Callable[[str], Any] = str


def whole(least: int) -> ArgumentKind:
    """An integer; not True, which Python has for one."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or operator.index(value) < least:
            raise ValueError
        return operator.index(value)

    return ArgumentKind(f"an integer of at least {least}", read, int)


def choice(*names: str) -> ArgumentKind:
    """One of these words."""

    def read(value: Any) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return ArgumentKind(f"{', '.join(names[:-1])} or {names[-1]}", read)


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _read_text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _read_seed(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _read_seconds(value: Any) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise ValueError
    return float(value)


def _read_size(value: Any) -> int | str:
    parse_size(value)
    return value  # messages have it as it was written


def _read_system(value: Any) -> Any:
    if isinstance(value, str) and value:
        return value
    if type(value).__name__ != "TopologyHandle":  # which is heavy to import
        raise TypeError
    return value


FLAG = ArgumentKind("True or False", _read_flag)
TEXT = ArgumentKind("a name", _read_text)
SEED = ArgumentKind("an integer", _read_seed)
SECONDS = ArgumentKind("seconds", _read_seconds, float)
SIZE = ArgumentKind("bytes, or a size such as '2GB' or '512 MiB'", _read_size)
SYSTEM = ArgumentKind("a system: a shipped name (kernbench systems list) or a YAML file", _read_system)
PORTS = ArgumentKind("FIRST:COUNT, as 25900:1024", lambda value: (parse_ports(value), value)[1])
SPEC = ArgumentKind("kernels as kernbench.precompile names them, or a record of them", _read_text)
FILE = ArgumentKind("a file to write", _read_text)


@dataclass(frozen=True)
class MarkArgument:
    """An argument of a mark.

    Attributes:
        optional: whether None is the same as leaving it out.
    """

    name: str
    kind: ArgumentKind
    default: Any = None
    about: str = ""
    optional: bool = False


@dataclass(frozen=True)
class DeclaredMark:
    """A mark.

    Attributes:
        positional: arguments without a name, in their order; they may be named, too.
        many: there may be any number of the last of them.
        simulates: it opens a simulation, and takes what :func:`kernbench.simulate` takes besides.
        denied: of that, what it does not take, with the reason.
        repeats: a test may have several.
    """

    name: str
    about: str
    positional: tuple[MarkArgument, ...] = ()
    named: tuple[MarkArgument, ...] = ()
    many: bool = False
    simulates: bool = False
    denied: tuple[tuple[str, str], ...] = ()
    repeats: bool = False

    @property
    def signature(self) -> str:
        """As Python would show it."""
        words = [_shown(argument) for argument in self.positional]
        if self.many:
            words[-1] = f"*{self.positional[-1].name}"
        elif self.named and not self.positional:
            words.append("*")
        words += [_shown(argument) for argument in self.named]
        if self.simulates:
            words.append("**options of kernbench.simulate")
        return f"{self.name}({', '.join(words)})"


@dataclass(frozen=True)
class DeclaredOption:
    """An option of the command line.

    Attributes:
        bare: what it is where the option stands without a value; None: it has to have one.
        repeats: it may be there several times.
        switch: it has no value.
    """

    flag: str
    about: str
    kind: ArgumentKind = FLAG
    metavar: str | None = None
    default: Any = None
    bare: str | None = None
    repeats: bool = False
    switch: bool = False

    def settings(self) -> dict[str, Any]:
        """For ``addoption``."""
        shown = self.bare if self.bare is not None else self.default
        about = self.about + (f" ({shown})" if shown not in (None, False) else "")
        if self.switch:
            return {"action": "store_true", "help": about}
        made: dict[str, Any] = {"metavar": self.metavar, "type": self._read, "help": about, "default": self.default}
        if self.bare is not None:
            made |= {"nargs": "?", "const": self.bare}
        if self.repeats:
            made |= {"action": "append", "default": []}
        return made

    def _read(self, value: str) -> Any:
        if self.bare is not None and _is_of_tests(value):
            raise argparse.ArgumentTypeError(
                f"{value!r} was taken for {self.metavar}: to run these tests write {self.flag}={self.bare} {value}, or put "
                "the option last"
            )
        try:
            return self.kind.read(self.kind.written(value))
        except (TypeError, ValueError):
            raise argparse.ArgumentTypeError(f"{value!r}: expected {self.kind.takes}") from None


def _is_of_tests(value: str) -> bool:
    """Whether a word of the command line names tests: they are what stands behind an option without a value."""
    if "::" in value or value.endswith(".py"):
        return True
    from kernbench.input_files import exists, is_directory  # not in runs of pytest that have nothing to do with it

    return is_directory(value) or (exists(value) and Path(value).suffix not in (".yaml", ".yml"))


@dataclass(frozen=True)
class DeclaredFixture:
    """A fixture.

    Attributes:
        of_body: it is each rank's own: for the body of a test of the mark world_size, not for other fixtures.
    """

    name: str
    about: str
    of_body: bool = False


_SYSTEM = MarkArgument("system", SYSTEM, None, "whose devices the ranks drive; sip8 if it is not said", optional=True)
_NO_RANKS_LEFT_OUT = "the body of a test runs to its end on every rank"

MARKS = (
    DeclaredMark(
        "world_size",
        "run the test's body on n simulated ranks; several n make a test of each",
        positional=(MarkArgument("n", whole(1), about="ranks; left out where the test has a parameter world_size"),),
        many=True,
        named=(
            _SYSTEM,
            MarkArgument("seed", SEED, 0, "of the ranks' random generators"),
            MarkArgument("nodes", whole(1), None, "repeat the system's node so many times", optional=True),
            MarkArgument("policy", choice("round_robin", "random"), "round_robin", "which rank goes first"),
            MarkArgument("enable_data", FLAG, True, "compute values"),
            MarkArgument("isolation", choice("carrier", "greenlet", "process"), "carrier", "what keeps ranks apart"),
        ),
        simulates=True,
        denied=(
            ("world_size", "the mark's first argument says it"),
            ("ranks", _NO_RANKS_LEFT_OUT),
            ("stop_after_steps", _NO_RANKS_LEFT_OUT),
        ),
    ),
    DeclaredMark(
        "kernbench_gpu",
        "run the test on a simulated GPU; the fixture kernbench_gpu has its context",
        positional=(MarkArgument("system", SYSTEM, "dgx_h100", "whose GPUs there are"),),
        simulates=True,
    ),
    DeclaredMark(
        "resources",
        "grant devices, memory on each, and ports to this test; the fixture test_resources has them",
        named=(
            MarkArgument("devices", whole(0), 0, "how many; 1 where memory is said"),
            MarkArgument("memory", SIZE, None, "on each device; by default --kernbench-memory", optional=True),
            MarkArgument("ports", whole(0), 0, "how many"),
        ),
    ),
    DeclaredMark(
        "requires_cuda",
        "skip without n real GPUs, and grant them to this test",
        positional=(MarkArgument("n", whole(1), 1, "real GPUs"),),
    ),
    DeclaredMark(
        "depends_on",
        "run after the tests of these names, and only if they passed",
        positional=(MarkArgument("names", TEXT, about="of tests of the same file, or node ids"),),
        many=True,
        repeats=True,
    ),
)

FIXTURES = (
    DeclaredFixture("rank", "with world_size: the rank that runs the body", of_body=True),
    DeclaredFixture("world_size", "with world_size: how many ranks there are"),
    DeclaredFixture("kernbench_context", "with world_size: the RuntimeContext, shaped like torch", of_body=True),
    DeclaredFixture("kernbench_gpu", "a simulated GPU for this test: the RuntimeContext behind it"),
    DeclaredFixture("test_resources", "what was granted: devices (indices), memory (bytes), ports, simulated"),
)

OPTIONS = (
    DeclaredOption("--kernbench-devices", "simulated devices where there are no GPUs", whole(0), "N", 8),
    DeclaredOption("--kernbench-device-memory", "memory of a simulated device", SIZE, "SIZE", "16GB"),
    DeclaredOption("--kernbench-memory", "device memory of a test that does not say", SIZE, "SIZE", "5GB"),
    DeclaredOption("--kernbench-ports", "ports to grant", PORTS, "FIRST:COUNT", "25900:1024"),
    DeclaredOption("--kernbench-wait", "longest wait for resources", SECONDS, "SECONDS", 600),
    DeclaredOption(
        "--kernbench-table", "end with a table of the longest tests, their memory and devices", whole(0), "ROWS", 0
    ),
    DeclaredOption(
        "--kernbench-precompile",
        "compile these Triton kernels ahead of the tests; repeatable",
        SPEC,
        "SPEC",
        repeats=True,
    ),
    DeclaredOption(
        "--kernbench-precompile-values", "compile them for kernbench's own engine, not for a GPU", switch=True
    ),
    DeclaredOption(
        "--kernbench-record",
        "write the kernels that the tests launch, to precompile them in the next run",
        FILE,
        "FILE",
    ),
    DeclaredOption(
        "--kernbench-distributed",
        "run torch's distributed test cases on simulated ranks",
        SYSTEM,
        "SYSTEM",
        bare="dgx_h100",
    ),
    DeclaredOption(
        "--kernbench-gpu",
        "give this process, from before its conftests on, simulated GPUs",
        SYSTEM,
        "SYSTEM",
        bare="dgx_h100",
    ),
    DeclaredOption(
        "--kernbench-races",
        "look for accesses that nothing orders; warn: collect them",
        choice("off", "warn", "error"),
        "HOW",
        bare="error",
    ),
    DeclaredOption(
        "--kernbench-hang-after", "fail a test in which no rank has come further for so long", SECONDS, "SECONDS", None
    ),
    DeclaredOption("--kernbench-explore", "run each test that simulates under N more schedules", whole(0), "N", 0),
)


def _shown(argument: MarkArgument) -> str:
    return f"{argument.name}={argument.default!r}"


def described() -> Iterator[str]:
    """The lines of ``python -m kernbench.testing``."""
    for mark in MARKS:
        yield f"@pytest.mark.{mark.signature}"
        yield f"    {mark.about}"
        for argument in (*mark.positional, *mark.named):
            yield f"    {argument.name:12} {argument.kind.takes}: {argument.about}"
        if mark.denied:
            yield f"    not taken of simulate's options: {', '.join(name for name, _ in mark.denied)}"
    yield "fixtures"
    for fixture in FIXTURES:
        yield f"    {fixture.name:18} {fixture.about}"
    yield "options of pytest"
    for option in OPTIONS:
        value = f"[={option.metavar}]" if option.bare is not None else f" {option.metavar}" if option.metavar else ""
        settings = option.settings()
        yield f"    {option.flag}{value}"
        yield f"        {settings['help']}{'' if option.switch else f'; {option.kind.takes}'}"
