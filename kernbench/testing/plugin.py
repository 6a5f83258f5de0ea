"""The pytest plugin: found through the ``pytest11`` entry point of an installed kernbench.

Inert where it is not used: it registers marks, options and fixtures, and imports neither torch nor Triton nor the
simulator until a marked test runs.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kernbench.environment_variables import variables_set
from kernbench.errors import ConfigError
from kernbench.testing.declared import FIXTURES, MARKS, OPTIONS, configured, key_of, key_settings, settings
from kernbench.testing.table import RAISED, ROW, resident_bytes, show_table

if TYPE_CHECKING:
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.testing.gpu import SessionGpu
    from kernbench.testing.kernels import KernelWatch
    from kernbench.testing.pool import Grant, ResourcePool

_GPU: pytest.StashKey[SessionGpu] = pytest.StashKey()
_FOLDER = "kernbench_folder"
"""Of what xdist gives a worker: the folder of the run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """See pytest."""
    group = parser.getgroup("kernbench", "kernbench: simulated ranks, resources")
    for option in OPTIONS:
        group.addoption(option.name, **settings(option))
        parser.addini(key_of(option), **key_settings(option))


def _complete(config: pytest.Config, given: argparse.Namespace) -> None:
    """Options that the command line does not give are what the configuration says, or else their defaults."""
    for option in OPTIONS:
        key = key_of(option)
        if getattr(given, key) is None:
            with _refusing():
                setattr(given, key, configured(option, config.getini(key)))


@contextmanager
def _refusing() -> Iterator[None]:
    """What is wrong with an option ends pytest with a line, as pytest's own options do."""
    try:
        yield
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before the first conftest of the tests is imported: it may ask for GPUs."""
    _complete(early_config, early_config.known_args_namespace)
    system = early_config.known_args_namespace.kernbench_gpu
    if system is not None:
        from kernbench.testing.gpu import SessionGpu

        gpu = early_config.stash[_GPU] = SessionGpu(system)
        early_config.add_cleanup(gpu.close)


def pytest_report_header(config: pytest.Config) -> str | None:
    """See pytest."""
    gpu = config.stash.get(_GPU, None)
    return None if gpu is None else gpu.header()


def pytest_configure(config: pytest.Config) -> None:
    """Marks, the session's plugin, and simulated ranks for torch's test cases before the first of them is imported."""
    _complete(config, config.option)
    for mark in MARKS:
        config.addinivalue_line("markers", f"{mark.signature}: {mark.about}")
    config.pluginmanager.register(_Session(config), "kernbench-session")
    races = config.getoption("--kernbench-races")
    if races is not None:
        config.add_cleanup(_set("KERNBENCH_RACES", races))  # the default of a simulation that is given none
    hang_after = config.getoption("--kernbench-hang-after")
    if hang_after is not None:
        from kernbench.scheduler.standstill import VARIABLE

        config.add_cleanup(_set(VARIABLE, str(hang_after)))
    if config.getoption("--kernbench-distributed"):
        from kernbench.testing.distributed import DistributedTests

        distributed = DistributedTests(config.getoption("--kernbench-distributed"))
        distributed.open()
        config.add_cleanup(distributed.close)


def _set(variable: str, value: str) -> Callable[[], None]:
    """Set a variable of the environment; gives what puts back its value."""
    until = ExitStack()
    until.enter_context(variables_set({variable: value}))
    return until.close


@pytest.hookimpl(tryfirst=True)  # before pytest looks which parameters there may be
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test is there once for each size of its mark, and with --kernbench-explore once for each schedule."""
    if metafunc.definition.get_closest_marker("world_size"):
        from kernbench.testing.checks import PARAMETER, sizes_to_run

        if PARAMETER not in metafunc.fixturenames:
            metafunc.fixturenames.append(PARAMETER)  # it may be parametrised, whether or not the body asks for it
        if sizes := sizes_to_run(metafunc):
            metafunc.parametrize(PARAMETER, sizes, ids=map(str, sizes))
    count = metafunc.config.getoption("--kernbench-explore")
    if count:
        metafunc.fixturenames.append("kernbench_schedule")
        schedules = ["default", *(f"random:{seed}" for seed in range(1, count + 1))]
        metafunc.parametrize("kernbench_schedule", schedules, indirect=True)


class _Session:
    """What the plugin knows of one run, in one process."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        worker = getattr(config, "workerinput", None)
        self.is_worker = worker is not None
        self.workers = int(worker["workercount"]) if worker else 1
        self._directory: Path | None = Path(worker[_FOLDER]) if worker else None
        self._pool: ResourcePool | None = None
        self.rows: list[tuple[str, dict[str, Any]]] = []
        self._kernels: KernelWatch | None = None
        self._ordered = False
        self.simulates: dict[str, bool] = {}
        """Of tests that have run under the default schedule, whether they have opened a simulation."""

    # -- where the processes of this run meet ------------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """A directory that all worker processes of this run share, and no other user can read or write."""
        from kernbench.testing.folders import private_folder, run_folder

        if self._directory is None:
            self._directory = run_folder()
        elif not self._directory.exists():  # of a worker on another machine
            private_folder(self._directory)
        return self._directory

    @property
    def pool(self) -> ResourcePool:
        """The resources of this machine: those of real GPUs are shared by all runs of a user, simulated ones by this."""
        if self._pool is None:
            from kernbench.testing.folders import user_folder
            from kernbench.testing.grants import capacity_of
            from kernbench.testing.pool import ResourcePool

            capacity = capacity_of(self.config)
            directory = self.directory / "pool" if capacity.simulated else user_folder("kernbench-gpus")
            self._pool = ResourcePool(directory, capacity)
        return self._pool

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Controller: name the directory of the run, which it removes in the end."""
        node.workerinput[_FOLDER] = str(self.directory)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        from kernbench.testing.failures import hide_debug_records

        hide_debug_records(self.config)
        if self.config.getoption("--kernbench-precompile") or self.config.getoption("--kernbench-record"):
            from kernbench.testing.kernels import KernelWatch

            self._kernels = KernelWatch(self.config, compiles_ahead=not self.is_worker)
            with _refusing():
                self._kernels.start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Controller: a worker tells what it has compiled."""
        if self._kernels is not None:
            self._kernels.take_from(getattr(node, "workeroutput", {}))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._kernels is not None:
            self._kernels.finish(self.directory, is_worker=self.is_worker)
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        if not self.is_worker and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    # -- collection --------------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Iterator[None]:
        """What is wrong with the marks of the tests that a collector has found is an error of the collector."""
        report: Any = yield
        if report.passed and (problems := [line for item in report.result for line in _problems(item)]):
            report.outcome, report.result = "failed", []
            report.longrepr = "\n".join(dict.fromkeys(problems))
        return report

    # -- order -------------------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)  # before xdist reads the groups that order_items makes
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        for item in items:
            names = getattr(item, "fixturenames", None)
            if names is not None and "kernbench_schedule" in getattr(getattr(item, "callspec", None), "params", ()):
                names.insert(0, "kernbench_schedule")  # no test asks for it
            if (
                names is not None
                and "test_resources" not in names
                and any(item.get_closest_marker(name) for name in ("resources", "requires_cuda"))
            ):
                names.insert(0, "test_resources")  # granted also to a test that does not ask what it got
            if names is not None and "kernbench_gpu" not in names and item.get_closest_marker("kernbench_gpu"):
                names.insert(0, "kernbench_gpu")  # before fixtures that use it
        if any(item.get_closest_marker("depends_on") for item in items):
            from kernbench.testing.order import order_items

            order_items(items)
            self._ordered = True
        return (yield)

    # -- running -----------------------------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        item.stash[_RAN] = False
        if problems := list(_problems(item)):  # of marks that were added since it was collected
            pytest.fail("\n".join(problems), pytrace=False)
        if item.get_closest_marker("depends_on"):
            from kernbench.testing.order import require_dependencies

            require_dependencies(item, self.directory)
        if item.get_closest_marker("requires_cuda"):
            from kernbench.testing.grants import require_cuda

            require_cuda(item)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        if pyfuncitem.get_closest_marker("world_size") is None:
            return None
        from kernbench.testing.checks import ranks_of
        from kernbench.testing.ranks import run_on_ranks

        ranks = ranks_of(pyfuncitem)
        assert ranks is not None
        _require_own(pyfuncitem, ranks.count)
        run_on_ranks(pyfuncitem, ranks)
        pyfuncitem.stash[_RAN] = True
        return True

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        gpu = self.config.stash.get(_GPU, None)
        return (yield) if gpu is None else (yield from gpu.run())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        if not _is_ours(item):
            return (yield)
        item.stash[_BEGIN] = time.perf_counter(), resident_bytes()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Iterator[None]:
        from kernbench.testing.failures import short_traceback

        if call.excinfo is not None and call.when == "call":
            item.stash[RAISED] = call.excinfo.value
        with short_traceback(self.config, call.excinfo):
            report: Any = yield
        if call.when == "call" and report.passed and item.get_closest_marker("world_size") and not item.stash[_RAN]:
            report.outcome = "failed"
            report.longrepr = (
                f"{item.nodeid}: its mark world_size says that ranks run its body, and they have not: another plugin has "
                "run it, or it was replaced"
            )
        if call.when == "teardown":
            item.stash.setdefault(RAISED, None)
            del item.stash[RAISED]
        if call.when == "teardown" and _BEGIN in item.stash:
            begin, before = item.stash[_BEGIN]
            row: dict[str, Any] = {"seconds": time.perf_counter() - begin, "host": resident_bytes() - before}
            added: dict[str, Any] = item.stash.setdefault(ROW, {})
            report.user_properties.append(("kernbench", row | added))
        if self._ordered:
            from kernbench.testing.order import note_outcome

            note_outcome(item, report, self.directory)
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            for name, value in report.user_properties:
                if name == "kernbench" and isinstance(value, dict):
                    self.rows.append((report.nodeid, value))

    def pytest_terminal_summary(self, terminalreporter: object) -> None:
        if self._kernels is not None:
            self._kernels.report(terminalreporter)
        gpu = self.config.stash.get(_GPU, None)
        if gpu is not None:
            gpu.report(terminalreporter)
        shown = self.config.getoption("--kernbench-table")
        if self.rows and shown:
            show_table(self.rows, shown, terminalreporter)


_BEGIN: pytest.StashKey[tuple[float, int]] = pytest.StashKey()
_RAN: pytest.StashKey[bool] = pytest.StashKey()
"""Whether the body of a test has run to its end on every rank of its mark."""


def _problems(item: pytest.Item | pytest.Collector) -> Iterator[str]:
    """What is wrong with the marks of a test; a line each."""
    if isinstance(item, pytest.Item) and any(item.get_closest_marker(mark.name) for mark in MARKS):
        from kernbench.testing.checks import problems_of

        yield from problems_of(item)


def _require_own(item: pytest.Function, count: int) -> None:
    """Fail a test in which other fixtures of these names, or one that changes the size, stand before the plugin's."""
    for fixture in FIXTURES:
        value = item.funcargs.get(fixture.name)
        if fixture.of_body and value is not None and not isinstance(value, _Unset):
            pytest.fail(f"{item.nodeid}: a fixture {fixture.name} hides the one of the mark world_size", pytrace=False)
    seen = item.funcargs.get("world_size", count)
    if seen != count:
        pytest.fail(f"{item.nodeid}: the fixture world_size gives {seen!r}, its mark {count} ranks", pytrace=False)


def _is_ours(item: pytest.Item) -> bool:
    if any(item.get_closest_marker(name) for name in ("world_size", "resources", "requires_cuda")):
        return True
    return "test_resources" in getattr(item, "fixturenames", ())


# -- fixtures --------------------------------------------------------------------------------------------------------


@pytest.fixture
def test_resources(request: pytest.FixtureRequest) -> Iterator[Grant]:
    """What this test was granted: ``devices`` (indices), ``memory`` (bytes on each), ``ports``, ``simulated``."""
    from kernbench.testing.grants import grant_for

    session = request.config.pluginmanager.get_plugin("kernbench-session")
    yield from grant_for(request.node, session)


@pytest.fixture
def kernbench_gpu(request: pytest.FixtureRequest) -> Iterator[RuntimeContext]:
    """A simulated GPU for this test, and the RuntimeContext behind it."""
    from kernbench.testing.gpu import gpu_of

    yield from gpu_of(request, request.config.stash.get(_GPU, None))


@pytest.fixture
def kernbench_schedule(request: pytest.FixtureRequest) -> Iterator[str]:
    """The schedule of the simulations that the test opens, with --kernbench-explore."""
    from kernbench.order import DEFAULT, VARIABLE, Choices

    schedule = str(request.param)
    session: Any = request.config.pluginmanager.get_plugin("kernbench-session")
    simulates = session.simulates
    test = request.node.nodeid.replace(schedule, DEFAULT)
    if not simulates.get(test, True):
        pytest.skip("opens no simulation that follows a schedule")
    made = Choices.made
    with variables_set({VARIABLE: schedule}):
        yield schedule
    if schedule == DEFAULT:
        simulates[test] = Choices.made > made


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> int:
    """The rank that runs the body of a test with the world_size mark."""
    return _outside("rank", request)


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """The number of ranks of a test with the world_size mark."""
    if request.node.get_closest_marker("world_size") is None:
        return _outside("world_size", request)
    from kernbench.testing.checks import ranks_of

    ranks = ranks_of(request.node)
    assert ranks is not None
    return ranks.count


@pytest.fixture
def kernbench_context(request: pytest.FixtureRequest) -> object:
    """The RuntimeContext of a test with the world_size mark."""
    return _outside("kernbench_context", request)


def _outside(name: str, request: pytest.FixtureRequest) -> Any:
    """What stands for something of a rank until the ranks run."""
    if request.node.get_closest_marker("world_size") is None:
        path, line, test = request.node.location
        pytest.fail(
            f"{path}:{(line or 0) + 1}: {test}: the fixture {name} needs @pytest.mark.world_size(N) on the test",
            pytrace=False,
        )
    return _Unset(name)


class _Unset:
    """What a fixture gets that asks for something of a rank: it is made once for all ranks, before there are any."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name}: in the body of the test>"

    def __str__(self) -> str:
        return self._refuse()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_name":  # pytest and the language look for what an object can do
            raise AttributeError(name)
        return self._refuse()

    def _refuse(self, *others: object) -> Any:
        pytest.fail(
            f"{self._name} is each rank's own, and fixtures are made once for all ranks: use it in the body of the test",
            pytrace=False,
        )

    __bool__ = __int__ = __index__ = __float__ = __hash__ = __iter__ = __len__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __getitem__ = __format__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __mod__ = __rmod__ = __neg__ = _refuse
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __call__ = _refuse
