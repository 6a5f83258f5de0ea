"""``kernbench run``: what torchrun does, without processes."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from torch.distributed import distributed_c10d
from torch.testing._internal.distributed import multi_threaded_pg

import kernbench
from kernbench.cli import app
from kernbench.commands.run import command
from kernbench.commands.run_program import print_summary
from kernbench.errors import ConfigError
from kernbench.torch_backend.gpu.device.visible_devices import NodeGpus
from kernbench.torch_backend.process_groups import late_joining

Run = Callable[..., Result]

PRINTS_ITSELF = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
         "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS", "ROLE_NAME")
print(json.dumps([__name__, sys.argv[1:], {name: os.environ[name] for name in names}]))
"""

REDUCES = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
x = torch.randn(64, 64, device="cuda")
dist.all_reduce(x @ x)
dist.destroy_process_group()
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """``run(source, *options, args=())``: ``kernbench run options script args``."""

    def run(source: str, *options: str, args: tuple[str, ...] = ()) -> Result:
        script = tmp_path / "program.py"
        script.write_text(source)
        return CliRunner().invoke(command, [*options, str(script), *args])

    return run


def told(result: Result) -> dict[int, list[object]]:
    """What each rank has printed, as JSON."""
    lines = [line.partition("] ") for line in result.stdout.splitlines() if line.startswith("[rank")]
    return {int(head.removeprefix("[rank")): json.loads(rest) for head, _, rest in lines}


def test_environment_and_arguments(run: Run) -> None:
    result = run(PRINTS_ITSELF, "--nproc-per-node", "2", "--nnodes", "2", args=("--lr", "0.1", "--nnodes"))
    assert result.exit_code == 0, result.output
    for rank, (name, args, variables) in told(result).items():
        assert (name, args) == ("__main__", ["--lr", "0.1", "--nnodes"])
        assert variables == {
            "RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(rank // 2), "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
            "TORCHELASTIC_RUN_ID": "kernbench", "TORCHELASTIC_MAX_RESTARTS": "0", "ROLE_NAME": "default",
        }  # fmt: skip
    assert sorted(told(result)) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        (("--standalone", "--nnodes=1", "--nproc_per_node=2"), {}),
        (
            ("--nnodes=1:1", "--nproc-per-node=2", "--rdzv-backend=c10d", "--rdzv_endpoint=host:29400", "--rdzv-id=7"),
            {"TORCHELASTIC_RUN_ID": "7"},
        ),
        (
            ("--nproc-per-node=2", "--node_rank", "0", "--master_addr", "10.0.0.1", "--master-port", "1234"),
            {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"},
        ),
        (
            ("--nproc-per-node=2", "--max-restarts=3", "--role", "trainer", "--log_dir", "logs", "--tee=3"),
            {"TORCHELASTIC_MAX_RESTARTS": "3", "ROLE_NAME": "trainer"},
        ),
        (("--nproc-per-node=gpu", "--system", "dgx_h100"), {"WORLD_SIZE": "8"}),
        (("--nproc", "2", "--max=3", "--standalone", "--nnode=1", "--sys", "sip8"), {"TORCHELASTIC_MAX_RESTARTS": "3"}),
    ],
)
def test_torchruns_options(run: Run, options: tuple[str, ...], variables: dict[str, str]) -> None:
    result = run(PRINTS_ITSELF, *options)
    assert result.exit_code == 0, result.output
    ranks = told(result)
    assert len(ranks) == int(variables.get("WORLD_SIZE", 2))
    for _, _, found in ranks.values():
        assert isinstance(found, dict)
        assert variables.items() <= found.items()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--nproc-per-node", "0"), "at least 1"),
        (("--nproc-per-node", "many"), "expected a number"),
        (("--nproc-per-node", "cpu"), "depend on this machine"),
        (("--nnodes", "two"), "MIN:MAX"),
        (("--rdzv", "x"), "No such option"),  # of several
        (("--nprocs", "2"), "No such option '--nprocs'. Did you mean '--nproc-per-node'?"),
        (("--num_nodes", "2"), "No such option '--num_nodes'. Did you mean '--nnodes'?"),
    ],
)
def test_bad_options(run: Run, options: tuple[str, ...], message: str) -> None:
    result = run(PRINTS_ITSELF, *options)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("pass", 0),
        ("sys.exit(0)", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('broken')", 1),
        ("os._exit if False else sys.exit('why')", 1),
    ],
)
def test_exit_codes(run: Run, ending: str, code: int) -> None:
    result = run(f"import os, sys\nif os.environ['RANK'] == '1':\n    {ending}\n", "--nproc-per-node", "2")
    assert result.exit_code == code, result.output
    if code:
        assert "kernbench: failed: rank 1" in result.output
    if "broken" in ending:
        assert "program.py" in result.output
        assert "ValueError: broken" in result.output


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_a_program_that_explains_itself_and_exits_has_no_traceback(run: Run, isolation: str) -> None:
    """As argparse does: its message, its exit code, and one line that names the rank."""
    result = run(
        "import argparse\nparser = argparse.ArgumentParser()\n"
        "parser.add_argument('--size', required=True)\nparser.parse_args()\n",
        "--nproc-per-node", "2", "--isolation", isolation,
    )  # fmt: skip
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert re.search(
        r"^kernbench: failed: rank 0 \(exit code 2( at .*program\.py:4 in <module>)?\)$", result.output, re.MULTILINE
    )
    failed = "import sys, os\nif os.environ['RANK'] == '1':\n    sys.exit(2)\nraise ValueError('broken')\n"
    mixed = run(failed, "--nproc-per-node", "2", "--isolation", isolation)
    assert mixed.exit_code == 1
    assert "ValueError: broken" in mixed.output


def test_a_rank_that_fails_takes_the_others_with_it(run: Run) -> None:
    result = run(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "if dist.get_rank() == 0:\n    raise RuntimeError('first')\ndist.barrier()\n",
        "--nproc-per-node", "4",
    )  # fmt: skip
    assert result.exit_code == 1
    assert "kernbench: failed: rank 0 (RuntimeError)\n" in result.output


def test_modules_and_what_lies_beside_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "launched_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "state.py").write_text("SEEN = []\n")
    (package / "__main__.py").write_text(
        "import json, os, sys\nimport torch.distributed as dist\nfrom . import state\ndist.init_process_group('gloo')\n"
        "state.SEEN.append(os.environ['RANK'])\ndist.barrier()\nprint(json.dumps([__package__, state.SEEN, sys.argv[1:]]))\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    result = CliRunner().invoke(command, ["--nproc-per-node", "2", "-m", "launched_package", "x"])
    assert result.exit_code == 0, result.output
    assert told(result) == {rank: ["launched_package", [str(rank)], ["x"]] for rank in range(2)}


def test_a_package_is_imported_by_the_ranks_that_run_a_module_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their command line, as ``python -m`` does it; a submodule is bound in its package for all of them."""
    package = tmp_path / "launched_by_parts"
    package.mkdir()
    (package / "__init__.py").write_text("import os, sys\nSEEN = [os.environ.get('RANK'), sys.argv[1:]]\n")
    (package / "other.py").write_text("NAME = 'other'\n")
    (package / "run.py").write_text(
        "import json, torch, launched_by_parts, launched_by_parts.other\n"
        "import torch.distributed.checkpoint.format_utils\n"
        "print(json.dumps([launched_by_parts.SEEN[1], launched_by_parts.other.NAME, "
        "torch.distributed.checkpoint.format_utils.__name__]))\n"
    )
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, ["--nproc-per-node", "2", "-m", "launched_by_parts.run", "x"])
    assert result.exit_code == 0, result.output
    assert told(result) == {rank: [["x"], "other", "torch.distributed.checkpoint.format_utils"] for rank in range(2)}


@pytest.mark.parametrize(
    "name", ["launched_nowhere", "json.nowhere", "json.decoder.nowhere", "sys", "", ".", ".json", "json..tool"]
)
def test_a_module_that_cannot_be_run(name: str) -> None:
    result = CliRunner().invoke(command, ["--nproc-per-node", "2", "-m", name])
    assert isinstance(result.exception, ConfigError)
    assert f"no module named {name!r}" in str(result.exception)


def test_a_script_that_spawns_itself(run: Run) -> None:
    result = run(
        "import sys, torch.multiprocessing as mp, torch.distributed as dist\n"
        "def main(rank, world):\n"
        "    dist.init_process_group('gloo', init_method='tcp://127.0.0.1:29511', rank=rank, world_size=world)\n"
        "    print(json.dumps([dist.get_world_size(), sys.argv[1:]]))\n"
        "import json\n"
        "if __name__ == '__main__':\n    mp.spawn(main, args=(3,), nprocs=3)\n",
        args=("a",),
    )
    assert result.exit_code == 0, result.output
    assert told(result) == {rank: [3, ["a"]] for rank in range(3)}


def test_a_script_has_its_own_future(run: Run) -> None:
    """Not that of the file which compiles it: annotations are objects unless the script says otherwise."""
    source = "import json\ndef f(x: int): ...\nprint(json.dumps(type(f.__annotations__['x']).__name__))\n"
    assert told(run(source, "--nproc-per-node", "1")) == {0: "type"}
    assert told(run("from __future__ import annotations\n" + source, "--nproc-per-node", "1")) == {0: "str"}


def test_a_script_that_spawns_itself_by_the_longer_name(run: Run) -> None:
    source = "import json, torch.multiprocessing as mp\ndef main(rank):\n    print(json.dumps(rank))\n"
    assert told(run(source + "mp.start_processes(main, nprocs=2, start_method='fork')")) == {0: 0, 1: 1}
    nested = run(source + "mp.spawn(main, nprocs=2)", "--nproc-per-node", "2")
    assert nested.exit_code == 1
    assert "is run without --nproc-per-node" in nested.output


def test_processes_of_the_programs_own_are_named(run: Run) -> None:
    """A DataLoader's workers are not."""
    source = (
        "import multiprocessing, torch\nfrom torch.utils.data import DataLoader\n"
        "def work():\n    pass\n"
        "print(len([*DataLoader([1.0, 2.0], num_workers=1, multiprocessing_context='fork')]))\n{}"
        "process = multiprocessing.get_context('fork').Process(target=work)\nprocess.start()\nprocess.join()\n"
    )
    said = "not simulated: processes that the program starts itself, running work"
    for options in ((), ("--nproc-per-node", "1")):
        result = run(source.format(""), *options)
        assert result.exit_code == 0, result.output
        assert said in result.stdout
        assert said not in run(source.format("raise SystemExit\n"), *options).stdout


@pytest.mark.long  # seconds
@pytest.mark.parametrize("times", [1, 2])
def test_a_fork_that_the_system_refuses(run: Run, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once: what was reserved is collected, and it works. Twice: the error says what to do."""
    fork, refused = os.fork, []

    def refuse() -> int:
        if len(refused) < times:
            refused.append(1)
            raise OSError(errno.ENOMEM, "Cannot allocate memory")
        return fork()

    monkeypatch.setattr(os, "fork", refuse)
    source = (
        "from torch.utils.data import DataLoader\n"
        "print('loaded', len([*DataLoader([1.0, 2.0], num_workers=1, multiprocessing_context='fork')]))\n"
    )
    result = run(source, "--nproc-per-node", "1")
    assert len(refused) == times
    assert ("loaded 2" in result.output) is (times == 1)
    assert ("give DataLoader num_workers=0" in result.output) is (times == 2)


def test_remote_procedure_calls_are_refused(run: Run) -> None:
    source = (
        "from torch.distributed import rpc\nrpc.init_rpc('worker', rank=0, world_size=1)\n"
        "print('set up')\nrpc.rpc_sync('worker', print)"
    )
    result = run(source, "--nproc-per-node", "1")
    assert result.exit_code == 1
    assert "set up" in result.output
    assert "rpc_sync('worker', print): remote procedure calls are not simulated" in result.output


def test_a_failure_is_shown_at_once_and_once(run: Run) -> None:
    """Before what the others say while they are unwound, and without the simulator's frames."""
    result = run(
        "import os, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "try:\n    assert os.environ['RANK'] != '2', 'the cause'\n    dist.barrier()\n"
        "finally:\n    print('unwound')\n",
        "--nproc-per-node", "4",
    )  # fmt: skip
    assert result.exit_code == 1
    assert result.output.count("the cause") == 2  # the line of the program, and the error
    head, _, tail = result.output.partition("AssertionError: the cause")
    assert head.count("unwound") == 1  # the rank's own
    assert tail.count("unwound") == 2
    assert "launcher.py" not in result.output
    assert "-- Process 2 terminated with the following error:\nTraceback" in head
    assert "kernbench: failed: rank 2 (AssertionError)" in tail


def test_a_report_of_several_ranks_is_shown_once(run: Run) -> None:
    result = run(
        "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "dist.all_reduce(torch.ones(dist.get_rank() + 1))\n",
        "--nproc-per-node", "3",
    )  # fmt: skip
    assert result.exit_code == 1
    assert result.output.count("No data has moved") == 1
    assert re.search(
        r"^-- Process 0: CollectiveMismatchError, in the report of process 1 above; at .*program.py:3 in <module>$",
        result.output, re.MULTILINE,
    )  # fmt: skip
    assert "kernbench: failed: rank 0 (CollectiveMismatchError), rank 1 (" in result.output


def test_no_table_of_zeros_after_a_failure(run: Run) -> None:
    result = run("raise ValueError('at once')", "--nproc-per-node", "2")
    assert result.exit_code == 1
    assert "modelled on" not in result.output
    assert "modelled on" in run("pass", "--nproc-per-node", "2").output


def test_a_script_that_fails_alone(run: Run) -> None:
    result = run("def broken():\n    raise ValueError('why')\nbroken()\n")
    assert result.exit_code == 1
    assert re.fullmatch(
        r'Traceback \(most recent call last\):\n  File ".*program.py", line 3, in <module>\n(.|\n)*ValueError: why\n'
        r"kernbench: failed: ValueError\n",
        result.output,
    ), result.output


def test_the_summary_says_what_a_newcomer_would_wonder_at(run: Run) -> None:
    source = (
        "import logging, torch\nlogging.basicConfig(format='%(asctime)s', force=True)\nlogging.error('x')\n"
        "torch.ones(1, device='{}')"
    )
    dated = "log lines are dated by virtual time, which begins at 2020-01-01 00:00:00 UTC"
    generic = "no GPU: on this system `cuda` is a generic accelerator"
    for device, system, expected in (("cuda", "sip8", True), ("cpu", "sip8", False), ("cuda", "dgx_h100", False)):
        out = run(source.format(device), "--nproc-per-node", "1", "--system", system).stdout
        assert dated in out.splitlines()
        assert (generic in out) is expected


@pytest.mark.parametrize(
    ("line", "suggested"),
    [(["rnu", "x.py"], "Did you mean 'run'?"), (["x.py"], "Did you mean 'run x.py'?"), (["zzz"], "")],
)
def test_a_mistyped_command(line: list[str], suggested: str) -> None:
    result = CliRunner().invoke(app, line)
    assert result.exit_code == 2
    assert f"No such command {line[0]!r}. {suggested}".strip() in result.output


def test_the_help_says_what_the_default_system_is() -> None:
    text = " ".join(CliRunner().invoke(command, ["--help"]).output.split())
    assert "[default: sip8, generic accelerators]" in text


def test_prefix_and_summary_can_be_left_out(run: Run) -> None:
    result = run("print('hello')", "--nproc-per-node", "2", "--no-prefix", "--no-summary")
    assert result.stdout == "hello\nhello\n"


def test_summary(run: Run) -> None:
    result = run(REDUCES, "--nproc-per-node", "2", "--system", "dgx_h100")
    lines = result.stdout.splitlines()
    first = lines.index("modelled on dgx_h100, 2 ranks") + 2
    ranks = [line.split() for line in lines[first : first + 2]]
    assert [rank[0] for rank in ranks] == ["0", "1"]
    for rank in ranks:
        assert sum(float(share.rstrip("%")) for share in rank[3:]) == pytest.approx(100, abs=0.3)
    assert "all_reduce: 2 calls, 32,768 bytes over all ranks" in lines


def test_the_summary_says_what_the_log_has_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    for limit, dropped in ((4, True), (None, False)):
        with kernbench.simulate(log_limit=limit) as ctx:
            ctx.multiprocessing.spawn(
                lambda rank: [ctx.distributed.all_reduce(ctx.ones(4)) for _ in range(4)], nprocs=2
            )
            print_summary(ctx)
        assert ("were dropped: the log keeps the last 4" in capsys.readouterr().out.splitlines()[-1]) is dropped


def test_the_seed_is_the_runs(run: Run) -> None:
    source = "import json, torch\nprint(json.dumps(torch.rand(2).tolist()))"
    drawn = [told(run(source, "--nproc-per-node", "2", "--seed", seed)) for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][0] != drawn[0][1]


def test_trace(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "trace.json"
    assert run(REDUCES, "--nproc-per-node", "2", "--trace", str(target)).exit_code == 0
    events = json.loads(target.read_text())["traceEvents"]
    names = {event["name"] for event in events if event.get("ph") == "X"}
    assert any("mm" in name for name in names)
    assert any("all_reduce" in name for name in names)


@pytest.mark.long  # seconds
@pytest.mark.parametrize("hangs", [False, True])
def test_flight_recorder_files_are_read_by_torchs_tool(run: Run, tmp_path: Path, hangs: bool) -> None:
    source = (
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "for _ in range(3):\n    dist.all_reduce(torch.ones(4, device='cuda'))\n"
        + ("if dist.get_rank() == 0:\n    dist.all_reduce(torch.ones(4, device='cuda'))\n" if hangs else "")
    )
    target = tmp_path / "recorder"
    result = run(source, "--nproc-per-node", "2", "--flight-recorder", str(target))
    assert result.exit_code == int(hangs)
    first = pickle.loads((target / "kernbench_rank_0").read_bytes())
    assert [entry["collective_seq_id"] for entry in first["entries"]] == [0, 1, 2, 3][: 3 + hangs]
    tool = subprocess.run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(target), "-p", "kernbench_rank_"],
        capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    said = tool.stdout + tool.stderr
    assert tool.returncode == 0, said
    found = "Not all ranks joining collective, sequence number: 3" in said
    assert found == hangs, said
    if hangs:
        assert "collective: nccl:all_reduce" in said
        assert "missing ranks: {1}" in said
        assert "program.py:6" in said


def test_a_trace_is_written_as_its_name_says(run: Run, tmp_path: Path) -> None:
    picture = tmp_path / "trace.svg"
    assert run(REDUCES, "--nproc-per-node", "2", "--trace", str(picture)).exit_code == 0
    assert "<svg" in picture.read_text()
    refused = run(REDUCES, "--nproc-per-node", "2", "--trace", str(tmp_path / "trace.txt"))
    assert isinstance(refused.exception, ConfigError)
    assert ".svg" in str(refused.exception)
    assert "modelled on" not in refused.output  # said before the program ran


def test_python_dash_m_is_the_command(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text("import os; print(os.environ['RANK'])")
    line = [sys.executable, "-m", "kernbench", "run", "--nproc-per-node", "2", "--no-prefix", str(script)]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=250)
    assert sorted(done.stdout.split()[:2]) == ["0", "1"]


AT_THE_END = """
import atexit, sys, weakref
import torch, torch.distributed as dist

dist.init_process_group("nccl")

@atexit.register
def last():
    print("destroyed", dist.is_initialized())

atexit.register(dist.destroy_process_group)
atexit.register(print, "not this")
atexit.unregister(print)

@atexit.register
def broken():
    raise ValueError("shown, and the others go on")

@atexit.register
def first(scale=2):
    x = torch.full((2,), float(scale), device="cuda")
    dist.all_reduce(x)
    print("sum", x[0].item())

print("end")
"""


@pytest.mark.parametrize(("options", "total", "ranks"), [((), 2.0, 1), (("--nproc-per-node", "2"), 4.0, 2)])
@pytest.mark.parametrize("end", ["", "sys.exit(0)"])
def test_what_a_program_leaves_to_its_end_is_done_while_it_is_a_rank(
    run: Run, options: tuple[str, ...], total: float, ranks: int, end: str
) -> None:
    result = run(AT_THE_END + end, "--no-prefix", "--no-summary", "--system", "dgx_h100", *options)
    assert result.exit_code == 0, result.output
    said = [line for line in result.output.splitlines() if line.startswith(("end", "sum", "destroyed", "not"))]
    assert said.count("end") == said.count(f"sum {total}") == said.count("destroyed False") == ranks
    assert len(said) == 3 * ranks
    assert said.index("end") < said.index(f"sum {total}") < said.index("destroyed False")
    assert result.output.count("ValueError: shown, and the others go on") == ranks


def test_a_program_that_fails_leaves_nothing_to_its_end(run: Run) -> None:
    result = run(AT_THE_END + "raise KeyError('broken')", "--no-prefix", "--nproc-per-node", "2")
    assert result.exit_code == 1
    assert "sum" not in result.output
    assert "KeyError: 'broken'" in result.output


@pytest.mark.parametrize("fails", [False, True])
def test_finalizers_of_a_rank_are_called_at_its_end(run: Run, fails: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """While it has its GPU and its modules, and the newest first; of a rank that fails, never."""
    source = (
        "import json, sys, weakref\nimport torch\nimport torch.distributed as dist\n"
        "class Engine: pass\nengines = [Engine() for _ in range(3)]\n"
        "def end(number):\n    torch.accelerator.synchronize()\n"
        "    print(json.dumps([number, dist.get_rank(), sys.modules['__main__'].__dict__ is globals()]))\n"
        "dist.init_process_group('nccl')\n"
        "kept = [weakref.finalize(each, end, number) for number, each in enumerate(engines)]\n"
        "kept[1].atexit = False\nkept[2].detach()\nweakref.finalize(engines[2], end, 3)\n"
        f"if {fails}: raise ValueError('why')\n"
    )
    result = run(source, "--system", "dgx_h100", "--nproc-per-node", "2", "--no-summary")
    lines = [line for line in result.stdout.splitlines() if line.startswith("[rank")]
    said = sorted(lines, key=lambda line: line[:7])
    ranks = () if fails else (0, 1)
    assert said == [f"[rank{rank}] [{number}, {rank}, true]" for rank in ranks for number in (3, 0)]
    assert (result.exit_code != 0) is fails


@pytest.mark.parametrize(("status", "code"), [("None", 0), ("0", 0), ("3", 3), ("'enough'", 1)])
def test_a_script_that_ends_itself_has_its_summary(run: Run, status: str, code: int) -> None:
    result = run(f"import sys, torch\ntorch.ones(4, device='cuda')\nsys.exit({status})\n", "--system", "dgx_h100")
    assert result.exit_code == code
    assert "modelled on dgx_h100, 1 rank" in result.output
    assert ("enough" in result.stderr) == (code == 1)


THREADS = """
import threading, torch, torch.distributed as dist
from torch.testing._internal.distributed import multi_threaded_pg as groups

def body(rank):
    dist.init_process_group("threaded", rank=rank, world_size=2, store=store)
    x = torch.full((2,), rank + 1.0, device="cuda")
    dist.all_reduce(x)
    found.append(x.tolist())
    dist.destroy_process_group()

found, store = [], dist.HashStore()
torch._C._distributed_c10d._set_thread_isolation_mode(True)
groups._install_threaded_pg()
try:
    threads = [threading.Thread(target=body, args=(rank,)) for rank in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
finally:
    groups._uninstall_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(False)
print("found", found)
"""


def test_threads_are_ranks_of_torchs_own_groups_of_threads(run: Run) -> None:
    result = run(THREADS)
    assert "found [[3.0, 3.0], [3.0, 3.0]]" in result.output
    assert "threads that are ranks in a group of torch's own: their collectives take no time" in result.output


def test_threads_that_are_ranks_do_not_make_their_process_one(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[tuple[int, int]] = []
    made: list[dict[str, object]] = []

    def stock(backend: str | None = None, rank: int = -1, world_size: int = -1) -> None:
        made.append({"backend": backend, "rank": rank, "world_size": world_size})

    waiting = late_joining._Waiting(lambda rank, size: joined.append((rank, size)), lambda: None, NodeGpus(8), None)
    init = waiting.before(stock)
    with monkeypatch.context() as patch:
        patch.setattr(distributed_c10d, "_world", multi_threaded_pg.ThreadLocalWorld())
        init("threaded", rank=1, world_size=2)
    assert joined == []
    init("gloo", rank=1, world_size=2)
    assert joined == [(1, 2)]
    assert [each["backend"] for each in made] == ["threaded", "gloo"]
