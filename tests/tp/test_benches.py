"""The benches of tensor parallelism: what they measure does not depend on the machine, and what they compute is right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import kernbench
from kernbench.benches import decode_attention, gpt_block, tp_mlp, tp_speed, train_gpt
from kernbench.benches.data import compose
from kernbench.benches.harness.scaling import Layout, Measurement, comparison

MLP = tp_mlp.Plan(hidden=64, ffn=128, sequence=16, batch=2)


def measured(bench, plan, layout: Layout, system: str | None = None, enable_data: bool = True) -> Measurement:
    with kernbench.simulate(system, enable_data=enable_data) as ctx:
        return bench.run(ctx, plan, layout)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_mlp_loss_does_not_depend_on_the_split(sequence_parallel):
    alone = measured(tp_mlp, MLP, Layout(1))
    split = measured(tp_mlp, replace(MLP, sequence_parallel=sequence_parallel), Layout(4))
    assert split.figures["loss"] == pytest.approx(alone.figures["loss"], rel=1e-6)
    assert split.communication > alone.communication == 0
    for point in (alone, split):
        assert point.compute + point.communication + point.host <= point.step * (1 + 1e-9)


def test_modelled_times_are_the_same_in_every_run():
    first, second = (measured(tp_mlp, MLP, Layout(2, 2)) for _ in range(2))
    assert replace(first, wall=0.0) == replace(second, wall=0.0)


def test_times_without_values_are_those_with_values():
    """Kernels are sampled then: within a few percent of having counted every program."""
    with_values, without = (measured(tp_mlp, MLP, Layout(2), "dgx_h100", data) for data in (True, False))
    assert without.step == pytest.approx(with_values.step, rel=0.05)
    assert without.figures["loss"] is None


@pytest.mark.parametrize("system", ["sip8", "dgx_h100"])
def test_ranks_that_split_the_work_compute_for_less_time_each(system):
    """Launches of several ranks run together: nothing of what a rank has in its own memory goes over links."""
    plan = tp_mlp.Plan(hidden=512, ffn=2048, sequence=64, batch=4)
    busy = [measured(tp_mlp, plan, Layout(ranks), system).compute for ranks in (1, 2, 8)]
    assert busy[0] > busy[1] > busy[2]


def test_gpt_block_values_do_not_depend_on_the_split():
    plan = gpt_block.Plan(hidden=32, heads=4, groups=2, sequence=16, batch=1)
    values = gpt_block.Values()
    for size in (1, 2):
        with kernbench.simulate() as ctx:
            found = gpt_block.run(ctx, plan, Layout(size), values)
    assert 0 < found.figures["difference"] < 1e-5


def test_decoding_is_checked_against_torch():
    plan = decode_attention.Plan(heads=4, groups=2, head_dim=16, context=100, batch=2, dtype="float32")
    assert measured(decode_attention, plan, Layout(4)).figures["max error"] < 2e-6


def test_training_falls_and_is_equal_for_every_split():
    plan = train_gpt.Plan(hidden=32, heads=4, layers=1, sequence=32, batch=4, steps=12, rate=1e-2)
    results = [measured(train_gpt, plan, layout) for layout in (Layout(1), Layout(2, 2), Layout(4))]
    losses = results[0].figures["losses"]
    assert losses[-1] < losses[0] - 0.5
    assert max(train_gpt.differences(results)) < 1e-4


def test_shipped_text_is_what_the_grammar_composes():
    assert train_gpt.TEXT.read_text(encoding="utf-8") == compose.compose()


def test_command_line(tmp_path: Path):
    pytest.importorskip("matplotlib")
    files = {
        option: tmp_path / f"out.{suffix}"
        for option, suffix in (("--plot", "png"), ("--json", "json"), ("--trace", "svg"))
    }
    arguments = ["--hidden", "32", "--sequence", "8", "--batch", "1", "--tp", "1,2", "--system", "sip8,dgx_h100"]
    for option, path in files.items():
        arguments += [option, str(path)]
    result = CliRunner().invoke(tp_mlp.command, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    rows = [line.split() for line in result.output.splitlines() if line.split()[0] in ("sip8", "dgx_h100")]
    assert [row[:3] for row in rows] == [[s, t, "1"] for s in ("sip8", "dgx_h100") for t in ("1", "2")]
    document = json.loads(files["--json"].read_text())
    assert document["settings"]["hidden"] == 32
    assert [point["layout"]["tp"] for point in document["results"]] == [1, 2, 1, 2]
    assert files["--plot"].stat().st_size > 1000
    assert "gemm_kernel" in files["--trace"].read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tp", "0"], "expected sizes such as 1,2,4,8"),
        (["--tp", "x"], "expected sizes"),
        (["--ranks", "2"], "leave --ranks out"),
    ],
)
def test_wrong_arguments(arguments, words):
    result = CliRunner().invoke(tp_mlp.command, arguments)
    assert result.exit_code == 2
    assert words in result.output


def test_comparison_is_against_the_systems_own_first_point():
    def point(system: str, tp: int, step: float) -> Measurement:
        return Measurement(system, Layout(tp), step, step, 0.0, 0.0, 0.0, 1.0)

    lines = comparison([point("a", 1, 8e-6), point("a", 4, 4e-6), point("b", 2, 6e-6), point("b", 4, 3e-6)])
    cells = [line.split() for line in lines[1:5]]
    assert [(row[3], row[4], row[5]) for row in cells] == [
        ("8.00", "1.00", "100"), ("4.00", "2.00", "50"), ("6.00", "1.00", "100"), ("3.00", "2.00", "100"),
    ]  # fmt: skip
    assert lines[5] == "# fastest: b tp 4 x dp 1, 3.00 us per step"


def test_speed_holds_each_weight_once():
    plan = tp_speed.Plan(hidden=32, sequence=4, batch=1, world=4, steps=1)
    (alone, whole), (ours, held) = tp_speed.torch_alone(plan), tp_speed.simulated(plan)
    replicated_bias = 3 * 32 * 4
    assert held == whole + replicated_bias
    assert min(alone, ours) > 0
