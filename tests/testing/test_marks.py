"""What marks, options and fixtures of the plugin take: what else there is, is an error, and no test passes that has not run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kernbench.errors import ConfigError
from kernbench.runtime_api.multiprocessing import ISOLATIONS
from kernbench.scheduler import make_policy
from kernbench.testing.checks import MarkError, read_mark
from kernbench.testing.declared import MARKS, OPTIONS, described

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]

WRONG = {
    "world_size(0)": "n 0: expected a whole number from 1 on",
    "world_size(True)": "n True: expected a whole number from 1 on",
    "world_size(2.0)": "n 2.0: expected a whole number from 1 on",
    "world_size('4')": "n '4': expected a whole number from 1 on",
    "world_size": "how many ranks?",
    "world_size(2, 2)": "2, 2: a size is there twice",
    "world_size(9)": "world_size 9 does not fit system sip8",
    "world_size(4, sytem='dgx_h100')": "'sytem': there is no such argument (did you mean system?)",
    "world_size(4, system='dgx_h10')": "no shipped system is called 'dgx_h10'; did you mean 'dgx_h100'?",
    "world_size(4, seed='x')": "seed 'x': expected a whole number of at most 40 bits",
    "world_size(4, isolation='thread')": "isolation 'thread': expected 'carrier', 'greenlet', 'process'",
    "world_size(4, policy='fifo')": "policy 'fifo': expected 'round_robin', 'random'",
    "world_size(4, enable_data=1)": "enable_data 1: expected True or False",
    "world_size(4, jitter='much')": "jitter 'much': expected a share, such as 0.02",
    "world_size(4, ranks='auto')": "ranks: it does not take this option",
    "world_size(4, stop_after_steps=1)": "stop_after_steps: it does not take this option",
    "resources(gpus=1)": "'gpus': there is no such argument",
    "resources(device=1)": "'device': there is no such argument (did you mean devices?)",
    "resources(2)": "2 has no place: it takes resources(*, devices=0, memory=None, ports=0)",
    "resources(devices=-1)": "devices -1: expected a whole number from 0 on",
    "resources(memory='2 lots')": "memory '2 lots': expected bytes, or a size",
    "requires_cuda('x')": "n 'x': expected a whole number from 1 on",
    "requires_cuda(1, n=1)": "n is there twice",
    "kernbench_gpu('dgx_a100', sed=1)": "'sed': there is no such argument (did you mean seed?)",
    "kernbench_gpu('nix')": "no shipped system is called 'nix'",
    "depends_on": "on which tests?",
    "depends_on(5)": "names 5: expected a name",
    "depends_on('test_bild')": "'test_bild': this file has no such test (did you mean test_build?)",
    "depends_on('nowhere.py::test_x')": "'nowhere.py::test_x': there is no file nowhere.py",
}
"""Marks, and what is said of them."""


def test_what_a_mark_does_not_take_is_an_error_of_the_collection(pytester: pytest.Pytester, run_pytest: Run) -> None:
    lines = ["import pytest", "def test_build(): pass"]
    expected = []
    for number, (mark, said) in enumerate(WRONG.items()):
        lines += [f"@pytest.mark.{mark}", f"def test_{number}(): raise AssertionError"]
        expected.append((f"test_it.py:{len(lines) - 1}: test_{number}: @pytest.mark.{mark.partition('(')[0]}: ", said))
    pytester.makepyfile(test_it="\n".join(lines))
    result = run_pytest()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    output = {line.partition(": @")[0]: line for line in result.outlines}
    for where, said in expected:
        assert output.get(where.partition(": @")[0], "").startswith(where + said)


BODIES = """
    import pytest, unittest

    @pytest.mark.world_size(2)
    class TestCases(unittest.TestCase):
        def test_once(self): ...

    @pytest.mark.world_size(2)
    class TestBodies:
        async def test_coroutine(self, rank): assert 0

        @pytest.mark.parametrize("rank", [0, 1])
        def test_rank(self, rank): ...

        @pytest.mark.kernbench_gpu
        def test_gpu(self): ...

        @pytest.mark.world_size(4)
        @pytest.mark.world_size(3)
        def test_twice(self): ...

        @pytest.mark.parametrize("world_size", [4, 2])
        def test_other_size(self, world_size): ...

        @pytest.mark.world_size(4, 3)
        @pytest.mark.parametrize("world_size", [4])
        def test_fewer_sizes(self): ...

        @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.depends_on)])
        def test_of_a_parameter(self, n): ...
"""


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "1"), marks=pytest.mark.long)], ids=["alone", "xdist"])
def test_bodies_that_ranks_cannot_run(pytester: pytest.Pytester, run_pytest: Run, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(BODIES)
    result = run_pytest(*workers)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines_random(
        [
            "*.py:5: TestCases.test_once: *a method of unittest.TestCase would run once, and not on ranks*",
            "*test_coroutine: *the body is a coroutine or a generator*",
            "*test_rank?0?: *rank is each rank's own, and cannot be a parameter of the test",
            "*test_gpu: *not together with kernbench_gpu*",
            "*test_twice: *it is there twice, and says two things",
            "*test_other_size?4?: *the test's parameter world_size is 4, the mark says 2: *",
            "*test_fewer_sizes?4?: *the test's parameter world_size is 4, the mark says 4, 3: *",
            "*test_of_a_parameter?1?: @pytest.mark.depends_on: on which tests*",
        ]
    )
    result.stdout.no_fnmatch_line("*test_other_size?2?*")  # which agrees


def test_several_sizes_are_several_tests(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def half(world_size):
            return world_size // 2

        @pytest.mark.world_size(2, 4)
        def test_sum(rank, half, kernbench_context):
            x = kernbench_context.full((1,), float(rank))
            kernbench_context.distributed.all_reduce(x)
            assert x.tolist() == [half * (2 * half - 1)]
            print("of", kernbench_context.distributed.get_world_size())

        @pytest.mark.world_size(system="dgx_h100", nodes=2)
        @pytest.mark.parametrize("world_size", [3, 16])
        def test_parameter(rank, kernbench_context):
            assert kernbench_context.topology.system.name == "dgx_h100"
            if rank == 0:
                print("of", kernbench_context.distributed.get_world_size())

        @pytest.mark.world_size(n=3)
        @pytest.mark.parametrize("world_size", [3])
        def test_both(world_size):
            assert world_size == 3

        @pytest.mark.world_size(2)
        class TestClass:
            def test_of_class(self, world_size):
                assert world_size == 2

            @pytest.mark.world_size(3, memory="weak")
            def test_closer(self, world_size):
                assert world_size == 3
        """
    )
    result = run_pytest("-rA")
    result.assert_outcomes(passed=7)
    for line in ("*PASSED*::test_sum[[]2]", "*PASSED*::test_sum[[]4]", "*PASSED*::test_parameter[[]16]"):
        result.stdout.fnmatch_lines([line])
    printed = [line for line in result.outlines if " of " in line and line.startswith("[rank")]
    bodies = [(rank, 2) for rank in range(2)] + [(rank, 4) for rank in range(4)] + [(0, 3), (0, 16)]
    assert sorted(printed) == sorted(f"[rank {rank}] of {size}" for rank, size in bodies)


ENDS = """
    import functools, sys
    import pytest

    on_two = pytest.mark.world_size(2{isolation})

    @on_two
    def test_one_skips(rank):
        if rank == 1: pytest.skip("no reason")

    @on_two
    def test_all_skip(rank):
        pytest.skip("no reason")

    @on_two
    def test_one_is_known(rank):
        if rank == 1: pytest.xfail("known")

    @on_two
    def test_exits(rank):
        sys.exit(0)

    @on_two
    def test_interrupts(rank):
        if rank == 1: raise KeyboardInterrupt

    def hidden(body):
        return lambda rank: body(rank)

    async def coroutine(rank):
        assert 0

    @on_two
    def test_coroutine(rank):
        return coroutine(rank)

    @on_two
    def test_generator(rank):
        return (1 / 0 for _ in "x")

    @on_two
    def test_passes(rank): ...
"""


@pytest.mark.parametrize("isolation", ["carrier", "greenlet", "process"])
def test_a_test_whose_body_has_not_run_on_every_rank_does_not_pass(
    pytester: pytest.Pytester, run_pytest: Run, isolation: str
) -> None:
    pytester.makepyfile(ENDS.replace("{isolation}", f", isolation={isolation!r}"))
    result = run_pytest("-rA")
    result.assert_outcomes(passed=1, failed=5, skipped=1, xfailed=1)
    failed = "*the body did not run to its end on all 2 ranks: "
    result.stdout.fnmatch_lines(
        [
            f"{failed}rank 1 skipped ('no reason') and the other ranks did not: *",
            f"{failed}ranks 0, 1 left it by SystemExit(0)",
            f"{failed}rank 1 left it by KeyboardInterrupt()",
            f"{failed}in ranks 0, 1 it returned a coroutine, which nothing runs",
            f"{failed}in ranks 0, 1 it returned a generator, which nothing runs",
        ]
    )
    result.stdout.fnmatch_lines_random(["PASSED *::test_passes", "SKIPPED*no reason", "XFAIL*known"])


def test_others_that_run_a_body_do_not_make_it_pass(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makeconftest(
        """
        import pytest

        def pytest_collection_modifyitems(items):
            by_name = {item.name: item for item in items}
            by_name["test_run_by_others"].runtest = lambda: None
            by_name["test_added_later"].add_marker(pytest.mark.world_size(2, sytem="x"))
            by_name["test_two_later"].add_marker(pytest.mark.world_size(2, 4))

        @pytest.fixture
        def mine(rank):
            return rank + 1
        """
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.world_size(2)
        def test_run_by_others(rank): ...

        def test_added_later(): ...

        def test_two_later(): ...

        def test_no_mark(rank): ...

        def test_no_mark_either(kernbench_context): ...

        @pytest.mark.world_size(2)
        def test_fixture_of_a_rank(mine): ...

        class TestOwn:
            @pytest.fixture
            def rank(self):
                return 5

            @pytest.fixture
            def world_size(self):
                return 3

            def test_own(self, rank):
                assert rank == 5

            @pytest.mark.world_size(2)
            def test_hidden(self, rank): ...

            @pytest.mark.world_size(2)
            def test_other_size(self, world_size): ...
        """
    )
    result = run_pytest("-rA")
    result.assert_outcomes(passed=1, failed=3, errors=5)
    result.stdout.fnmatch_lines_random(
        [
            "PASSED*::test_own",
            "*test_run_by_others: its mark world_size says that ranks run its body, and they have not*",
            "*test_added_later: @pytest.mark.world_size: 'sytem': there is no such argument (did you mean system?)*",
            "*test_two_later: *2, 4: a mark that is added to a collected test has one size",
            "*test_no_mark: the fixture rank needs @pytest.mark.world_size(N) on the test",
            "*test_no_mark_either: the fixture kernbench_context needs @pytest.mark.world_size(N) on the test",
            "rank is each rank's own, and fixtures are made once for all ranks: use it in the body of the test",
            "*test_hidden: a fixture rank hides the one of the mark world_size",
            "*test_other_size: the fixture world_size gives 3, its mark 2 ranks",
        ]
    )


# -- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--kernbench-distributed", "test_it.py"), "--kernbench-distributed=dgx_h100 test_it.py"),
        (("--kernbench-gpu", "test_it.py::test_it"), "--kernbench-gpu=dgx_h100 test_it.py::test_it"),
        (("--kernbench-races", "."), "--kernbench-races=error ."),
        (("--kernbench-races", "all"), "'all': expected 'off', 'warn', 'error'"),
        (("--kernbench-distributed", "dgx_x100"), "--kernbench-distributed dgx_x100: no shipped system is called"),
        (("--kernbench-devices=-1",), "--kernbench-devices: '-1': expected a whole number from 0 on"),
        (("--kernbench-memory", "much"), "--kernbench-memory: 'much': expected bytes, or a size"),
        (("--kernbench-ports", "1:x"), "--kernbench-ports: '1:x': expected FIRST:COUNT"),
        (("--kernbench-wait", "nan"), "--kernbench-wait: 'nan': expected seconds"),
        (("--kernbench-explore", "-3"), "--kernbench-explore: '-3': expected a whole number"),
        (("--kernbench-hang-after", "soon"), "--kernbench-hang-after: 'soon': expected seconds"),
    ],
)
def test_options_that_are_wrong(
    pytester: pytest.Pytester, run_pytest: Run, options: tuple[str, ...], said: str
) -> None:
    pytester.makepyfile(test_it="def test_it(): ...")
    result = run_pytest(*options)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert any(said in line for line in result.errlines)
    assert not any("Traceback" in line or "INTERNALERROR" in line for line in (*result.errlines, *result.outlines))


def test_an_option_without_its_value_stands_before_tests(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(test_it="import os\ndef test_it(): assert os.environ['KERNBENCH_RACES'] == 'error'")
    run_pytest("--kernbench-races=error", "test_it.py").assert_outcomes(passed=1)
    run_pytest("test_it.py", "--kernbench-races").assert_outcomes(passed=1)


# -- the table -------------------------------------------------------------------------------------------------------


def test_choices_are_those_of_the_simulation() -> None:
    takes = {
        argument.name: argument.kind for argument in next(each for each in MARKS if each.name == "world_size").named
    }
    for name in ISOLATIONS:
        assert takes["isolation"].read(name) == name
    assert takes["isolation"].choices == ISOLATIONS
    for name in takes["policy"].choices:
        make_policy(takes["policy"].read(name), 0)
    with pytest.raises(ConfigError):
        make_policy("fifo", 0)


def test_pytest_and_the_page_show_the_table(pytester: pytest.Pytester, run_pytest: Run) -> None:
    lines = list(described())
    marks = run_pytest("--markers").stdout.str()
    for mark in MARKS:
        assert f"@pytest.mark.{mark.signature}: {mark.about}" in marks
        assert f"@pytest.mark.{mark.signature}" in lines
    for option in OPTIONS:
        assert any(line.strip().startswith(option.name) for line in lines)


def test_defaults_are_what_is_read_without_a_mark() -> None:
    assert read_mark("resources", None) == {"devices": 0, "memory": None, "ports": 0}
    assert read_mark("requires_cuda", pytest.mark.requires_cuda().mark) == {"n": 1}
    assert read_mark("world_size", pytest.mark.world_size(2, 4, seed=3).mark)["n"] == (2, 4)
    with pytest.raises(MarkError, match="n is there twice"):
        read_mark("requires_cuda", pytest.mark.requires_cuda(1, n=2).mark)


@pytest.mark.long  # seconds
def test_a_test_that_stands_still_fails(pytester: pytest.Pytester, run_pytest: Run) -> None:
    """And the next one runs."""
    pytester.makepyfile(
        test_it="""
        import threading
        import pytest

        @pytest.mark.world_size(2)
        def test_hangs(rank):
            while rank == 1:
                sum(range(100))

        @pytest.mark.world_size(2)
        def test_waits(rank):
            lock = threading.Lock()
            assert lock.acquire()
            while rank == 1 and not lock.acquire():
                pass

        @pytest.mark.world_size(2)
        def test_goes_on(rank):
            assert rank < 2
        """
    )
    result = run_pytest("--kernbench-hang-after=1")
    result.assert_outcomes(failed=2, passed=1)
    assert any("NoProgressError" in line for line in result.outlines)
    result.stdout.fnmatch_lines(
        [">*while rank == 1 and not lock.acquire():", "*NoProgressError: no rank has come further*"]
    )
    assert not any("target.switch()" in line for line in result.outlines)
