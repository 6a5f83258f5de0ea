"""kernbench.cost.register: costs of operators that torch does not bring."""

from __future__ import annotations

import pytest
import torch

from kernbench.cost import Operand, StatedWork, register
from kernbench.cost.op_costs import OpCosts
from kernbench.cost.registry import operator_cost
from kernbench.errors import ConfigError
from kernbench.topology import load_device

H100 = load_device("h100_sxm")
BIG = ((4096, 4096), torch.bfloat16)


def seconds(costs: OpCosts, name: str = "mylib::op") -> float:
    return costs.of(name, (BIG, BIG), (BIG,)).seconds


def test_a_function_states_seconds_or_work() -> None:
    seen: list[tuple[Operand, ...]] = []

    def work(given: tuple[Operand, ...], made: tuple[Operand, ...]) -> StatedWork:
        seen.append((*given, *made))
        return StatedWork(nbytes=0, flops=2 * 4096**3, matrix=True, dtype=given[0].format)

    costs = OpCosts(H100)
    with register("mylib::op", lambda given, made: 3e-3):
        assert seconds(costs) == 3e-3
    with register("mylib::op.default", work):
        assert seconds(costs) == pytest.approx(2 * 4096**3 / H100.matrix_rate("bf16"))
        assert seconds(costs) > 0
    assert seen == [(Operand((4096, 4096), "bf16"),) * 3]  # asked once
    assert not costs.unmodelled.operators


def test_an_operator_may_be_priced_like_another() -> None:
    costs = OpCosts(H100)
    with register("mylib::op", like="aten::mm"):
        assert costs.of("mylib::op", (BIG, BIG), (BIG,)) == costs.of("mm", (BIG, BIG), (BIG,))


def test_what_was_known_before_is_known_again() -> None:
    costs = OpCosts(H100)
    bytes_only = seconds(costs)
    outer = register("mylib::op", lambda given, made: 1e-3)
    with pytest.raises(ConfigError, match="registered already; replace=True"):
        register("mylib::op", lambda given, made: 2e-3)
    with register("mylib::op", lambda given, made: 2e-3, replace=True):
        assert seconds(costs) == 2e-3
    assert seconds(costs) == 1e-3
    outer.unregister()
    outer.unregister()
    assert seconds(costs) == bytes_only


def test_torchs_own_operators_are_replaced_on_request_only() -> None:
    costs = OpCosts(H100)
    before = seconds(costs, "mm")
    with pytest.raises(ConfigError, match="mm is in the table"):
        register("aten::mm", lambda given, made: 1.0)
    with register("aten::mm", lambda given, made: 1.0, replace=True):
        assert seconds(costs, "mm") == 1.0
    assert seconds(costs, "mm") == before


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (lambda given, made: -1.0, "is -1.0; expected seconds"),
        (lambda given, made: "fast", "is 'fast'; expected seconds"),
        (lambda given, made: given[7].shape, "failed: IndexError"),
    ],
)
def test_a_function_that_gives_no_cost_is_named(cost, words) -> None:
    with register("mylib::op", cost), pytest.raises(ConfigError, match=f"mylib::op .*{words}"):
        seconds(OpCosts(H100))


@pytest.mark.parametrize("cost", [None, 7, "", "no_such_operator"])
def test_costs_that_say_nothing_are_refused(cost) -> None:
    with pytest.raises(ConfigError, match=r"mylib::op \(plugin acme\)"):
        operator_cost("mylib::op", cost, "plugin acme")
