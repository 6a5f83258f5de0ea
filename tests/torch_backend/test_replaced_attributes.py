"""What a rank puts in the place of attributes of shared classes and modules is there for that rank alone."""

from __future__ import annotations

import ast
import builtins
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import nn

from kernbench.commands.run import command
from kernbench.torch_backend.rank_state import replaced_attributes
from kernbench.torch_backend.rank_state.plain_files import PlainFiles, place

PATCHES = '''
"""Wraps what is there, as programs do that count, scale or communicate."""
from __future__ import annotations

import builtins as __builtin__
import json
import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import AdamW, SGD

RANK = int(os.environ["RANK"])
calls = []


def wrap(stock, name):
    def wrapped(*args, **kwargs):
        calls.append(name)
        return stock(*args, **kwargs)
    return wrapped


AdamW.step = wrap(AdamW.step, "step")
nn.Linear.reset_parameters = wrap(nn.Linear.reset_parameters, "reset")
F.gelu = wrap(F.gelu, "gelu")
torch.Tensor.of_rank = RANK
setattr(torch.nn.Module, "number_of_rank", RANK)
if RANK == 1:
    del SGD.step
    torch.square = lambda x: x + 100


def only_first_prints(first):
    stock = __builtin__.print

    def print(*args, force=False, **kwargs):
        if first or force:
            stock(*args, **kwargs)

    __builtin__.print = print


class Counted:
    @classmethod
    def count(cls):
        cls.number = RANK
'''

USES = """
import json, torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
import ra_patches
dist.init_process_group("gloo")
rank = dist.get_rank()
ra_patches.only_first_prints(rank == 0)
ra_patches.Counted.count()
dist.barrier()
layer = nn.Linear(2, 2)
F.gelu(torch.zeros(2))
dist.barrier()
optimizer = torch.optim.AdamW(layer.parameters())
optimizer.step()
dist.barrier()
told = [ra_patches.calls, layer.weight.of_rank, layer.number_of_rank, ra_patches.Counted.number]
told += [torch.square(torch.tensor(3.0)).item(), "step" in vars(torch.optim.SGD)]
print("hidden" if rank else json.dumps(["shown", *told]))
print(json.dumps(told), force=True)
"""


def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> list[tuple[str, Any]]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ra_patches.py").write_text(PATCHES)
    (tmp_path / "train.py").write_text(USES)
    result = CliRunner().invoke(command, ["--nproc-per-node", "2", *options, "train.py"])
    assert result.exit_code == 0, result.output
    lines = [line.partition("] ") for line in result.stdout.splitlines() if line.startswith("[rank")]
    return sorted(((head[1:], json.loads(rest)) for head, _, rest in lines), key=str)


@pytest.mark.parametrize(
    "options", [(), ("--no-data",), ("--isolation", "process")], ids=["carrier", "no data", "process"]
)
def test_each_rank_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]) -> None:
    before = [torch.optim.AdamW.step, nn.Linear.reset_parameters, F.gelu, torch.square, builtins.print]
    once = ["reset", "gelu", "step"]
    assert _run(tmp_path, monkeypatch, *options) == [
        ("rank0", ["shown", once, 0, 0, 0, 9.0, True]),
        ("rank0", [once, 0, 0, 0, 9.0, True]),
        ("rank1", [once, 1, 1, 1, 103.0, False]),
    ]
    assert [torch.optim.AdamW.step, nn.Linear.reset_parameters, F.gelu, torch.square, builtins.print] == before
    assert not hasattr(torch.Tensor, "of_rank")
    assert not hasattr(nn.Module, "number_of_rank")
    assert "step" in vars(torch.optim.SGD)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch\ntorch.load = f\n", True),
        ("import torch.nn as nn\nif x:\n    nn.Linear.forward = f\n", True),
        ("from torch.optim import (\n    Adam,\n    SGD,\n)\nSGD.step += f\n", True),
        ("from torch import nn\nsetattr(nn.Linear, name, f)\n", True),
        ("def f(cls):\n    cls.__init__ = g\n", True),
        ("import torch\nx.grad = None\nself.torch = 1\n", False),
        ("import torch\nif torch.load == f: pass\nf(torch.load, key=torch.save)\n", False),
        ("import torch\nclass A:\n    def f(self):\n        setattr(self, 'x', 1)\n", False),
    ],
)  # fmt: skip
def test_which_files_are_compiled_so(text: str, found: bool) -> None:
    assert replaced_attributes.may_replace(text.encode()) is found
    assert (ast.dump(replaced_attributes.with_parts(ast.parse(text))) != ast.dump(ast.parse(text))) is found


def test_pythons_modules_and_own_names_are_left() -> None:
    text = "import sys, os\nfrom . import state\nsys.path = []\nos.environ = {}\nstate.value = 1\n"
    assert ast.dump(replaced_attributes.with_parts(ast.parse(text))) == ast.dump(ast.parse(text))


def test_what_fails_fails_as_before() -> None:
    code = replaced_attributes.compiled("import torch\n\nfrom builtins import int as number\nnumber.x = 3\n", "x.py")
    with pytest.raises(TypeError, match="cannot set 'x' attribute of immutable type 'int'") as raised:
        exec(code, {})
    assert raised.traceback[-1].lineno == 3  # counted from 0


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(replaced_attributes, "_plain", PlainFiles(replaced_attributes.__file__))
    folder = tmp_path / "site-packages"
    folder.mkdir()
    return folder


def looked_at(file: Path) -> bool:
    """Whether a process that starts finds statements in a file."""
    replaced_attributes._found.cache_clear()
    replaced_attributes._plain = PlainFiles(replaced_attributes.__file__)
    loader = replaced_attributes.PartingLoader(file.stem, str(file))
    code = loader.get_code(file.stem)
    assert code is not None
    return "__kernbench_part__" in code.co_names


def test_installed_files_are_looked_through_once(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, replaces = installed / "plain.py", installed / "replaces.py"
    plain.write_text("import torch\ntorch.nothing\nstate.value = 1\n")
    replaces.write_text("import torch\ntorch.load = 1\n")
    own = installed.parent / "own.py"
    own.write_text("value = 1\n")
    assert [looked_at(file) for file in (plain, replaces, own)] == [False, True, False]
    assert len(place().read_bytes().splitlines()) == 1
    assert looked_at(replaces)

    looks = []
    monkeypatch.setattr(replaced_attributes, "may_replace", lambda source: bool(looks.append(source)))
    assert not looked_at(plain)
    assert not looks


def test_a_file_that_has_changed_is_looked_through_again(installed: Path) -> None:
    plain = installed / "plain.py"
    plain.write_text("import torch\ntorch.load(0)\n")
    assert not looked_at(plain)
    plain.write_text("import torch\ntorch.load = 0\n")
    assert looked_at(plain)


def test_lines_that_are_broken_are_no_files(installed: Path) -> None:
    replaces, plain = installed / "replaces.py", installed / "plain.py"
    replaces.write_text("import torch\ntorch.load = 0\n")
    plain.write_text("import torch\n")
    place().parent.mkdir(parents=True)
    place().write_bytes(b"\n\nabc\xff\n")
    assert looked_at(replaces)
    assert not looked_at(plain)
    assert not looked_at(plain)
    assert len(place().read_bytes().split()) == 2
    place().chmod(0)  # unless it is root's
    assert not looked_at(plain)
