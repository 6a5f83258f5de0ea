"""``kernbench doctor``: whether this installation can do what it should, and what to do where it cannot."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from importlib import import_module, metadata
from pathlib import Path

import click

import kernbench
from kernbench.environment_variables import is_on
from kernbench.input_files import exists, is_directory
from kernbench.plugins import discovery
from kernbench.plugins.command import PluginCommand
from kernbench.plugins.manager import default_manager
from kernbench.plugins.problems import reason
from kernbench.scheduler import host_effects
from kernbench.suggestions import nearest
from kernbench.version import TESTED, installed, is_beyond_tested, numbers

OK, NOTE, FAIL = "ok", "note", "FAIL"

VARIABLES = (
    "KERNBENCH_TRITON", "KERNBENCH_TRITON_TARGET", "KERNBENCH_TRITON_NATIVE", discovery.VARIABLE,
    host_effects.VARIABLE, "KERNBENCH_UPDATE_DOCS",
)  # fmt: skip
"""Environment variables that mean something."""

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?")
_CONDITION = re.compile(r"\s*(>=|<=|==|!=|<|>|~=)\s*([0-9][^,\s]*)\s*")


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        status: ``"ok"``, ``"note"`` (something optional is missing or odd) or ``"FAIL"``.
        subject: what was checked.
        found: what there is.
        advice: what to do, where something is to be done.
    """

    status: str
    subject: str
    found: str
    advice: str = ""


@click.command(name="doctor", cls=PluginCommand)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> None:
    """Check this installation: versions, the Triton driver, the cache, plugins; run a small program. Exits with 1 if
    something is broken, and says what to do."""
    findings = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            _show(finding)
    failed = sum(finding.status == FAIL for finding in findings)
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        click.echo("\nall is well" if not failed else f"\n{failed} of {len(findings)} checks failed")
    sys.exit(1 if failed else 0)


def _show(finding: Finding) -> None:
    click.echo(f"{finding.status:5} {finding.subject:18} {finding.found}")
    for line in finding.advice.splitlines():
        click.echo(f"{'':5} {'':18} -> {line}")


def examine() -> Iterator[Finding]:
    """Every check, one after the other. A check that itself fails is a finding."""
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python, _processes, _installation, _requirements, _imports, _driver, _cache, _configuration, _environment, _plugins,
        _program, _kernel,
    )  # fmt: skip
    for check in checks:
        try:
            yield from check()
        except Exception as error:
            from kernbench.advice import advice_for

            yield Finding(FAIL, check.__name__.strip("_"), reason(error), advice_for(error) or "")


# -- what is installed -------------------------------------------------------------------------------------------------


def _python() -> Iterator[Finding]:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    oldest, newest = TESTED["Python"][0], TESTED["Python"][-1]
    if sys.version_info < numbers(oldest):
        yield Finding(FAIL, "Python", text, f"install Python {oldest} or newer")
    elif is_beyond_tested("Python", platform.python_version()):
        yield Finding(
            NOTE, "Python", text, f"newer than the newest that is tested ({newest}): if something fails, use that one"
        )
    elif platform.system() != "Linux":
        yield Finding(NOTE, "Python", text, "Triton exists for Linux only: everything but its kernels works here")
    else:
        yield Finding(OK, "Python", text)


def _processes() -> Iterator[Finding]:
    missing = [name for name in ("fork", "memfd_create", "pidfd_open") if not hasattr(os, name)]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if missing:
        yield Finding(
            NOTE, "processes", f"the system has no {', '.join(missing)}",
            "isolation='process' needs Linux 5.3 or later: ranks are threads here",
        )  # fmt: skip
    else:
        yield Finding(OK, "processes", f"ranks may be processes (--isolation process), on {cores} cores")


def _installation() -> Iterator[Finding]:
    place = str(Path(kernbench.__file__).parent)
    try:
        version = metadata.version("kernbench")
    except metadata.PackageNotFoundError:
        yield Finding(
            NOTE, "kernbench", f"{kernbench.__version__} in {place}, not installed as a distribution",
            "its entry points (Triton driver, pytest plugin) are missing: pip install it (-e for a source tree)",
        )  # fmt: skip
        return
    if version != kernbench.__version__:
        yield Finding(
            NOTE, "kernbench", f"{kernbench.__version__} in {place}, but {version} is installed",
            "a source tree hides the installed version: leave its folder, or unset PYTHONPATH",
        )  # fmt: skip
    else:
        yield Finding(OK, "kernbench", f"{version} in {place}")


def _requirements() -> Iterator[Finding]:
    try:
        lines = metadata.requires("kernbench") or []
    except metadata.PackageNotFoundError:
        return
    missing: dict[str, list[str]] = {}
    for line in lines:
        name, wanted, marker = parse_requirement(line)
        extra = re.search(r"extra\s*==\s*['\"](\w+)['\"]", marker)
        if "Linux" in marker and platform.system() != "Linux":
            continue
        have = installed(name)
        if extra is None:
            install = f"pip install '{name}{wanted}'"
            if not have:
                yield Finding(FAIL, name, f"is not installed, needed: {wanted or 'any version'}", install)
            elif not satisfies(have, wanted):
                yield Finding(FAIL, name, f"{have}, needed: {wanted}", install)
            elif name in TESTED and is_beyond_tested(name, have):
                yield Finding(
                    NOTE, name, f"{have}, newer than the newest that is tested: {TESTED[name][-1]}", _beyond(name)
                )
            else:
                yield Finding(OK, name, have)
        elif extra[1] != "dev" and (not have or not satisfies(have, wanted)):
            missing.setdefault(extra[1], []).append(f"{name}{wanted}")
    for extra_name, names in missing.items():
        yield Finding(
            NOTE, f"extra {extra_name}", f"without {', '.join(names)}", f"if you need it: pip install 'kernbench[{extra_name}]'"
        )  # fmt: skip


def _beyond(name: str) -> str:
    """What to do with a release that is newer than the tested ones."""
    if name != "torch":
        return f"if something fails: pip install '{name}=={TESTED[name][-1]}'"
    from kernbench.torch_backend import relies_on

    return (
        relies_on.warning()
        or "all that is relied on in it is as it must be (python -m kernbench.torch_backend.relies_on)"
    )


def parse_requirement(line: str) -> tuple[str, str, str]:
    """``"torch<2.14,>=2.13; marker"`` as name, versions and marker."""
    match = _REQUIREMENT.fullmatch(line.strip())
    return (match[1], match[2].strip(), match[3] or "") if match else (line, "", "")


def satisfies(version: str, wanted: str) -> bool:
    """Whether a version meets conditions such as ``>=2.13,<2.14``, by its numbers alone."""
    have = numbers(version)
    for condition in wanted.split(","):
        match = _CONDITION.fullmatch(condition)
        if match is None:
            continue
        sign, limit = match[1], numbers(match[2])
        length = max(len(have), len(limit))
        mine, other = (each + (0,) * (length - len(each)) for each in (have, limit))
        good = {
            ">=": mine >= other, "<=": mine <= other, "==": mine == other, "!=": mine != other, "<": mine < other,
            ">": mine > other, "~=": mine >= other and have[: len(limit) - 1] == limit[:-1],
        }[sign]  # fmt: skip
        if not good:
            return False
    return True


def _imports() -> Iterator[Finding]:
    for name, advice in (
        ("greenlet", "pip install --force-reinstall greenlet (it has compiled code for one version of Python)"),
        ("torch", "pip install --force-reinstall torch"),
        ("triton", "pip install --force-reinstall triton"),
    ):
        if name == "triton" and platform.system() != "Linux":
            continue
        try:
            import_module(name)
        except Exception as error:
            yield Finding(FAIL, f"import {name}", reason(error), advice)


# -- how it is set up --------------------------------------------------------------------------------------------------


def _driver() -> Iterator[Finding]:
    if platform.system() != "Linux":
        return
    points = [point for point in metadata.entry_points(group="triton.backends") if point.name == "kernbench"]
    if not points:
        yield Finding(
            NOTE, "Triton driver", "no entry point triton.backends/kernbench",
            "KERNBENCH_TRITON=1 has no effect on plain Python processes: pip install kernbench again.\n"
            "Inside a simulation kernels run all the same",
        )  # fmt: skip
        return
    points[0].load()
    on = is_on("KERNBENCH_TRITON")
    yield Finding(OK, "Triton driver", f"entry point found; KERNBENCH_TRITON is {'1: in use' if on else 'not set'}")


def _takes_files(folder: Path) -> bool:
    """Whether a folder can be made there: where everything is permitted (root), the file system may refuse all the same."""
    try:
        with tempfile.TemporaryDirectory(dir=folder):
            return True
    except OSError:
        return False


def _cache() -> Iterator[Finding]:
    given = os.environ.get("TRITON_CACHE_DIR")
    home = os.environ.get("TRITON_HOME", str(Path.home()))
    folder = Path(given) if given else Path(home) / ".triton" / "cache"
    existing = folder
    while not exists(existing) and existing != existing.parent:
        existing = existing.parent
    if not _takes_files(existing):
        yield Finding(
            FAIL, "Triton cache", f"{folder} cannot be written", "set TRITON_CACHE_DIR to a folder that you may write to"
        )  # fmt: skip
        return
    entries = sum(1 for _ in folder.iterdir()) if is_directory(folder) else 0
    yield Finding(OK, "Triton cache", f"{folder}, {entries} entries")


def _configuration() -> Iterator[Finding]:
    from kernbench.ccl.config import FILE_NAME, load_ccl_config
    from kernbench.topology import added_systems, shipped_systems

    added = added_systems()
    more = f", and {', '.join(added)} of others" if added else ""
    yield Finding(OK, "systems", f"{len(shipped_systems())} shipped{more}")
    own = f", {FILE_NAME} of this folder over them" if Path(FILE_NAME).is_file() else ""
    yield Finding(OK, "algorithms", f"{len(load_ccl_config().algorithms)} in {FILE_NAME}{own}")


def _environment() -> Iterator[Finding]:
    for name in sorted(os.environ):
        if name.startswith("KERNBENCH_") and name not in VARIABLES:
            close = nearest(name, VARIABLES)
            advice = f"did you mean {close}?" if close else f"there are {', '.join(VARIABLES)}"
            yield Finding(NOTE, name, "means nothing to kernbench", advice)


def _plugins() -> Iterator[Finding]:
    manager = default_manager()
    for name in manager.names:
        hooks = [hook.removeprefix("kernbench_") for hook in manager.hooks_of(name)]
        yield Finding(OK, f"plugin {name}", f"{manager.source(name)}; {', '.join(hooks)}")
    for name, why in manager.broken.items():
        yield Finding(
            FAIL, f"plugin {name}", f"cannot be loaded: {why}", f"mend or uninstall it, or set {discovery.VARIABLE}=no:{name}"
        )  # fmt: skip
    if not manager.names and not manager.broken:
        yield Finding(OK, "plugins", "none")


# -- whether it works --------------------------------------------------------------------------------------------------


def _program() -> Iterator[Finding]:
    results: list[list[float]] = []
    with redirect_stdout(sys.stderr), kernbench.simulate("sip8") as ctx:  # what plugins print is no part of the report

        def worker(rank: int) -> None:
            x = ctx.full((4,), float(rank))
            ctx.distributed.all_reduce(x)
            results.append(x.tolist())

        ctx.multiprocessing.spawn(worker, nprocs=8)
        seconds = ctx.now()
    if results == [[28.0] * 4] * 8:
        yield Finding(OK, "a program", f"an all-reduce of 8 ranks takes {seconds * 1e6:.1f} us on sip8")
    else:
        yield Finding(FAIL, "a program", f"an all-reduce of 8 ranks gave {results}", "please report this")


def _kernel() -> Iterator[Finding]:
    try:
        import triton
        import triton.language as tl
    except ImportError:
        return

    @triton.jit
    def double(x, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.arange(0, BLOCK)
        tl.store(x + at, tl.load(x + at) * 2)

    with redirect_stdout(sys.stderr), kernbench.simulate("sip8") as ctx:
        values = ctx.arange(16)
        ctx.launch(double, 1, values, BLOCK=16)
        right = values.tolist() == [2 * number for number in range(16)]
    if right:
        yield Finding(OK, "a Triton kernel", "compiled and run")
    else:
        yield Finding(FAIL, "a Triton kernel", "gave wrong values", "please report this")
