"""Operators of a package whose compiled modules cannot be imported here: found, defined by their schemas, priced, refused."""

from __future__ import annotations

import ctypes
import ctypes.util
import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import kernbench
from kernbench.advice import advice_for
from kernbench.commands.run import command as run_command
from kernbench.commands.stand_ins import command
from kernbench.compiled_operators import Operators
from kernbench.compiled_operators.schemas import namespaces_of, namespaces_used, schemas_in
from kernbench.errors import ConfigError
from kernbench.plugins import discovery
from kernbench.stand_ins import StandIn, remarks, stand_in_as_told, standing_in, table

LIBRARY = b"\x7fELF no library\0" + b"\0".join([
    b"scale_rows(Tensor! out, Tensor x, Tensor scale, float by=2.0, *, str how='all') -> ()",
    b"widened(Tensor x,\n   int[2] more=[1, 1],  Tensor? bias=None) -> (Tensor, Tensor)",
    b"unknown.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
    b"total(Tensor x) -> Tensor", b"version() -> int", b"strange(Carburettor x) -> ()",
    b"a->b", b"void f(int) -> x y z (", b"std::f(int) -> ()", b"9bad(Tensor x) -> Tensor", b"",
])  # fmt: skip
STAND_IN = """
from kernbench.compiled_operators import Operators
from kernbench.cost import StatedWork
from kernbench.stand_ins import StandIn

operators = Operators("{name}", "{name}_more")

@operators.value
def scale_rows(out, x, scale, by):
    out.copy_(x * scale[:, None] * by)

@operators.cost("scale_rows")
def _(operands):
    return StatedWork(2 * operands["x"].row_bytes(1) * sum(n > 0 for n in operands["scale"].known or []))

@operators.shape
def widened(x, more):
    return x.new_empty(x.shape[0], more[0]), x.new_empty(more[1])

@operators.value
def version():
    return 7

stand_in = StandIn("{name}", "1.0", compiled={{"{name}._C": "{file}:operators"}})
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of an installed package with a compiled module, whose stand-in is the file ``stand_in.py`` beside it."""
    name = f"kernbench_test_{zlib.crc32(request.node.name.encode())}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(
        f"import torch\nfrom {name} import _C\ndef total(x): return torch.ops.{name}_more.total(x)\n"
    )
    (tmp_path / name / "_C.so").write_bytes(LIBRARY)
    (tmp_path / "stand_in.py").write_text(STAND_IN.format(name=name, file=tmp_path / "stand_in.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    for loaded in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[loaded]


@pytest.fixture
def reference(package: str, tmp_path: Path) -> str:
    return f"{tmp_path / 'stand_in.py'}:stand_in"


def test_schemas_are_read_where_they_stand(tmp_path: Path) -> None:
    library = tmp_path / "_C.so"
    library.write_bytes(LIBRARY)
    found = schemas_in(library)
    assert list(found) == ["scale_rows", "widened", "unknown.out", "total", "version", "strange"]
    assert found["widened"] == "widened(Tensor x, int[2] more=[1, 1], Tensor? bias=None) -> (Tensor, Tensor)"


def test_namespaces_are_those_of_the_calls(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("torch.ops._C.norm(x); f = torch.ops._C_more.copy.default\n")
    (tmp_path / "b.py").write_text("if hasattr(torch.ops._C_more, 'x'): torch.ops._C_more.norm(y)\n")
    used = namespaces_used(tmp_path.glob("*.py"))
    assert namespaces_of("norm", used, ("_C", "_C_more")) == ("_C", "_C_more")
    assert namespaces_of("copy.out", used, ("_C", "_C_more")) == ("_C_more",)
    assert namespaces_of("other", used, ("_C", "_C_more")) == ("_C",)


@pytest.mark.parametrize("data", [True, False])
def test_a_package_is_imported_and_its_operators_run(package: str, reference: str, data: bool) -> None:
    seen = []

    def worker(rank: int) -> None:
        module = importlib.import_module(package)
        operators = getattr(torch.ops, package)
        x, scale = torch.ones(4, 1 << 20, device="cuda"), torch.tensor([1, 0, 3, 0]).cuda()
        out = torch.empty_like(x)
        operators.scale_rows(out, x, scale)
        wide = operators.widened(x, [5, 6], None) if not data else (x, x)
        assert not data or module._C is not None
        seen.append((out[:, 0].tolist() if data else None, [tuple(each.shape) for each in wide], wide[0].device.type))
        seen.append(operators.version())

    with standing_in([reference]), kernbench.simulate("dgx_h100", enable_data=data) as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
        named = [each.name for each in ctx.simulation.op_costs.unmodelled.operators]
        moved = [each.nbytes for each in ctx.simulation.engine.op_log.operations if "scale_rows" in each.name]
    assert moved == [2 * 2 * 4 << 20]  # the two rows that are not scaled by zero, read and written
    if data:
        assert seen == [([2.0, 0.0, 6.0, 0.0], [(4, 1 << 20)] * 2, "cuda"), 7]
    else:
        assert seen == [(None, [(4, 5), (6,)], "cuda"), 7]
        assert named == [f"{package}::widened"]


def test_values_that_are_not_there_are_refused_in_words(package: str, reference: str) -> None:
    def worker(rank: int) -> None:
        importlib.import_module(package).total(torch.ones(3, device="cuda"))

    for data, words in (
        (True, "has no values in its stand-in: run without data"),
        (False, "does not know their shapes"),
    ):
        with (
            standing_in([reference]), kernbench.simulate("dgx_h100", enable_data=data) as ctx,
            pytest.raises(Exception, match=rf"{package}_more::total of {package} 1.0 .*{words}(.|\n)*How to add an operator"),
        ):  # fmt: skip
            ctx.multiprocessing.spawn(worker, nprocs=1)


def test_a_function_that_does_not_fit_the_schema() -> None:
    operators = Operators("kernbench_test_misfit", schemas=["f(Tensor! out, Tensor x) -> ()"])
    operators.value("f")(lambda out, y: None)
    with pytest.raises(
        ConfigError, match=r"values of kernbench_test_misfit::f want y, and this release of acme 2 defines"
    ):
        operators.define("acme 2")


def test_what_engines_do_without_is_brought_by_its_name_alone() -> None:
    with standing_in(["auto"]):
        assert importlib.util.find_spec("flash_attn") is not None
        assert importlib.util.find_spec("flashinfer") is None
    with standing_in(["auto", "flashinfer"]):
        assert importlib.util.find_spec("flashinfer.decode") is not None
    shown = CliRunner().invoke(command, ["flashinfer"], catch_exceptions=False).output
    assert "comes by --stand-in flashinfer, not by auto" in shown


def test_auto_takes_what_cannot_be_imported_and_says_so_once(
    package: str, reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint(package, reference, table.GROUP)
    monkeypatch.setattr(discovery, "installed", lambda group: (point,) if group == table.GROUP else ())
    with standing_in(["auto"]):
        importlib.import_module(package)
        importlib.import_module(f"{package}._C")
        assert remarks() == [f"{package}: its stand-in (1.0) was imported, as the package is not here for want of CUDA"]
        assert importlib.import_module("flash_attn").flash_attn_func is not None
        assert [each.partition(":")[0] for each in remarks()] == [package, "flash_attn"]
    assert remarks() == []
    assert "flash_attn" not in sys.modules
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("flash_attn")


def test_auto_leaves_what_can_be_imported(
    package: str, reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = EntryPoint(package, reference, table.GROUP)
    monkeypatch.setattr(discovery, "installed", lambda group: (point,) if group == table.GROUP else ())
    (tmp_path / package / "_C.so").unlink()
    (tmp_path / package / "_C.py").write_text("here = True\n")
    with standing_in(["auto"]):
        assert importlib.import_module(f"{package}._C").here
        assert remarks() == []


def test_a_process_that_joins_has_the_same(package: str, reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    stand_in_as_told(f"flash_attn,{reference}")
    importlib.import_module(package)
    assert importlib.import_module("flash_attn").__name__ == "flash_attn"
    for loaded in [each for each in sys.modules if each.partition(".")[0] == "flash_attn"]:
        del sys.modules[loaded]


def test_what_is_not_there_is_an_error() -> None:
    for name, words in (
        ("nothing", r"--stand-in nothing: there is none; there are: .*flash_attn, .*vllm, .*auto"),
        ("kernbench.stand_ins.table:GROUP", r"kernbench.stand_ins.table:GROUP is a str: a stand-in is"),
    ):
        with pytest.raises(ConfigError, match=words), standing_in([name]):
            pass
    missing = StandIn("kernbench_test_missing", "1", compiled={"kernbench_test_missing._C": "x:y"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(table.SHIPPED, missing.name, missing)
        words = (
            "kernbench_test_missing is not installed, and it stands in for compiled modules only: pip install --no-deps"
        )
        with pytest.raises(ConfigError, match=words), standing_in([missing.name]):
            pass


@pytest.mark.parametrize(("error", "words"), [
    (ImportError("libcuda.so.1: cannot open shared object file", name="vllm._C_stable_libtorch"), "--stand-in vllm has its"),
    (ImportError("libcudart.so.12: cannot open shared object file", name="acme._C"), "no stand-in .*How to add an operator"),
    (OSError("libc10_cuda.so: cannot open shared object file"), "has no stand-in"),
])  # fmt: skip
def test_what_to_do_about_libraries_of_cuda(error: BaseException, words: str) -> None:
    assert advice_for(error) is not None
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(advice_for(error))


def _loads_sources(folder: Path) -> None:
    from torch.utils import cpp_extension

    (folder / "kernels.cu").write_text("int f() { return 1; }")
    cpp_extension.load("kernbench_test_sources", sources=[str(folder / "kernels.cu")], build_directory=str(folder))


def _loads_sources_in_line(folder: Path) -> None:
    from torch.utils import cpp_extension

    cpp_extension.load_inline(
        "kernbench_test_in_line",
        cpp_sources="int f();",
        cuda_sources="int f() { return 1; }",
        build_directory=str(folder),
    )


def _loads_the_driver(folder: Path) -> None:
    ctypes.CDLL("libcuda.so.1")


@pytest.mark.parametrize(("load", "words"), [
    (_loads_sources, "there is no nvcc: give their operators a stand-in"),
    (_loads_sources_in_line, "there is no nvcc: give their operators a stand-in"),
    (_loads_the_driver, "compiled for CUDA, which is not here"),
])  # fmt: skip
def test_what_to_do_about_sources_and_the_driver(load: Callable[[Path], None], words: str, tmp_path: Path) -> None:
    """In a rank, as a program does it."""
    cpp_extension = importlib.import_module("torch.utils.cpp_extension")
    if ctypes.util.find_library("cuda") or cpp_extension.CUDA_HOME:
        pytest.skip("CUDA is here")
    found = []

    def worker(rank: int) -> None:
        with pytest.raises(OSError) as failed:
            load(tmp_path)
        found.append(advice_for(failed.value))

    with kernbench.simulate("dgx_h100") as ctx:
        ctx.multiprocessing.spawn(worker, nprocs=1)
    assert words in found[0]


def test_what_to_do_travels_with_the_error_of_a_process(tmp_path: Path) -> None:
    """Which leaves its frames behind, and the error that it was raised from."""
    if importlib.import_module("torch.utils.cpp_extension").CUDA_HOME:
        pytest.skip("CUDA is here")

    def worker(rank: int) -> None:
        try:
            _loads_sources(tmp_path)
        except OSError as error:
            raise ValueError("no kernels") from error

    with kernbench.simulate("dgx_h100") as ctx, pytest.raises(kernbench.SpawnException) as failed:
        ctx.multiprocessing.spawn(worker, nprocs=1, isolation="process")
    assert "there is no nvcc" in str(advice_for(failed.value.errors[0]))


def test_other_libraries_have_no_such_advice() -> None:
    assert advice_for(ImportError("libgomp.so.1: cannot open shared object file", name="acme._C")) is None


def test_the_list(package: str, reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint(package, reference, table.GROUP)
    monkeypatch.setattr(discovery, "installed", lambda group: (point,) if group == table.GROUP else ())
    listed = CliRunner().invoke(command, [], catch_exceptions=False).output
    assert f"{package}._C: 6 operators, 2 with values, 1 with costs" in listed
    assert "flash_attn         has the functions of 2.8.3; kernbench" in listed
    shown = CliRunner().invoke(command, [package], catch_exceptions=False).output.splitlines()
    assert [line for line in shown if line.startswith("  ")] == [
        "  vc scale_rows", "  -- strange", "  -- total", "  -- unknown.out", "  v- version", "  -- widened",
    ]  # fmt: skip


def test_compiled_modules_of_functions_and_python_that_loads_libraries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "kernbench_test_bound"
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text("from . import loader\nimport kernbench_test_bound_cuda as cuda\n")
    (folder / "loader.py").write_text(
        "import os\nbuilding = os.environ['KERNBENCH_TEST_BUILDING']\ndef load(): raise OSError\n"
    )
    (tmp_path / "kernbench_test_bound_stand_in.py").write_text(
        """
import contextlib
import os

import torch

from kernbench.compiled_operators import Operators
from kernbench.stand_ins import StandIn

operators = Operators("kernbench_test_bound", schemas=["doubled(Tensor x, Tensor! out) -> ()"])


@operators.value
def doubled(x, out):
    out.copy_(2 * x)


def twice(x):
    out = torch.empty_like(x)
    torch.ops.kernbench_test_bound.doubled(x, out)
    return out


NAMES = {"twice": twice}


@contextlib.contextmanager
def within(module):
    os.environ["KERNBENCH_TEST_BUILDING"] = "1"
    yield
    del os.environ["KERNBENCH_TEST_BUILDING"]
    module.load = lambda: "loaded"


stand_in = StandIn(
    "kernbench_test_bound", "1.0", bound={"kernbench_test_bound_cuda": "kernbench_test_bound_stand_in"},
    around={"kernbench_test_bound.loader": "kernbench_test_bound_stand_in:within"},
)
"""
    )
    monkeypatch.syspath_prepend(tmp_path)
    with standing_in(["kernbench_test_bound_stand_in:stand_in"]):

        def worker(rank: int) -> None:
            package = importlib.import_module(name)
            assert (package.loader.building, package.loader.load()) == ("1", "loaded")
            assert package.cuda.twice(torch.ones(3, device="cuda")).tolist() == [2.0, 2.0, 2.0]

        with kernbench.simulate("dgx_h100") as ctx:
            ctx.multiprocessing.spawn(worker, nprocs=2)
        listed = CliRunner().invoke(command, ["kernbench_test_bound_stand_in:stand_in"], catch_exceptions=False).output
        assert "kernbench_test_bound_cuda: 1 function over 1 kernel, 1 with values, 0 with costs\n" in listed
        assert "is installed by pip install --no-deps kernbench_test_bound, and what it imports\n" in listed
        assert "kernbench_test_bound_cuda\n  twice\n" in listed
    assert not [each for each in sys.modules if each in (name, f"{name}.loader", f"{name}_cuda")]


def test_what_to_do_without_the_package_and_without_its_stand_in() -> None:
    if importlib.util.find_spec("transformer_engine") is None:
        words = r"pip install --no-deps transformer_engine onnxscript onnx onnx_ir ml_dtypes"
        with pytest.raises(ConfigError, match=words), standing_in(["transformer_engine"]):
            pass
        error = ModuleNotFoundError("No module named 'transformer_engine'", name="transformer_engine")
        assert "kernbench run --stand-in transformer_engine" in str(advice_for(error))
    place = "/site-packages/transformer_engine/common/__init__.py"
    with pytest.raises(RuntimeError) as failed:
        exec(compile("raise RuntimeError('cudnn shared object not found.')", place, "exec"))
    assert "--stand-in transformer_engine" in str(advice_for(failed.value))


@pytest.mark.parametrize("per_rank", [True, False])
def test_each_rank_executes_the_python_of_a_package_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, per_rank: bool
) -> None:
    """Although it has compiled parts, without one of which it does."""
    name = f"kernbench_test_own_{per_rank}".lower()
    folder = tmp_path / name
    folder.mkdir()
    (folder / "compiled.so").write_bytes(b"")
    (tmp_path / f"{name}-1.0.dist-info").mkdir()  # it is installed
    (folder / "__init__.py").write_text(
        f"groups = {{}}\ntry:\n    import {name}.extra\nexcept ModuleNotFoundError as error:\n    said = str(error)\n"
    )
    (tmp_path / f"{name}_stand_in.py").write_text(
        "from kernbench.stand_ins import StandIn\n"
        f"stand_in = StandIn({name!r}, '1.0', bound={{'none': 'none'}}, absent=('{name}.extra',), per_rank={per_rank})\n"
    )
    (tmp_path / "program.py").write_text(
        f"import json\nimport torch.distributed as dist\nimport {name} as own\ndist.init_process_group('gloo')\n"
        "own.groups[dist.get_rank()] = 1\ndist.barrier()\nprint(json.dumps([sorted(own.groups), own.said]))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    options = ["--no-summary", "--nproc-per-node", "2", "--stand-in", f"{tmp_path}/{name}_stand_in.py:stand_in"]
    ran = CliRunner().invoke(run_command, [*options, str(tmp_path / "program.py")])
    assert ran.exit_code == 0, ran.output
    said = f"{name}.extra is compiled for CUDA, and has no stand-in"
    lines = sorted(line for line in ran.stdout.splitlines() if line.startswith("[rank"))
    assert lines == [f'[rank{rank}] [{[rank] if per_rank else [0, 1]}, "{said}"]' for rank in range(2)]


@pytest.mark.parametrize("isolation", ["carrier", "process"])
def test_a_process_that_a_rank_starts_has_its_stand_ins(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], isolation: str
) -> None:
    """As one that writes checkpoints: it imports what defines the function that it is to call."""
    (tmp_path / "program.py").write_text(
        "import multiprocessing\nfrom apex.normalization import FusedRMSNorm\n"
        "def name(results):\n    results.put(FusedRMSNorm.__name__)\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn')\n"
        "    results = process.Queue()\n"
        "    started = process.Process(target=name, args=(results,))\n"
        "    started.start()\n    print(results.get())\n    started.join()\n"
    )
    before = os.environ.get("PYTHONPATH")
    options = ["--no-summary", "--nproc-per-node", "2", "--isolation", isolation, "--stand-in", "apex"]
    ran = CliRunner().invoke(run_command, [*options, str(tmp_path / "program.py")])
    assert ran.exit_code == 0, ran.output + capfd.readouterr().err
    assert sorted(ran.stdout.splitlines()) == [f"[rank{rank}] FusedRMSNorm" for rank in range(2)]
    assert os.environ.get("PYTHONPATH") == before
