"""The modules of a program are executed by every rank, whatever they keep where."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from kernbench.commands.run import command

Run = Callable[..., Result]

STATE = """
import os
RANK = int(os.environ["RANK"])  # computed at import

class Registry:
    values = {}
    current = None
"""

USES_STATE = """
import json, os, torch.distributed as dist
from {package} import state
from {package}.state import Registry
dist.init_process_group("gloo")
rank = dist.get_rank()
Registry.values["rank"] = rank
Registry.current = rank
state.late = rank
dist.barrier()
print(json.dumps([state.RANK, Registry.values, Registry.current, state.late]))
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """``run(files, *options)``: ``kernbench run`` on two ranks, in a folder that has these files.

    ``stay`` are the modules that are to be there afterwards, until the test ends, ``code`` is the exit code.
    """
    monkeypatch.chdir(tmp_path)

    def run(files: Mapping[str, str], *options: str, stay: Collection[str] = (), code: int = 0) -> Result:
        for name, source in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        before = {*sys.modules}, [*sys.path]
        result = CliRunner().invoke(command, ["--nproc-per-node", "2", *options])
        left = {name for name in {*sys.modules} - before[0] if name.startswith("rm_")}
        for name in left:
            del sys.modules[name]
        assert (left, sys.path) == ({*stay}, before[1]), "the program's modules go with it"
        assert result.exit_code == code, result.output
        return result

    return run


def told(result: Result) -> dict[int, Any]:
    """What each rank has printed, as JSON."""
    lines = [line.partition("] ") for line in result.stdout.splitlines() if line.startswith("[rank")]
    return {int(head.removeprefix("[rank")): json.loads(rest) for head, _, rest in lines}


OWN_STATE = {rank: [rank, {"rank": rank}, rank, rank] for rank in range(2)}


@pytest.mark.parametrize("init", ["", None], ids=["package", "namespace"])
def test_a_package_beside_the_script(run: Run, init: str | None) -> None:
    files = {"rm_beside/state.py": STATE, "train.py": USES_STATE.format(package="rm_beside")}
    if init is not None:
        files["rm_beside/__init__.py"] = init
    assert told(run(files, "train.py")) == OWN_STATE


def test_a_module_deep_in_a_namespace_and_what_lies_beside_its_top(run: Run) -> None:
    files = {"rm_other/state.py": STATE, "rm_deep/sub/train.py": USES_STATE.format(package="rm_other")}
    assert told(run(files, "-m", "rm_deep.sub.train")) == OWN_STATE


def test_a_folder_that_the_script_adds_to_the_path(run: Run) -> None:
    script = "import sys, os\nsys.path.append(os.path.join(os.path.dirname(__file__), '..'))\n"
    files = {"rm_above/state.py": STATE, "scripts/train.py": script + USES_STATE.format(package="rm_above")}
    assert told(run(files, "scripts/train.py")) == OWN_STATE


def test_a_finder_that_the_program_puts_first_is_its_ranks_alone(run: Run) -> None:
    """As a test runner's, which compiles what it imports in another way and knows what it has found."""
    finder = """
import importlib.machinery, os, sys
class Finder:
    found = []
    def find_spec(self, name, path=None, target=None):
        self.found.append((int(os.environ["RANK"]), name))
        return importlib.machinery.PathFinder.find_spec(name, path, target)
sys.meta_path.insert(0, Finder())
"""
    script = finder + USES_STATE.format(package="rm_found") + "assert {at for at, _ in Finder.found} == {rank}\n"
    before = [*sys.meta_path]
    assert told(run({"rm_found/state.py": STATE, "train.py": script}, "train.py")) == OWN_STATE
    assert sys.meta_path == before


@pytest.mark.parametrize(("compiled", "options"), [(False, ()), (True, ("--per-rank-module", "rm_installed"))])
def test_an_installed_package(run: Run, tmp_path: Path, compiled: bool, options: tuple[str, ...]) -> None:
    """Of Python alone: each rank's; with compiled parts if it is named."""
    files = {
        "lib/rm_installed/__init__.py": "", "lib/rm_installed/state.py": STATE, "lib/rm_installed-1.dist-info/METADATA": "",
        "train.py": "import sys\nsys.path.append(sys.path[0] + '/lib')\n" + USES_STATE.format(package="rm_installed"),
    }  # fmt: skip
    if compiled:
        files["lib/rm_installed/_part.so"] = ""
    assert told(run(files, *options, "train.py")) == OWN_STATE


INSTALLED = """
import json, os, sys, torch.distributed as dist
sys.path.append(sys.path[0] + "/lib")
dist.init_process_group("gloo")
"""


def test_packages_with_compiled_parts_are_shared(run: Run) -> None:
    """So is what they import: they keep one rank's."""
    files = {
        "lib/rm_mixed/__init__.py": "import rm_helper\nVALUES = []\n", "lib/rm_mixed/_part.so": "",
        "lib/rm_helper.py": "VALUES = []\n", "lib/rm_helper-1.dist-info/METADATA": "",
        "train.py": INSTALLED + "import rm_mixed, rm_helper\n"
                    "for module in (rm_mixed, rm_helper):\n    module.VALUES.append(dist.get_rank())\n"
                    "dist.barrier()\nprint(json.dumps([sorted(rm_mixed.VALUES), sorted(rm_helper.VALUES)]))\n",
    }  # fmt: skip
    result = run(files, "train.py", stay={"rm_mixed", "rm_helper"})
    assert told(result) == {rank: [[0, 1], [0, 1]] for rank in range(2)}


@pytest.mark.parametrize("finder", ["importlib.metadata", "importlib_metadata"])
def test_plugins_are_those_of_whom_they_are_loaded_for(run: Run, finder: str) -> None:
    """pluggy, which all ranks share, loads a rank's plugins: they extend what that rank has of its own.

    The package of the other name takes the place of Python's own module where something has imported it.
    """
    pytest.importorskip(finder)
    records = "[rm_plugins]\nrm_plugin = rm_plugin\n"
    files = {
        "lib/rm_plugin.py": "import rm_host\nPART = rm_host.Part()\n", "lib/rm_host.py": "class Part:\n    pass\n",
        "lib/rm_plugin-1.dist-info/METADATA": "Name: rm-plugin\nVersion: 1\n",
        "lib/rm_plugin-1.dist-info/entry_points.txt": records,
        "train.py": INSTALLED + "import pluggy, rm_host\nmanager = pluggy.PluginManager('rm')\n"
                    "manager.load_setuptools_entrypoints('rm_plugins')\ndist.barrier()\n"
                    "print(json.dumps([type(each.PART) is rm_host.Part for each in manager.get_plugins()]))\n",
    }  # fmt: skip
    assert told(run(files, "train.py")) == {rank: [True] for rank in range(2)}


def test_an_installed_package_that_cannot_be_executed_twice_is_shared_and_named(run: Run) -> None:
    files = {
        "lib/rm_once/__init__.py": "from rm_once import types\nVALUES = []\n",
        "lib/rm_once/types.py": "import os\nif 'RM_ONCE' in os.sys.__dict__:\n    raise KeyError('known already')\n"
                                "os.sys.RM_ONCE = True\n",
        "lib/rm_once-1.dist-info/METADATA": "",
        "train.py": INSTALLED + "import rm_once\nrm_once.VALUES.append(dist.get_rank())\ndist.barrier()\n"
                    "print(json.dumps([sorted(rm_once.VALUES), rm_once.types.__name__]))\n",
    }  # fmt: skip
    try:
        result = run(files, "--system", "dgx_h100", "train.py", stay={"rm_once", "rm_once.types"})
    finally:
        vars(sys).pop("RM_ONCE", None)
    assert told(result) == {rank: [[0, 1], "rm_once.types"] for rank in range(2)}
    said = "shared by all ranks: the module rm_once, which cannot be executed once for each (KeyError: 'known already')"
    assert said in result.stdout.splitlines()


def test_a_module_of_the_program_that_fails_in_one_rank_fails(run: Run) -> None:
    files = {"rm_fails.py": "import os\nassert os.environ['RANK'] == '0'\n", "train.py": "import rm_fails"}
    result = run(files, "train.py", code=1)
    assert "kernbench: failed: rank 1 (AssertionError)" in result.output


def test_a_module_that_waits_while_it_is_imported(run: Run) -> None:
    files = {
        "rm_waits.py": "import torch, torch.distributed as dist\ndist.init_process_group('gloo')\nSUM = torch.ones(1)\n"
                       "dist.all_reduce(SUM)\n",
        "train.py": "import json, rm_waits\nprint(json.dumps(rm_waits.SUM.item()))\n",
    }  # fmt: skip
    assert told(run(files, "train.py")) == {0: 2.0, 1: 2.0}


def test_what_one_rank_pickles_is_another_ranks_class(run: Run) -> None:
    files = {
        "rm_classes.py": "class Point:\n    def __init__(self, x):\n        self.x = x\n",
        "train.py": "import json, torch.distributed as dist\nfrom rm_classes import Point\ndist.init_process_group('gloo')\n"
                    "all = [None, None]\ndist.all_gather_object(all, Point(dist.get_rank()))\n"
                    "print(json.dumps([[type(each) is Point, each.x] for each in all]))\n",
    }  # fmt: skip
    assert told(run(files, "train.py")) == {rank: [[True, 0], [True, 1]] for rank in range(2)}


def test_how_storages_are_loaded_is_said_by_each_rank(run: Run) -> None:
    """Megatron-Core replaces torch's function by one of its own, which pickle finds by name."""
    files = {
        "rm_safe.py": "import torch\ndef load(data):\n    return stock(data)\n"
                      "stock, torch.storage._load_from_bytes = torch.storage._load_from_bytes, load\n",
        "train.py": "import json, torch, torch.distributed as dist, rm_safe\ndist.init_process_group('gloo')\n"
                    "dist.barrier()\nfound = [None, None]\n"
                    "dist.all_gather_object(found, {'x': torch.ones(2) * (1 + dist.get_rank())})\n"
                    "print(json.dumps([each['x'].tolist() for each in found]))\n",
    }  # fmt: skip
    before = torch.storage._load_from_bytes
    assert told(run(files, "train.py")) == {rank: [[1.0, 1.0], [2.0, 2.0]] for rank in range(2)}
    assert torch.storage._load_from_bytes is before


def test_a_compiled_module_is_there_once(run: Run, tmp_path: Path) -> None:
    spec = importlib.util.find_spec("_json")
    if spec is None or not isinstance(spec.loader, importlib.machinery.ExtensionFileLoader):
        pytest.skip("this Python has no compiled module in a file to copy: _json is built in")
    target = tmp_path / "rm_compiled"
    target.mkdir()
    shutil.copy(spec.loader.path, target)
    files = {
        "rm_compiled/__init__.py": "",
        "train.py": "import json, torch.distributed as dist\nimport rm_compiled._json\ndist.init_process_group('gloo')\n"
                    "ids = [None, None]\ndist.all_gather_object(ids, id(rm_compiled._json))\n"
                    "print(json.dumps([ids[0] == ids[1], rm_compiled._json.encode_basestring('x')]))\n",
    }  # fmt: skip
    assert told(run(files, "train.py")) == {rank: [True, '"x"'] for rank in range(2)}


def test_kernels_of_a_module_of_the_program(run: Run) -> None:
    """Each rank has its own; they run as one batch all the same."""
    kernel = (
        "import triton, triton.language as tl\n@triton.jit\ndef add(x, n: tl.constexpr):\n"
        "    at = tl.arange(0, n)\n    tl.store(x + at, tl.load(x + at) + 1)\n"
    )
    script = (
        "import json, torch, torch.distributed as dist\nfrom rm_kernels import add\ndist.init_process_group('nccl')\n"
        "x = torch.full((64,), float(dist.get_rank()), device='cuda')\nadd[(1,)](x, 64)\ndist.all_reduce(x)\n"
        "print(json.dumps(x.tolist()))\n"
    )
    assert told(run({"rm_kernels.py": kernel, "train.py": script}, "train.py")) == dict.fromkeys(range(2), [3.0] * 64)


DAEMONS = """
import importlib, json, multiprocessing, threading
import torch, torch.distributed as dist
import rm_own
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
found, begin, done = [], threading.Event(), threading.Event()
ours, theirs = multiprocessing.Pipe()

def imports():
    begin.wait()
    import rm_own as again
    import rm_late
    found.extend((again.RANK, rm_late.RANK, importlib.import_module("rm_own").RANK))
    done.set()

def echoes():
    while (item := theirs.recv()) is not None:
        theirs.send(rm_own.Item(item.number + 1))

for body in (imports, echoes):
    threading.Thread(target=body, daemon=True).start()
values = torch.ones(4, device="cuda")
dist.all_reduce(values)
begin.set()
dist.all_reduce(values)
done.wait()
for number in range(2):
    ours.send(rm_own.Item(number))
    dist.all_reduce(values)
    item = ours.recv()
    assert type(item) is rm_own.Item and item.number == number + 1
with multiprocessing.get_context("fork").Pool(1) as pool:
    items = pool.map(rm_own.next_one, [rm_own.Item(number) for number in range(2)])
    assert all(type(item) is rm_own.Item for item in items)
queue = multiprocessing.get_context("fork").Queue()
queue.put(rm_own.Item(5))
dist.all_reduce(values)
assert type(queue.get()) is rm_own.Item
print(json.dumps([*found, [item.number for item in items]]))
"""


@pytest.mark.long
def test_a_daemon_that_takes_no_turns_finds_its_ranks_modules(run: Run) -> None:
    own = "import os\nRANK = int(os.environ['RANK'])\n"
    item = "class Item:\n    def __init__(self, number):\n        self.number = number\n"
    item += "def next_one(item):\n    return Item(item.number + 1)\n"
    result = run({"rm_own.py": own + item, "rm_late.py": own, "train.py": DAEMONS}, "--system", "dgx_h100", "train.py")
    assert told(result) == {rank: [rank, rank, rank, [1, 2]] for rank in range(2)}
