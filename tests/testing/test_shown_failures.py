"""What pytest shows of a failure: the test's line and the message, once; the simulator's frames only if they are wanted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.testing.conftest import ROOT

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]

FAILURES = """
    import pytest, torch
    import torch.distributed as dist
    import triton, triton.language as tl

    @triton.jit
    def double(x, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(x + at, 2 * tl.load(x + at))

    @pytest.mark.world_size(2)
    def test_mismatch(rank):
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(2 + rank))

    @pytest.mark.world_size(3)
    def test_deadlock(rank, kernbench_context):
        if rank:
            kernbench_context.distributed.barrier()

    @pytest.mark.world_size(2, isolation="process")
    def test_of_a_process(rank):
        dist.init_process_group("gloo")
        dist.all_reduce(torch.ones(2 + rank))

    def test_kernel(kernbench_gpu):
        double[(1,)](torch.ones(100, device="cuda"), 128)

    @pytest.mark.world_size(3)
    def test_different(rank, kernbench_context):
        try:
            if rank:
                kernbench_context.distributed.barrier()
        except RuntimeError:
            raise (ValueError if rank == 1 else KeyError)("of this rank")

    @pytest.mark.resources(devices=99)
    def test_too_many(): ...
"""


def engine_lines(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if str(ROOT / "kernbench") in line]


def test_a_report_is_there_once_and_without_the_simulators_frames(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(FAILURES)
    names = ("mismatch", "deadlock", "kernel", "different", "too_many")
    result = run_pytest("-p", "no:warnings", "-k", " or ".join(names))
    result.assert_outcomes(failed=4, errors=1)
    assert engine_lines(result) == []
    report = result.stdout.str().partition("short test summary")[0]
    for said, times in (
        ("does not match between ranks 0 and 1", 1),
        ("deadlock: no rank can run", 2),  # of two tests
        ("reads element 100 of x", 1),
        ("99 devices", 1),
    ):
        assert report.count(said) == times
    # notes of an exception, or, before Python 3.11, a section of their own
    for said in (
        "in rank 0 of 2; the same in rank 1",
        "in rank 1 of 3; the same in rank 2",
        "in rank 1 of 3; rank 2 failed too",
    ):
        assert said in report
    result.stdout.fnmatch_lines(
        [
            ">       dist.all_reduce(torch.ones(2 + rank))",
            "E       kernbench.errors.CollectiveMismatchError: *",
            "*.py:13: CollectiveMismatchError",
            ">           kernbench_context.distributed.barrier()",
            "*.py:18: DeadlockError",
            '>       double[[](1,)](torch.ones(100, device="cuda"), 128)',
            "*.py:26: MemoryAccessError",
            "E * kernbench.errors.DeadlockError: *",
            "E * ValueError: of this rank",
            "*Captured rank 2 of 3*",
            "KeyError: 'of this rank'",
        ]
    )
    result.stdout.no_fnmatch_line("DEBUG *")


@pytest.mark.parametrize("option", ["--tb=long", "--full-trace"])
def test_frames_are_there_if_they_are_wanted(pytester: pytest.Pytester, run_pytest: Run, option: str) -> None:
    pytester.makepyfile(FAILURES)
    result = run_pytest("-k", "test_deadlock", option)
    result.assert_outcomes(failed=1)
    assert engine_lines(result)


def test_a_rank_that_is_a_process_shows_its_own_traceback(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(FAILURES)
    result = run_pytest("-k", "test_of_a_process")
    result.assert_outcomes(failed=1)
    report = result.stdout.str().partition("short test summary")[0]
    assert report.count("does not match between ranks 0 and 1") == 1
    result.stdout.fnmatch_lines(
        ["E   *CollectiveMismatchError: *", "*Captured rank's traceback*", "*.py*, line 23, in test_of_a_process"]
    )


def test_records_of_the_level_debug_are_there_if_they_are_wanted(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(
        """
        import logging
        import pytest
        import torch  # pytest listens to loggers that do not propagate, of those there are when the test begins

        @pytest.mark.world_size(1)
        def test_it(rank):
            for name in ("torch.__trace", "mine"):
                logging.getLogger(name).setLevel(logging.DEBUG)
                logging.getLogger(name).propagate = True
                logging.getLogger(name).debug("a record")
            logging.getLogger("torch").warning("a warning")
            assert 0
        """
    )
    shown = run_pytest("-q").stdout
    shown.fnmatch_lines(["DEBUG *mine:*a record", "WARNING *torch:*a warning"])
    shown.no_fnmatch_line("*torch.__trace*a record")
    run_pytest("--log-level", "DEBUG").stdout.fnmatch_lines(["DEBUG *torch.__trace:*a record"])


def test_the_table_is_there_on_request(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.world_size(2)\ndef test_it(rank): ...")
    run_pytest().stdout.no_fnmatch_line("*memory and duration*")
    run_pytest("--kernbench-table", "3").stdout.fnmatch_lines(["*memory and duration*", "*::test_it"])
