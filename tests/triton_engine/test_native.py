"""Native code gives the interpreter's values, to the bit, in the form that the interpreter gives them."""

from __future__ import annotations

import hashlib
import os
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernbench.benches.kernels.dropout import dropout
from kernbench.benches.kernels.layer_norm import layer_norm
from kernbench.errors import ConfigError
from kernbench.triton_engine import execute
from kernbench.triton_engine.frontend import analysis
from kernbench.triton_engine.frontend.locations import Loc
from kernbench.triton_engine.frontend.program import BasicBlock, Instr, Jump, OpInfo, Program
from kernbench.triton_engine.frontend.types import TORCH_DTYPE, Ty
from kernbench.triton_engine.native import compiler, run
from kernbench.triton_engine.native.plan import native
from kernbench.triton_engine.ops import registry
from kernbench.triton_engine.values import Affine, Box, Late, dense_int, dense_mask

needs_llvm = pytest.mark.skipif(
    not compiler.available(),
    reason="no native code: llvmlite is not installed (kernbench[native]), or another processor",
)

INTEGERS = ("i8", "i16", "i32", "i64")
FLOATS = ("f16", "bf16", "f32", "f64")
PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
ORDERS = ("oeq", "one", "olt", "ole", "ogt", "oge", "ord", "ueq", "une", "ult", "ule", "ugt", "uge", "uno")


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiler.CACHE, str(tmp_path_factory.getbasetemp() / "native"))


def instruction(
    name: str,
    operands: list[Ty],
    result: Ty,
    words: tuple[str, ...] = (),
    slots: tuple[int, ...] = (),
    to: int = -1,
    **attrs: Any,
) -> Instr:
    """An operation, on the first slots unless ``slots`` names others."""
    row = registry.lookup(name)
    assert row is not None
    info = OpInfo(0, name, row, attrs, list(words), [], operands, [result], Loc(), name, "k")
    slots = slots or tuple(range(len(operands)))
    return Instr(info, row.build, slots, (to if to >= 0 else len(operands),))


# -- each operation ---------------------------------------------------------------------------------------------------


def cases() -> list[tuple[str, tuple[str, ...], str, tuple[str, ...]]]:
    """Name, element types of operands and result, words."""
    out: list[tuple[str, tuple[str, ...], str, tuple[str, ...]]] = []
    arithmetic = [
        "addi",
        "subi",
        "muli",
        "andi",
        "ori",
        "xori",
        "shli",
        "shrsi",
        "shrui",
        "minsi",
        "maxsi",
        "minui",
        "maxui",
    ]
    out += [(f"arith.{name}", (e, e), e, ()) for name in arithmetic for e in INTEGERS]
    out += [(f"arith.{name}", ("i1", "i1"), "i1", ()) for name in ("andi", "ori", "xori")]
    out += [("tt.mulhiui", (e, e), e, ()) for e in ("i32", "i64")]
    out += [("math.absi", (e,), e, ()) for e in INTEGERS]
    out += [("arith.cmpi", (e, e), "i1", (p,)) for p in PREDICATES for e in ("i1", "i8", "i64")]
    out += [(f"arith.{name}", (e, e), e, ()) for name in ("addf", "subf", "mulf", "divf") for e in FLOATS]
    out += [(f"math.{name}", (e,), e, ()) for name in ("floor", "ceil", "trunc", "roundeven", "absf") for e in FLOATS]
    out += [("arith.negf", (e,), e, ()) for e in FLOATS]
    out += [("math.fma", (e, e, e), e, ()) for e in ("f32", "f64")]
    out += [("arith.cmpf", (e, e), "i1", (p,)) for p in ORDERS for e in ("bf16", "f32")]
    out += [("arith.select", ("i1", e, e), e, ()) for e in ("i1", "i8", "i64", *FLOATS)]
    out += [
        ("tt.fp_to_fp", (a, b), b, ())
        for a in FLOATS
        for b in FLOATS
        if (a, b) not in {("f64", "f16"), ("f64", "bf16")}
    ]
    out += [("arith.sitofp", (a, b), b, ()) for a in INTEGERS for b in ("f32", "f64")]
    out += [("arith.uitofp", (a, b), b, ()) for a in INTEGERS[:3] for b in ("f32", "f64")]
    out += [(f"arith.fpto{s}i", (a, b), b, ()) for s in "su" for a in FLOATS for b in INTEGERS if s + b != "ui64"]
    wider = [(a, b) for k, a in enumerate(("i1", *INTEGERS)) for b in ("i1", *INTEGERS)[k + 1 :]]
    out += [(f"arith.ext{s}i", (a, b), b, ()) for s in "su" for a, b in wider]
    out += [("arith.trunci", (b, a), a, ()) for a, b in wider]
    out += [
        ("tt.bitcast", pair, pair[1], ()) for pair in (("f32", "i32"), ("i16", "bf16"), ("f16", "i16"), ("i64", "f64"))
    ]
    casts = [(name, kinds[:1], result, words) for name, kinds, result, words in out if name.split(".")[1] in CASTS]
    return [case for case in out if case[0].split(".")[1] not in CASTS] + casts


CASTS = {"fp_to_fp", "sitofp", "uitofp", "fptosi", "fptoui", "extsi", "extui", "trunci", "bitcast"}
CASES = cases()


def edge_values(elem: str) -> Tensor:
    """Where something goes wrong, if it does."""
    dtype = TORCH_DTYPE[elem]
    generator = torch.Generator().manual_seed(len(elem))
    if elem == "i1":
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        width = limits.bits
        edges = [0, 1, -1, 2, width - 1, width, -width, limits.min, limits.max, limits.min + 1, 100, -77]
        return torch.tensor(edges, dtype=dtype)
    limit = torch.finfo(dtype)
    edges = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        torch.inf,
        -torch.inf,
        torch.nan,
        limit.tiny,
        limit.smallest_normal / 4,
        limit.max,
        limit.min,
    ]
    edges += [127.5, -128.5, 255.0, 65536.0, 2.0**31, -(2.0**31), 2.0**63, 2.5, 1 + limit.eps]
    drawn = torch.randn(12, generator=generator, dtype=torch.float64) * 1000
    return torch.cat([torch.tensor(edges, dtype=torch.float64), drawn]).to(dtype)


def combined(elems: tuple[str, ...]) -> list[Tensor]:
    """Every edge with every other."""
    edges = [edge_values(e) for e in elems]
    index = torch.tensor(list(product(*[range(len(v)) for v in edges])))
    return [v[index[:, k]].reshape(1, -1) for k, v in enumerate(edges)]


def same_bits(x: Tensor, y: Tensor) -> bool:
    """Equal, and of equal sign where zero; NaN is NaN."""
    if x.shape != y.shape or x.dtype != y.dtype:
        return False
    if not x.dtype.is_floating_point:
        return torch.equal(x, y)
    ok = (x == y) & (torch.signbit(x) == torch.signbit(y))
    return bool((ok | (x.isnan() & y.isnan())).all())


@needs_llvm
@pytest.mark.parametrize("name", sorted({case[0] for case in CASES}))
def test_an_operation_has_the_interpreters_bits(name: str) -> None:
    for which, elems, result, words in CASES:
        if which != name:
            continue
        values = combined(elems)
        n = values[0].numel()
        tiles = [Ty(e, (n,)) for e in elems]
        one = instruction(name, tiles, Ty(result, (n,)), words)
        assert native(one), (name, elems, result)
        one.fn = one.fn(one.info)
        batch = SimpleNamespace(lanes=(1,), size=1, doing=None)
        expected = one.fn(batch, *[v.clone() for v in values])
        env: list[Any] = [*values, None]
        fused = run.FusedRun([one], [], [*tiles, Ty(result, (n,))], 0)
        fused(env, batch)  # type: ignore[arg-type]
        got = env[-1]
        if name == "tt.bitcast":  # the bits of a NaN, too
            got, expected = (v.view(TORCH_DTYPE[f"i{v.itemsize * 8}"]) for v in (got, expected))
        assert same_bits(got, expected), (name, elems, result, words)


@needs_llvm
def test_every_form_is_compared() -> None:
    covered = {case[0] for case in CASES}
    same = {"tt.precise_divf": "arith.divf", "arith.extf": "tt.fp_to_fp", "arith.truncf": "tt.fp_to_fp",
            "arith.bitcast": "tt.bitcast", "arith.index_cast": "arith.trunci"}  # fmt: skip
    forms = {name for name, row in registry.TABLE.items() if row.native is not None}
    assert forms == covered | set(same)
    for name, other in same.items():
        a, b = registry.TABLE[name].native, registry.TABLE[other].native
        assert getattr(a, "__code__", a) is getattr(b, "__code__", b)


# -- runs of operations -----------------------------------------------------------------------------------------------

LANES, TILE = (3, 2), (4, 5)
SHAPES = ((), (4,), (4, 1), (1, 5), (4, 5))


def drawn_program(seed: int) -> tuple[Program, dict[int, Any]]:
    """A block of random operations of values of all kinds, and the values that it finds."""
    generator = torch.Generator().manual_seed(seed)

    def below(n: int) -> int:
        return int(torch.randint(n, (1,), generator=generator))

    types: list[Ty] = []
    values: dict[int, Any] = {}
    instrs: list[Instr] = []

    def slot(ty: Ty) -> int:
        types.append(ty)
        return len(types) - 1

    def given(ty: Ty, kind: int) -> None:
        full = LANES + ty.shape
        at = slot(ty)
        if kind == 0:
            values[at] = {"i1": True, "i32": -7, "f32": 0.75}[ty.elem]
        elif kind == 1 and ty.elem == "i32":
            strides = tuple([below(3) for _ in ty.shape])
            values[at] = Affine(below(9), (below(3), below(3)), strides, -1000, 1000)
        elif kind == 2 and ty.elem == "i1" and len(ty.shape) == 2:
            values[at] = Box(((1, 3), None))
        else:
            shape = [n if below(4) else 1 for n in full]
            drawn = torch.randint(-50, 50, shape, generator=generator)
            if below(3) == 0 and len(shape) > 2:
                drawn = drawn.transpose(-1, -2).contiguous().transpose(-1, -2)
            values[at] = drawn > 0 if ty.elem == "i1" else drawn.to(TORCH_DTYPE[ty.elem])

    for elem, shape, kind in product(("i1", "i32", "f32"), SHAPES, range(3)):
        given(Ty(elem, shape), kind)
    for _ in range(40):
        x = below(len(types))
        ty = types[x]
        like = [s for s, t in enumerate(types) if t == ty]
        y = like[below(len(like))]
        way = below(4)
        if way == 0 and not ty.shape:
            target = Ty(ty.elem, TILE)
            instrs.append(instruction("tt.splat", [ty], target, slots=(x,), to=slot(target)))
        elif way == 0 and ty.shape == (4,):
            target = Ty(ty.elem, (4, 1))
            instrs.append(instruction("tt.expand_dims", [ty], target, slots=(x,), to=slot(target), axis=1))
        elif way == 0 and ty.shape in ((4, 1), (1, 5)):
            target = Ty(ty.elem, TILE)
            instrs.append(instruction("tt.broadcast", [ty], target, slots=(x,), to=slot(target)))
        elif way == 1 and ty.elem != "i1" and ty.shape:
            conditions = [s for s, t in enumerate(types) if t == Ty("i1", ty.shape)]
            c = conditions[below(len(conditions))]
            instrs.append(instruction("arith.select", [types[c], ty, ty], ty, slots=(c, x, y), to=slot(ty)))
        elif way == 2 and ty.elem != "i1":
            name, word = ("arith.cmpi", "slt") if ty.elem == "i32" else ("arith.cmpf", "olt")
            target = Ty("i1", ty.shape)
            instrs.append(instruction(name, [ty, ty], target, (word,), (x, y), slot(target)))
        else:
            names = {"i1": ("andi", "ori", "xori"), "i32": ("addi", "muli", "xori"), "f32": ("addf", "mulf", "divf")}[
                ty.elem
            ]
            instrs.append(instruction(f"arith.{names[below(3)]}", [ty, ty], ty, slots=(x, y), to=slot(ty)))
    results = [i.results[0] for i in instrs]
    kept = [r for r in results if below(3) == 0] + results[-3:]
    moves = tuple([(slot(types[r]), r) for r in dict.fromkeys(kept)])
    blocks = [BasicBlock(0, instrs, Jump(1, moves)), BasicBlock(1)]
    program = Program("k", blocks, len(types), [], {}, [i.info for i in instrs], 20)
    return analysis.finish(program, list(types)), values


def fresh(v: Any) -> Any:
    return v.clone() if type(v) is Tensor else v


def seen(v: Any, ty: Ty, batch: Any) -> Tensor:
    """A value as the elements of all lanes."""
    v = v.value() if type(v) is Late else v
    v = dense_int(v, LANES, ty.shape, ty.dtype) if ty.elem == "i32" else dense_mask(v, LANES, ty.shape)
    v = v if type(v) is Tensor else torch.tensor(v, dtype=ty.dtype)
    return v.expand(LANES + ty.shape)


@needs_llvm
@pytest.mark.parametrize("seed", range(6))
def test_a_run_leaves_what_its_instructions_leave(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program, values = drawn_program(seed)
    block = program.blocks[0]
    batch: Any = SimpleNamespace(lanes=LANES, size=6, doing=None)

    def runner(instr: Instr) -> Any:
        def one(env: list[Any], batch: Any) -> None:
            env[instr.results[0]] = instr.fn(batch, *[env[a] for a in instr.args])

        return one

    plain = [(runner(i), i.info) for i in block.instrs]
    monkeypatch.setenv(run.VARIABLE, "always")
    together = run.fused(block.instrs, plain, program.types)
    assert len(together) == 1
    envs: list[list[Any]] = []
    for code in (plain, together, together):
        env = [fresh(values.get(s)) for s in range(program.n_slots)]
        for call, _ in code:
            call(env, batch)
        envs.append(env)
    assert any(type(w.plan) is not type(None) for w in together[0][0].plans.values())  # type: ignore[attr-defined]
    for _, r in block.term.moves:  # type: ignore[union-attr]
        expected, *others = [seen(env[r], program.types[r], batch) for env in envs]
        for got, env in zip(others, envs[1:], strict=True):
            assert same_bits(got, expected), block.instrs[r - len(values)].info.name
            if type(env[r]) is Tensor and type(envs[0][r]) is Tensor:
                assert env[r].shape == envs[0][r].shape


def test_an_instruction_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ty = Ty("f32", (4,))
    good, bad = (
        instruction("arith.addf", [ty, ty], ty, to=2),
        instruction("arith.mulf", [ty, ty], ty, slots=(2, 1), to=3),
    )

    def fails(env: list[Any], batch: Any) -> None:
        raise ValueError("nothing of ours")

    plain = [(lambda env, batch: None, good.info), (fails, bad.info)]
    batch: Any = SimpleNamespace(lanes=(1,), size=1, doing=None)
    with pytest.raises(ValueError, match="nothing"):
        run.FusedRun([good, bad], plain, [ty] * 4, 1)([None] * 4, batch)
    assert batch.doing is bad.info


# -- kernels ------------------------------------------------------------------------------------------------------------


@needs_llvm
@pytest.mark.parametrize("which", ["dropout", "layer_norm"])
def test_a_kernel_has_the_same_bits_and_counts(which: str, collected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, 300, generator=torch.Generator().manual_seed(0))
    if which == "dropout":
        dropout(x.reshape(-1), 0.5, 7)
    else:
        layer_norm(x, torch.rand(300), torch.rand(300))
    (launch,) = collected.launches
    launch.rank = None
    results = []
    for how in ("never", "always"):
        monkeypatch.setenv(run.VARIABLE, how)
        launch.program.ready = None
        for arg in launch.args[1:2]:
            arg.zero_()
        execution = execute([launch])
        fused = any(type(call) is run.FusedRun for block in execution.ready.fused for call, _ in block)
        assert fused is (how == "always")
        results.append(([a.clone() for a in launch.args if isinstance(a, Tensor)], execution.counts()))
    launch.program.ready = None
    (tensors, counts), (others, other_counts) = results
    assert all(map(torch.equal, tensors, others))
    assert counts == other_counts


# -- switches and the cache -----------------------------------------------------------------------------------------------


def test_without_llvmlite_nothing_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "available", lambda: False)
    ty = Ty("f32", (4,))
    instrs = [
        instruction("arith.addf", [ty, ty], ty, to=2),
        instruction("arith.mulf", [ty, ty], ty, slots=(2, 1), to=3),
    ]
    plain = [(lambda env, batch: None, i.info) for i in instrs]
    assert run.fused(instrs, plain, [ty] * 4) is plain


def test_a_mode_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(run.VARIABLE, "sometimes")
    with pytest.raises(ConfigError, match="auto, always or never"):
        run.mode()


MODULE = "define void @NAME(ptr %words) {\n  store i64 {}, ptr %words, align 8\n  ret void\n}\n"


@needs_llvm
def test_a_damaged_file_of_the_cache_is_made_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    monkeypatch.setenv(compiler.CACHE, str(tmp_path / "new"))
    number = 0
    for damage in (
        lambda file: None,
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(b""),
    ):
        compiler.compiled.cache_clear()
        number = ctypes.c_int64(0)
        compiler.compiled(MODULE.replace("{}", "41", 1))(ctypes.addressof(number))
        assert number.value == 41
        (file,) = (tmp_path / "new").iterdir()
        whole = file.read_bytes()
        damage(file)
        compiler.compiled.cache_clear()
        compiler.compiled(MODULE.replace("{}", "41", 1))
        assert file.read_bytes() == whole


@needs_llvm
@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give a file to another user")
def test_a_file_that_another_user_has_put_there_is_not_run(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be: it is whole, and stores another number."""
    import ctypes

    monkeypatch.setenv(compiler.CACHE, str(tmp_path))
    compiler.compiled.cache_clear()
    compiler.compiled(MODULE.replace("{}", "43", 1))
    (file,) = tmp_path.iterdir()
    whole, owner = file.read_bytes(), file.stat().st_uid
    code = whole[32:].replace((43).to_bytes(4, "little"), (44).to_bytes(4, "little"))
    assert code != whole[32:]
    file.write_bytes(hashlib.sha256(code).digest() + code)
    for user, stored in ((65534, 43), (owner, 44)):  # the second shows that the file is one that would be run
        os.chown(file, user, user)
        compiler.compiled.cache_clear()
        number = ctypes.c_int64(0)
        kept = file.read_bytes()
        compiler.compiled(MODULE.replace("{}", "43", 1))(ctypes.addressof(number))
        assert number.value == stored
        file.write_bytes(hashlib.sha256(code).digest() + code if stored == 43 else kept)


@needs_llvm
def test_a_folder_that_cannot_be_written_is_done_without(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    (tmp_path / "file").write_text("")
    monkeypatch.setenv(compiler.CACHE, str(tmp_path / "file" / "below"))
    compiler.compiled.cache_clear()
    number = ctypes.c_int64(0)
    compiler.compiled(MODULE.replace("{}", "42", 1))(ctypes.addressof(number))
    assert number.value == 42
