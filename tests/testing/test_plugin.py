"""The pytest plugin: bodies on simulated ranks, resources across workers, order, table."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest_plugins = ["pytester"]

Run = Callable[..., pytest.RunResult]


def test_it_is_inert_for_others(pytester: pytest.Pytester, fresh_pytest: Run) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing_heavy_is_imported():
            heavy = {"torch", "triton", "numpy", "greenlet", "pydantic", "networkx", "filelock"}
            assert not heavy & set(sys.modules)
            own = {name.split(".")[1] for name in sys.modules if name.startswith("kernbench.")}
            assert own <= {"defaults", "environment_variables", "errors", "options", "own_files", "testing", "version"}
        """
    )
    result = fresh_pytest("--setup-show")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*kernbench: memory*")
    result.stdout.no_fnmatch_line("*test_resources*")


def test_options_are_keys_of_the_configuration(pytester: pytest.Pytester, run_pytest: Run) -> None:
    """Each is; what the command line says counts more."""
    pytester.makeini(
        """
        [pytest]
        kernbench_devices = 3
        kernbench_device_memory = 2GB
        kernbench_wait = 1.5
        kernbench_precompile_values = true
        """
    )
    pytester.makepyfile(
        """
        from kernbench.testing.declared import OPTIONS, key_of

        def test_them(pytestconfig):
            told = {key_of(row): pytestconfig.getoption(row.name) for row in OPTIONS}
            given = {"kernbench_devices": 4, "kernbench_device_memory": "2GB", "kernbench_wait": 1.5,
                     "kernbench_precompile_values": True}
            assert told == {key_of(row): [] if row.many else row.default for row in OPTIONS} | given
            assert {key_of(row) for row in OPTIONS if pytestconfig.getini(key_of(row)) is not None} == set(given)
        """
    )
    result = run_pytest("--kernbench-devices", "4")
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("key", "option", "said"),
    [
        ("kernbench_wait = soon", "", "kernbench_wait = 'soon': expected seconds"),
        ("kernbench_precompile =\n    nosuch:one\n    nosuch:two", "", "no module named nosuch*"),
        ("kernbench_gpu = nosuch", "", "*nosuch*"),
        ("", "--kernbench-gpu=nosuch", "*nosuch*"),
        ("", "--kernbench-distributed=nosuch", "*nosuch*"),
        ("", "--kernbench-precompile=nosuch:one", "no module named nosuch*"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    pytester: pytest.Pytester, run_pytest: Run, key: str, option: str, said: str
) -> None:
    pytester.makeini(f"[pytest]\n{key}\n")
    pytester.makepyfile("def test_it(): pass")
    result = run_pytest(*filter(None, [option]))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{said}"])
    result.stderr.no_fnmatch_line("*Traceback*")


def test_bodies_run_on_ranks(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def start():
            return 10

        @pytest.mark.world_size(4)
        @pytest.mark.parametrize("isolation", ["x", "y"])
        def test_all_reduce(rank, world_size, kernbench_context, start, isolation):
            x = kernbench_context.full((4,), float(start + rank))
            kernbench_context.distributed.all_reduce(x)
            assert x.tolist() == [4 * start + 6.0] * 4
            print("sum", world_size)
            print("unended", end="")

        @pytest.mark.world_size(3)
        def test_one_fails(rank):
            print("about to")
            assert rank != 1, "rank one is wrong"

        @pytest.mark.world_size(3)
        def test_all_fail(rank):
            raise ValueError(f"from {rank}")

        @pytest.mark.world_size(2)
        def test_deadlock(rank, kernbench_context):
            if rank == 0:
                kernbench_context.distributed.barrier()

        @pytest.mark.world_size(2)
        def test_skips(rank):
            pytest.skip("not today")

        @pytest.mark.world_size(2, system="dgx_h100", isolation="greenlet")
        def test_other_system(kernbench_context):
            assert kernbench_context.topology.system.name == "dgx_h100"
        """
    )
    result = run_pytest("-rA", "--kernbench-table", "20")
    result.assert_outcomes(passed=3, failed=3, skipped=1)
    result.stdout.fnmatch_lines_random(
        [
            "[[]rank 0] sum 4",
            "[[]rank 3] unended",
            "*assert rank != 1, *",
            "*rank one is wrong",
            "raised in rank 1 of 3",
            "[[]rank 1] about to",
            "raised in rank 0 of 3",
            "*DeadlockError*",
            "*kernbench: memory and duration*",
            "*test_all_reduce*",
        ]
    )


RESOURCES = """
    import socket
    import pytest
    import kernbench.testing

    kept = []

    @pytest.mark.resources(devices=2, memory="1GB", ports=2)
    def test_grant(test_resources):
        assert len(set(test_resources.devices)) == len(set(test_resources.ports)) == 2
        assert (test_resources.memory, test_resources.simulated) == (10**9, True)

    @pytest.mark.resources(ports=1)
    def test_port_left_open(test_resources):
        kept.append(socket.create_server(("127.0.0.1", test_resources.ports[0])))

    @pytest.mark.resources(ports=1)
    def test_port_closed(test_resources):
        socket.create_server(("127.0.0.1", test_resources.ports[0])).close()

    @pytest.mark.world_size(2)
    @kernbench.testing.requires_devices(2, memory="3MB")
    def test_too_much_memory(rank, kernbench_context):
        kernbench_context.zeros(2 * 10**6, dtype="f16")

    @pytest.mark.world_size(2)
    @kernbench.testing.requires_devices(2, memory="3MB")
    def test_memory_left(rank, kernbench_context):
        kept.append(kernbench_context.zeros(1000))

    @pytest.mark.world_size(2)
    @kernbench.testing.requires_devices(2, memory="3MB")
    def test_memory_kept_to(rank, kernbench_context):
        x = kernbench_context.zeros(1000)
        kernbench_context.distributed.all_reduce(x)

    @pytest.mark.resources(devices=9)
    def test_more_than_there_is():
        pass
"""


def test_resources_are_granted_and_checked(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(RESOURCES)
    result = run_pytest("--kernbench-ports", "26900:16")
    result.assert_outcomes(passed=4, failed=2, errors=2)
    result.stdout.fnmatch_lines_random(
        [
            "*test_port_left_open did not keep to what it was granted: port 269?? is still open",
            "*OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.*",
            "*test_memory_left did not release * bytes of device 0, * bytes of device 1*",
            "*9 devices with 5 GB each asked for, but the devices have 16 GB*",
        ]
    )


def test_a_grant_of_memory_keeps_the_nodes(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(
        """
        import kernbench.testing, pytest
        from kernbench.topology import resolve_topology

        def shape(ctx):
            return ctx.topology.nodes, ctx.topology.device.hbm.size

        @pytest.mark.world_size(2, system="dgx_h100", nodes=3)
        @kernbench.testing.requires_devices(2, memory="3MB")
        def test_name(rank, kernbench_context):
            assert shape(kernbench_context) == (3, 3_000_000)

        @pytest.mark.world_size(2, system=resolve_topology("dgx_h100"), nodes=3)
        @kernbench.testing.requires_devices(2, memory="3MB")
        def test_handle(rank, kernbench_context):
            assert shape(kernbench_context) == (3, 3_000_000)

        @pytest.mark.world_size(2, system=resolve_topology("dgx_h100", nodes=3))
        @kernbench.testing.requires_devices(2, memory="3MB")
        def test_handle_of_nodes(rank, kernbench_context):
            assert shape(kernbench_context) == (3, 3_000_000)

        @pytest.mark.world_size(2, system=resolve_topology("dgx_h100"), nodes=3)
        def test_handle_without_a_grant(rank, kernbench_context):
            assert shape(kernbench_context)[0] == 3
        """
    )
    run_pytest().assert_outcomes(passed=4)


def test_requires_cuda_skips_without_gpus(pytester: pytest.Pytester, run_pytest: Run) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this machine has GPUs")
    pytester.makepyfile(
        """
        import kernbench.testing

        @kernbench.testing.requires_cuda(2)
        def test_gpu(test_resources):
            raise AssertionError
        """
    )
    result = run_pytest("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs 2 CUDA devices, there are 0"])


def test_workers_share(pytester: pytest.Pytester, run_pytest: Run) -> None:
    """One device, so that two workers take turns; the holder of a device is noted in a file."""
    pytester.makepyfile(
        """
        import os
        import time
        import pytest

        @pytest.mark.parametrize("n", range(6))
        @pytest.mark.resources(devices=1, memory="5GB", ports=1)
        def test_alone(test_resources, n, request):
            path = request.config.rootpath / f"device-{test_resources.devices[0]}"
            handle = os.open(path, os.O_CREAT | os.O_EXCL)  # nobody else has it
            time.sleep(0.05)
            os.close(handle)
            path.unlink()

        def test_killed(request):
            flag = request.config.rootpath / "killed"
            if not flag.exists():
                flag.touch()
                os.kill(os.getpid(), 9)
        """
    )
    memory = ("--kernbench-devices", "2", "--kernbench-device-memory", "5GB")
    result = run_pytest("-n", "2", *memory, "--kernbench-table", "20")
    result.assert_outcomes(passed=6, failed=1)
    result.stdout.fnmatch_lines(["*kernbench: memory and duration*", "*test_alone*"])


def test_too_many_workers(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.resources(devices=1)
        def test_one():
            pass
        """
    )
    result = run_pytest("-n", "2", "--kernbench-devices", "1", "--kernbench-device-memory", "8GB")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*2 workers are too many: 1 devices of 8 GB hold 1 processes of 5GB each. Use -n 1,*"])


@pytest.mark.parametrize("workers", [("-n", "0"), ("-n", "2")], ids=["alone", "xdist"])
def test_order_respects_dependencies(pytester: pytest.Pytester, run_pytest: Run, workers: tuple[str, ...]) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture
        def ran(request):
            return request.config.rootpath / "ran"

        @pytest.mark.depends_on("test_build", "test_fetch")
        def test_use(ran):
            assert ran.read_text() == "fetch build"

        @pytest.mark.depends_on("test_broken")
        def test_after_broken():
            raise AssertionError("not reached")

        @pytest.mark.depends_on("test_fetch")
        def test_build(ran):
            ran.write_text(ran.read_text() + " build")

        def test_broken():
            assert 0

        def test_fetch(ran):
            ran.write_text("fetch")
        """
    )
    result = run_pytest("-rs", *workers)
    result.assert_outcomes(passed=3, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*depends on *test_broken*, which failed in call"])


def test_circles_are_refused(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.depends_on("test_b")
        def test_a(): ...

        @pytest.mark.depends_on("test_a")
        def test_b(): ...
        """
    )
    result = run_pytest()
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*depend on each other in a circle: *test_a -> *test_b -> *test_a"])


def test_ranks_may_be_processes(pytester, run_pytest):
    pytester.makepyfile(
        """
        import pytest, torch, torch.distributed as dist

        @pytest.mark.world_size(2, isolation="process")
        def test_sum(rank, world_size):
            dist.init_process_group("gloo")
            total = torch.full((2,), float(rank))
            dist.all_reduce(total)
            assert total.tolist() == [1.0, 1.0]

        @pytest.mark.world_size(2, isolation="process")
        def test_fails(rank):
            assert rank == 0, "on purpose"

        @pytest.mark.world_size(2, isolation="process")
        def test_is_skipped(rank):
            pytest.skip("not here")
        """
    )
    result = run_pytest("-rs")
    result.assert_outcomes(passed=1, failed=1, skipped=1)
    result.stdout.fnmatch_lines(["*on purpose", "*in test_fails*", "SKIPPED*not here"])


def test_tests_that_simulate_run_under_schedules(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_nothing_to_explore():
            pass

        @pytest.mark.world_size(2, isolation="greenlet")
        def test_who_comes_first_depends(rank, kernbench_context):
            store = SEEN.setdefault(kernbench_context, [])
            store.append(rank)
            kernbench_context.distributed.barrier()
            assert store == [0, 1]

        SEEN = {}
        """
    )
    result = run_pytest("--kernbench-explore", "6", "-v")
    outcomes = result.parseoutcomes()
    assert outcomes["skipped"] == 6
    assert outcomes["failed"] >= 1
    assert sum(outcomes.get(name, 0) for name in ("passed", "failed")) == 8
    result.stdout.fnmatch_lines(["*test_who_comes_first_depends?default?*PASSED*"])
    result.stdout.fnmatch_lines(["FAILED *test_who_comes_first_depends?random:*"])
