"""What the plugin takes: its marks, options and fixtures, in one table.

pytest's registration, the checks of :mod:`kernbench.testing.checks` and ``python -m kernbench.testing``, which the
documentation shows, are made from it. It imports nothing heavy, since pytest reads it in every run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kernbench.errors import ConfigError
from kernbench.options import Option, SimulateOptions, kinds, options_of
from kernbench.options.kinds import ValueKind
from kernbench.testing.sizes import parse_ports, parse_size


def _read_size(value: Any) -> int | str:
    parse_size(value)
    return value  # messages have it as it was written


SIZE = ValueKind("bytes, or a size such as '2GB' or '512 MiB'", _read_size)
SYSTEM = ValueKind("a system: a shipped name (kernbench systems list) or a YAML file", kinds.NAME.read)
PORTS = ValueKind("FIRST:COUNT, as 25900:1024", lambda value: (parse_ports(value), value)[1])
SPEC = ValueKind("kernels as kernbench.precompile names them, or a record of them", kinds.NAME.read)
FILE = ValueKind("a file to write", kinds.NAME.read)


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
    positional: tuple[Option, ...] = ()
    named: tuple[Option, ...] = ()
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


def settings(row: Option) -> dict[str, object]:
    """Of an option of pytest, for ``addoption``. None is its value where it is not given."""
    about = _help(row)
    if row.is_switch:
        return {"action": "store_true", "help": about, "default": None}
    made: dict[str, Any] = {"metavar": row.metavar, "type": partial(_written, row), "help": about}
    if row.alone is not None:
        made |= {"nargs": "?", "const": row.alone}
    if row.many:
        made |= {"action": "append"}
    return made


def key_of(row: Option) -> str:
    """What an option of pytest is called in its configuration, and among its parsed arguments."""
    return row.name.lstrip("-").replace("-", "_")


def key_settings(row: Option) -> dict[str, Any]:
    """Of an option of pytest, for ``addini``. None is its value where it is not given."""
    kind = "bool" if row.is_switch else "linelist" if row.many else "string"
    return {"type": kind, "help": _help(row), "default": None}


def configured(row: Option, value: Any) -> Any:
    """What an option is that the command line does not say, and for which the configuration has ``value``, or None.

    Raises:
        ConfigError: it cannot be that.
    """
    if value is None:
        return [] if row.many else row.default
    if row.is_switch:
        return value
    try:
        read = [row.kind.read(row.kind.written(each)) for each in (value if row.many else [value])]
    except (TypeError, ValueError):
        raise ConfigError(f"{key_of(row)} = {value!r}: expected {row.kind.takes}") from None
    return read if row.many else read[0]


def _help(row: Option) -> str:
    shown = row.alone if row.alone is not None else row.default
    return row.about + (f" ({shown})" if shown not in (None, False) else "")


def _written(row: Option, value: str) -> object:
    if row.alone is not None and _is_of_tests(value):
        raise argparse.ArgumentTypeError(
            f"{value!r} was taken for {row.metavar}: to run these tests write {row.name}={row.alone} {value}, or put "
            "the option last"
        )
    try:
        return row.kind.read(row.kind.written(value))
    except (TypeError, ValueError):
        raise argparse.ArgumentTypeError(f"{value!r}: expected {row.kind.takes}") from None


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


OF_SIMULATE = {row.name: row for row in options_of(SimulateOptions)}
"""By name, what :func:`kernbench.simulate` takes."""

_NO_RANKS_LEFT_OUT = "the body of a test runs to its end on every rank"

MARKS = (
    DeclaredMark(
        "world_size",
        "run the test's body on n simulated ranks; several n make a test of each",
        positional=(Option("n", kinds.whole(1), about="ranks; left out where the test has a parameter world_size"),),
        many=True,
        named=(
            *(row for row in OF_SIMULATE.values() if row.mark),
            Option("isolation", kinds.choice("carrier", "greenlet", "process"), "carrier", "what keeps ranks apart"),
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
        positional=(Option("system", kinds.SYSTEM, "dgx_h100", "whose GPUs there are"),),
        simulates=True,
    ),
    DeclaredMark(
        "resources",
        "grant devices, memory on each, and ports to this test; the fixture test_resources has them",
        named=(
            Option("devices", kinds.whole(0), 0, "how many; 1 where memory is said"),
            Option("memory", SIZE, None, "on each device; by default --kernbench-memory"),
            Option("ports", kinds.whole(0), 0, "how many"),
        ),
    ),
    DeclaredMark(
        "requires_cuda",
        "skip without n real GPUs, and grant them to this test",
        positional=(Option("n", kinds.whole(1), 1, "real GPUs"),),
    ),
    DeclaredMark(
        "depends_on",
        "run after the tests of these names, and only if they passed",
        positional=(Option("names", kinds.NAME, about="of tests of the same file, or node ids"),),
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
    Option("--kernbench-devices", kinds.whole(0), 8, "simulated devices where there are no GPUs", metavar="N"),
    Option("--kernbench-device-memory", SIZE, "16GB", "memory of a simulated device", metavar="SIZE"),
    Option("--kernbench-memory", SIZE, "5GB", "device memory of a test that does not say", metavar="SIZE"),
    Option("--kernbench-ports", PORTS, "25900:1024", "ports to grant", metavar="FIRST:COUNT"),
    Option("--kernbench-wait", kinds.SECONDS, 600, "longest wait for resources", metavar="SECONDS"),
    Option("--kernbench-table", kinds.whole(0), 0, "end with a table of the longest tests, their memory and devices",
           metavar="ROWS"),
    Option("--kernbench-precompile", SPEC, None, "compile these Triton kernels ahead of the tests; repeatable", metavar="SPEC",
           many=True),
    Option("--kernbench-precompile-values", kinds.FLAG, False, "compile them for kernbench's own engine, not for a GPU"),
    Option("--kernbench-record", FILE, None, "write the kernels that the tests launch, to precompile them in the next run",
           metavar="FILE"),
    Option("--kernbench-distributed", SYSTEM, None, "run torch's distributed test cases on simulated ranks",
           metavar="SYSTEM", alone="dgx_h100"),
    Option("--kernbench-gpu", SYSTEM, None, "give this process, from before its conftests on, simulated GPUs",
           metavar="SYSTEM", alone="dgx_h100"),
    Option("--kernbench-races", kinds.choice("off", "warn", "error"), None, "look for accesses that nothing orders; warn: "
           "collect them", metavar="HOW", alone="error"),
    Option("--kernbench-hang-after", kinds.SECONDS, None, "fail a test in which no rank has come further for so long",
           metavar="SECONDS"),
    Option("--kernbench-explore", kinds.whole(0), 0, "run each test that simulates under N more schedules", metavar="N"),
)  # fmt: skip


def _shown(argument: Option) -> str:
    return f"{argument.name}={argument.default!r}"


def described() -> Iterator[str]:
    """The lines of ``python -m kernbench.testing``."""
    for mark in MARKS:
        yield f"@pytest.mark.{mark.signature}"
        yield f"    {mark.about}"
        for argument in (*mark.positional, *mark.named):
            yield f"    {argument.name:12} {argument.kind.takes}: {argument.about.partition('. ')[0].rstrip('.')}"
        if mark.denied:
            yield f"    not taken of simulate's options: {', '.join(name for name, _ in mark.denied)}"
    yield "fixtures"
    for fixture in FIXTURES:
        yield f"    {fixture.name:18} {fixture.about}"
    yield "options of pytest, and keys of its configuration: kernbench_devices = 4"
    for row in OPTIONS:
        value = f"[={row.metavar}]" if row.alone is not None else f" {row.metavar}" if row.metavar else ""
        yield f"    {row.name}{value}"
        yield f"        {settings(row)['help']}{'' if row.is_switch else f'; {row.kind.takes}'}"
