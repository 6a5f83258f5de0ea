"""What a report of a failed allocation advises: from whole reports made by hand, whose sums are known."""

from __future__ import annotations

from typing import Any

import pytest

from kernbench.memory.ledger import ACTIVATIONS, GRADIENTS, OPTIMIZER, PARAMETERS, Composition
from kernbench.memory.modules import OUTSIDE, Recomputation, by_layer, layers_of, recomputation_of
from kernbench.memory.remedies import ModelInput, ProgramState
from kernbench.memory.report import OutOfMemoryReport

GIB = 1 << 30

LAYERS = {f"GPT.blocks.{layer}.mlp.0": 3 * GIB for layer in range(8)} | {
    f"GPT.blocks.{layer}": GIB for layer in range(8)
}
INPUTS = {f"GPT.blocks.{layer}": GIB // 2 for layer in range(8)} | {"GPT": 1}


def report(categories: dict[str, int], *, wanted: int = 2 * GIB, **known: Any) -> OutOfMemoryReport:
    """Of an allocation for which there was 1 GiB left, of eight ranks."""
    composition = Composition(sum(categories.values()), categories, {}, {}, known.pop("activations", {}))
    given: dict[str, Any] = {
        "rank": 0, "step": 0, "operation": "aten::mm", "place": "a.py:1 in f", "requested": wanted, "wanted": wanted,
        "room": GIB,
        "allocated": composition.total, "reserved": composition.total, "limit": None, "capacity": 80 * GIB, "overhead": {},
        "world": 8, "scales": True, "settings": "", "composition": composition,
    }  # fmt: skip
    return OutOfMemoryReport(**given | known)


def beginnings(found: OutOfMemoryReport) -> list[str]:
    return [remedy.split(" ")[0] for remedy in found.remedies()]


def training(**known: Any) -> ProgramState:
    return ProgramState(trains=True, given=ModelInput("GPT", (4, 4096)), inputs=INPUTS, **known)


def test_what_has_most_comes_first() -> None:
    """Of 32 GiB of activations, recomputation keeps the inputs of the eight layers, half a GiB each."""
    mostly_activations = report(
        {ACTIVATIONS: 34 * GIB, OPTIMIZER: 6 * GIB, PARAMETERS: 3 * GIB}, activations=LAYERS, program=training()
    )
    assert beginnings(mostly_activations) == ["recomputing", "a", "sharding", "keeping", "keeping", "1024.00"]
    recompute, batch, shard, *kept, more = mostly_activations.remedies()
    assert "of GPT.blocks.*, 8 modules: frees about 28.00 GiB; one of them has 4.00 GiB again" in recompute
    # 35 of 36 GiB: 3.9 of 4
    assert batch.startswith("a micro-batch of 3 instead of 4 (first dimension of the input of GPT)")
    assert shard.startswith("sharding optimizer state over 2 ranks, which frees 3.00 GiB")
    assert [each.split(" (")[0] for each in kept] == [
        "keeping activations on the host", "keeping optimizer state on the host",
    ]  # fmt: skip
    assert more == "1024.00 MiB more memory"
    mostly_state = report(
        {OPTIMIZER: 36 * GIB, PARAMETERS: 18 * GIB, ACTIVATIONS: 32 * GIB}, activations=LAYERS, program=training()
    )
    assert beginnings(mostly_state) == ["sharding", "recomputing", "a", "keeping", "keeping", "1024.00"]
    assert [*mostly_state.remedies()][3].startswith("keeping optimizer state")


@pytest.mark.parametrize(
    ("divided", "expected"),
    [
        (1, "sharding optimizer state over 2 ranks, which frees 3.00 GiB"),
        (2, "sharding optimizer state over 4 ranks instead of 2, which frees 3.00 GiB"),
        (8, None),
    ],
)
def test_what_is_sharded_already_is_sharded_no_more(divided: int, expected: str | None) -> None:
    found = report(
        {OPTIMIZER: 6 * GIB, PARAMETERS: 3 * GIB},
        program=training(divided=dict.fromkeys((PARAMETERS, GRADIENTS, OPTIMIZER), divided)),
    )
    sharding = [each for each in found.remedies() if each.startswith("sharding")]
    assert [each.split(" (")[0] for each in sharding] == ([] if expected is None else [expected])


def test_only_the_part_that_is_not_sharded_is_counted() -> None:
    """ZeRO-1 on all ranks: what is left are parameters and gradients, of which 6 - 6 / 8 GiB can go."""
    found = report(
        {OPTIMIZER: GIB, PARAMETERS: 3 * GIB, GRADIENTS: 3 * GIB},
        wanted=6 * GIB,
        program=training(divided={OPTIMIZER: 8}),
    )
    (shard,) = [each for each in found.remedies() if each.startswith("sharding")]
    assert shard.startswith("sharding parameters and gradients over 6 ranks, which frees 5.00 GiB")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((4, 4096), "a micro-batch of 3 instead of 4 "),
        ((1, 4096), "a sequence of 3584 instead of 4096 (second dimension"),
        ((1,), None),
        ((256, 3, 224, 224), "a micro-batch of 224 instead of 256 "),
    ],
)
def test_smaller_inputs_are_whole_numbers(shape: tuple[int, ...], expected: str | None) -> None:
    """Seven eighths of the activations fit, with the request."""
    program = ProgramState(trains=True, given=ModelInput("GPT", shape))
    found = [each for each in report({ACTIVATIONS: 6 * GIB}, program=program).remedies() if "instead of" in each]
    assert len(found) == (expected is not None)
    assert all(each.startswith(expected or "") for each in found)


def test_layers_that_are_recomputed_are_not_advised_to_be() -> None:
    kept = {f"GPT.blocks.{layer}.wrapped": GIB // 2 for layer in range(8)}
    found = report({ACTIVATIONS: 4 * GIB}, activations=kept, program=training())
    assert "recomputing" not in beginnings(found)
    assert recomputation_of(kept, INPUTS) == Recomputation("GPT.blocks.*", 8, 0, GIB // 2)


def test_without_a_backward_pass_nothing_is_recomputed() -> None:
    found = report({ACTIVATIONS: 34 * GIB}, activations=LAYERS, program=ProgramState(inputs=INPUTS))
    assert beginnings(found) == ["a", "1024.00"]


def test_numbers_of_layers_are_one_row_and_those_of_parts_are_not() -> None:
    alike = layers_of(["GPT.emb", "GPT.blocks.0.mlp.0", "GPT.blocks.0.mlp.2", "GPT.blocks.1", "GPT.tail.0"])
    assert alike("GPT.blocks.0") == "GPT.blocks.*"
    assert alike("GPT.blocks.1") == "GPT.blocks.1"  # no part of it has memory
    assert alike("GPT.blocks.0.mlp.2") == "GPT.blocks.*.mlp.2"
    assert alike("GPT.tail.0") == "GPT.tail.0"
    assert by_layer({**LAYERS, "GPT.head": 2 * GIB}, 40 * GIB) == {
        "GPT.blocks.*.mlp.0 (8 modules)": 24 * GIB, "GPT.blocks.* (8 modules)": 8 * GIB, OUTSIDE: 6 * GIB, "GPT.head": 2 * GIB,
    }  # fmt: skip
    assert by_layer({}, GIB) == {}
