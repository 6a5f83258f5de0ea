"""Every shipped algorithm: right for all members, counts, types and reductions, in the order that it states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.ccl.config import AUTO, load_ccl_config
from kernbench.ccl.expressions import check_schedule, expressions
from kernbench.ccl.movements import move
from kernbench.ccl.placement import Placement
from kernbench.ccl.reduce_op import ReduceOp
from kernbench.ccl.registry import algorithm_module, build_schedule
from kernbench.ccl.schedule import CannotServeError, Schedule, ScheduleBuilder, Way
from kernbench.ccl.values import run_all_reduce
from kernbench.errors import ConfigError
from kernbench.topology import resolve_topology
from tests.ccl.literal import literal_run

CONFIG = load_ccl_config()
BY_COLLECTIVE: dict[str, list[str]] = {}
for _name, _entry in CONFIG.algorithms.items():
    if _name != AUTO:
        BY_COLLECTIVE.setdefault(algorithm_module(_entry.module).COLLECTIVE, []).append(_name)

BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@st.composite
def placements(draw) -> Placement:
    """Members in any order over nodes of any sizes, with and without a switch; sometimes a rectangle of a grid."""
    if draw(st.integers(0, 3)) == 0:
        width, height = draw(st.integers(1, 4)), draw(st.integers(1, 4))
        return Placement((0,) * (width * height), (width, height), tuple(range(width * height)), draw(st.booleans()))
    members = draw(st.integers(1, 13))
    numbers = draw(st.lists(st.integers(0, 3), min_size=members, max_size=members))
    seen: dict[int, int] = {}
    node = tuple(seen.setdefault(number, len(seen)) for number in numbers)
    return Placement(node, reduces_in_switch=draw(st.booleans()))


def served(name: str, where: Placement, root: int, chunks: int) -> Schedule | None:
    try:
        return build_schedule(CONFIG.select(name).module, where.members, root, where, chunks)
    except CannotServeError:
        return None


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    values = torch.from_numpy(rng.integers(-9, 10, shape))
    return (values / 7).to(dtype) if dtype.is_floating_point else values.to(dtype)


def folded(parts: list[torch.Tensor], op: ReduceOp) -> torch.Tensor:
    """numpy's answer for integers, where order does not matter."""
    function = {
        "sum": np.add, "avg": np.add, "product": np.multiply, "min": np.minimum, "max": np.maximum,
        "band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor,
    }[op.value]  # fmt: skip
    total = function.reduce(np.stack([part.numpy() for part in parts]), axis=0, dtype=parts[0].numpy().dtype)
    if op is ReduceOp.AVG:
        total = np.trunc(total.astype(np.float64) / len(parts)).astype(total.dtype)
    return torch.from_numpy(total)


REDUCTIONS = st.tuples(st.sampled_from(list(ReduceOp)), st.sampled_from(INTEGERS))


@settings(max_examples=25, deadline=None)
@given(where=placements(), count=st.integers(0, 70), reduction=REDUCTIONS, chunks=st.integers(1, 3), data=st.data())
@pytest.mark.parametrize("name", [name for name in BY_COLLECTIVE["all_reduce"] if "kernel" not in name])
def test_all_reduce_of_integers_is_numpys(name, where, count, reduction, chunks, data):
    op, dtype = reduction
    schedule = served(name, where, 0, chunks)
    if schedule is None:
        return
    rng = np.random.default_rng(count)
    inputs = [numbers(rng, (count,), dtype) for _ in range(where.members)]
    outputs = [torch.empty(count, dtype=dtype) for _ in inputs]
    in_place = data.draw(st.booleans())
    expected = folded(inputs, op)
    held = inputs if in_place else outputs
    run_all_reduce(schedule, inputs, held, op)
    for output in held:
        assert torch.equal(output, expected)


@settings(max_examples=15, deadline=None)
@given(
    where=placements(),
    count=st.integers(0, 40),
    dtype=st.sampled_from(FLOATS),
    op=st.sampled_from([ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MAX]),
)
@pytest.mark.parametrize("name", [name for name in BY_COLLECTIVE["all_reduce"] if "kernel" not in name])
def test_all_reduce_of_floats_is_the_schedule_run_transfer_by_transfer(name, where, count, dtype, op):
    schedule = served(name, where, 0, 2)
    if schedule is None:
        return
    rng = np.random.default_rng(count + 1)
    inputs = [numbers(rng, (count,), dtype) for _ in range(where.members)]
    outputs = [torch.empty(count, dtype=dtype) for _ in inputs]
    run_all_reduce(schedule, inputs, outputs, op)
    for output, chunks in zip(outputs, literal_run(schedule, inputs, op), strict=True):
        expected = torch.cat(chunks[: schedule.chunks])
        op.finish(expected, where.members)
        assert torch.equal(output.view(torch.uint8), expected.view(torch.uint8))


@settings(max_examples=20, deadline=None)
@given(where=placements(), data=st.data(), chunks=st.integers(1, 9))
@pytest.mark.parametrize("collective", sorted(BY_COLLECTIVE))
def test_every_schedule_does_what_its_collective_asks(collective, where, data, chunks):
    root = data.draw(st.integers(0, where.members - 1))
    if collective == "send":
        where, root = Placement.flat(2), root % 2
    for name in BY_COLLECTIVE[collective]:
        schedule = served(name, where, root, chunks)
        if schedule is not None:
            check_schedule(schedule, collective, root)


@settings(max_examples=10, deadline=None)
@given(where=placements(), count=st.integers(0, 9), reduction=REDUCTIONS, data=st.data())
@pytest.mark.parametrize("collective", ["reduce", "reduce_scatter"])
def test_reductions_to_one_or_each(collective, where, count, reduction, data):
    op, dtype = reduction
    members, root = where.members, data.draw(st.integers(0, where.members - 1))
    rng = np.random.default_rng(count)
    for name in BY_COLLECTIVE[collective]:
        schedule = served(name, where, root, 2)
        if schedule is None:
            continue
        if collective == "reduce":
            inputs = [[numbers(rng, (count,), dtype)] for _ in range(members)]
            outputs = [[torch.empty(count, dtype=dtype)] if m == root else [] for m in range(members)]
            move("reduce", schedule, inputs, outputs, op, root)
            assert torch.equal(outputs[root][0], folded([tensor for (tensor,) in inputs], op)), name
            continue
        chunks = [list(numbers(rng, (members, count), dtype)) for _ in range(members)]
        outputs = [[torch.empty(count, dtype=dtype)] for _ in range(members)]
        move("reduce_scatter", schedule, chunks, outputs, op, None)
        for m, (output,) in enumerate(outputs):
            assert torch.equal(output, folded([row[m] for row in chunks], op)), name


# -- the orders that the modules state, worked out another way -----------------------------------------------------------


def chain(order: list[int]) -> str:
    text = str(order[0])
    for member in order[1:]:
        text = f"({text}+{member})"
    return text


def halving(chunk: int, members: int) -> str:
    """Pairs by distance from n / 2 to 1; beyond a power of two, the even one of a pair is folded in before."""
    power = 1 << (members.bit_length() - 1)
    extra = members - power

    def held(number: int, half: int) -> str:
        if half == power:
            return f"({2 * number}+{2 * number + 1})" if number < extra else str(number + extra)
        return f"({held(number ^ half, 2 * half)}+{held(number, 2 * half)})"

    return held(chunk, 1)


@pytest.mark.parametrize("members", [1, 2, 3, 4, 5, 7, 8, 12])
def test_the_stated_orders(members):
    def order(name: str, member: int, chunk: int, **options) -> str:
        where = options.pop("where", Placement.flat(members, reduces_in_switch=True))
        schedule = build_schedule(CONFIG.select(name).module, members, None, where, options.pop("chunks", 1))
        return expressions(schedule).order(member, chunk)

    everyone = list(range(members))
    for member in everyone:
        for name in ("one_shot_push", "one_shot_pull"):
            assert order(name, member, 0) == chain(everyone)
        for chunk in everyone:
            assert order("ring_allreduce", member, chunk) == chain([(chunk + k) % members for k in everyone])
            for name in ("two_shot_push", "two_shot_pull", "nvls_allreduce", "multimem_allreduce"):
                assert order(name, member, chunk) == chain(everyone)
    for chunk in range(1 << (members.bit_length() - 1)):
        assert order("halving_doubling_allreduce", members - 1, chunk) == halving(chunk, members)


@pytest.mark.parametrize(
    ("name", "where", "chunk", "order"),
    [
        # own, then the child's subtree, which arrives: op(arriving, own)
        ("double_binary_tree", Placement.flat(4), 0, "((3+(1+2))+0)"),
        ("tree_allreduce", Placement.flat(4), 0, "(((3+2)+1)+0)"),
        ("tree_allreduce", Placement.flat(4), 1, "(((0+3)+2)+1)"),
        ("tree_allreduce", Placement.flat(4, nodes=2), 0, "((3+2)+(1+0))"),
        ("hierarchical_allreduce", Placement.flat(4, nodes=2), 0, "((3+2)+(1+0))"),
        ("torus_allreduce", Placement((0,) * 4, (2, 2), (0, 1, 2, 3)), 0, "((3+2)+(1+0))"),
        ("mesh_allreduce", Placement((0,) * 3, (3, 1), (0, 1, 2)), 0, "(2+(0+1))"),
        ("nvls_tree_allreduce", Placement.flat(4, nodes=2, reduces_in_switch=True), 0, "((2+3)+(0+1))"),
        ("recursive_doubling_allreduce", Placement.flat(4), 0, "((3+2)+(1+0))"),
    ],
)
def test_the_orders_of_trees_and_grids(name, where, chunk, order):
    schedule = build_schedule(CONFIG.select(name).module, where.members, None, where, 1)
    assert expressions(schedule).order(0, chunk) == order


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["one_shot_pull", "two_shot_push", "nvls_allreduce"])
def test_sums_inside_a_member_or_a_switch_are_wide(name, dtype):
    """numpy: a chain in float32, rounded once."""
    generator = torch.Generator().manual_seed(5)
    inputs = [torch.randn(50, generator=generator).to(dtype) for _ in range(6)]
    outputs = [torch.empty(50, dtype=dtype) for _ in inputs]
    where = Placement.flat(6, reduces_in_switch=True)
    run_all_reduce(build_schedule(CONFIG.select(name).module, 6, None, where, 2), inputs, outputs, ReduceOp.SUM)
    total = inputs[0].float().numpy()
    for part in inputs[1:]:
        total = total + part.float().numpy()
    for output in outputs:
        assert torch.equal(output, torch.from_numpy(total).to(dtype))


def test_the_cubes_of_several_sips():
    """Rows and columns of each SIP's cubes to its centre, from both sides; between the centres; and back."""
    topology = resolve_topology("sip8").topology_obj
    where = Placement.of_cubes(topology, [0, 1, 2])
    assert (where.members, where.nodes, where.grid) == (48, 3, (4, 4))
    schedule = build_schedule(CONFIG.select("mesh_allreduce").module, 48, None, where, 2)
    check_schedule(schedule, "all_reduce")
    between = {(src, dst) for src, dst in zip(schedule.src, schedule.dst, strict=True) if src // 16 != dst // 16}
    assert {member % 16 for pair in between for member in pair} == {10}
    for src, dst in zip(schedule.src.tolist(), schedule.dst.tolist(), strict=True):
        if (src, dst) not in between:  # neighbours in a row or a column
            across, down = abs(src % 4 - dst % 4), abs(src % 16 // 4 - dst % 16 // 4)
            assert across + down == 1
    with pytest.raises(ConfigError, match="have no cubes"):
        Placement.of_cubes(resolve_topology("dgx_h100").topology_obj, [0])


# -- what a schedule may not be -----------------------------------------------------------------------------------------


def test_a_schedule_that_is_no_all_reduce_is_found_out():
    builder = ScheduleBuilder("half of it", members=3, chunks=1)
    builder.round([0], [1], [0], reduce=True)
    with pytest.raises(ValueError, match=r"member 0 ends with 0, which does not fold every member"):
        check_schedule(builder.build(), "all_reduce")
    twice = ScheduleBuilder("twice", members=2, chunks=1)
    twice.round([0], [1], [0], reduce=True).round([1], [0], [0], reduce=True)
    with pytest.raises(ValueError, match=r"\(\(0\+1\)\+0\)"):
        check_schedule(twice.build(), "all_reduce")
    with pytest.raises(ValueError, match="does not end with the input"):
        check_schedule(ScheduleBuilder("nothing", members=2, chunks=2).build(), "all_gather")


def test_a_third_partys_wrong_schedule_is_refused_when_it_is_built(tmp_path, monkeypatch):
    (tmp_path / "my_wrong.py").write_text(
        "from kernbench.ccl.schedule import ScheduleBuilder\n"
        "COLLECTIVE, TOPOLOGIES = 'all_reduce', ('ring_1d',)\n"
        "def build(members):\n"
        "    return ScheduleBuilder('wrong', members, chunks=1).round([0], [1], 0, reduce=True).build()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"my_wrong.build\(2\) is no all_reduce"):
        build_schedule("my_wrong", 2, None)


def test_local_moves_and_scratch():
    builder = ScheduleBuilder("scratch", members=2, chunks=1, scratch=[0])
    builder.round([0, 1], [1, 0], 0, reduce=False, to_chunk=1).local([0, 1], 1, 0, reduce=True)
    schedule = builder.build()
    assert schedule.slots == 2
    assert schedule.slot_lengths(5).tolist() == [5, 5]
    check_schedule(schedule, "all_reduce")
    with pytest.raises(ValueError, match="moves locally to another"):
        ScheduleBuilder("x", 2, 1).round([0], [1], 0, reduce=False, way=Way.LOCAL)
    early = ScheduleBuilder("early", members=1, chunks=1, scratch=[0]).local([0], 0, 1, reduce=True)
    with pytest.raises(ValueError, match="reduced before it is written"):
        expressions(early.build())


def test_steps_are_sorted_into_rounds():
    builder = ScheduleBuilder("steps", members=3, chunks=1)
    schedule = builder.steps([5, 2], [1, 0], [2, 1], 0, reduce=False).build()
    assert (schedule.rounds.tolist(), schedule.src.tolist()) == ([0, 1, 2], [0, 1])
    with pytest.raises(ValueError, match="round 3: a chunk of a member is written twice"):
        builder.steps([0, 1, 1], [0, 1, 2], [1, 0, 0], 0, reduce=False)
