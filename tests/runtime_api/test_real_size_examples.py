"""The programs of examples/real_size, small: with values and without they take the same modelled time and memory."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from kernbench.commands.run import command

EXAMPLES = Path(__file__).parents[2] / "examples" / "real_size"
SMALL = {"--layers": "4", "--dim": "128", "--heads": "4", "--vocabulary": "256", "--length": "64", "--steps": "2"}


NUMBER = r"[\d.]+"


def numbers(line: str) -> list[float]:
    return list(map(float, re.findall(NUMBER, line)))


def steps(data: bool, ranks: int, name: str, *options: str) -> list[str]:
    """What the program prints of its steps, but for the loss."""
    small = [word for pair in SMALL.items() for word in pair]
    result = CliRunner().invoke(
        command,
        ["--data" if data else "--no-data", "--system", "dgx_h100", "--nproc-per-node", str(ranks),
         str(EXAMPLES / name), *small, *options],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    found = [line for line in result.output.splitlines() if "] step " in line]
    assert all("?" in line for line in found if "loss" in line) is not data or "loss" not in result.output
    return [re.sub(r"loss [^,]*, ", "", line) for line in found]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "options", "lines"),
    [
        ("llama_fsdp.py", ("--key-heads", "2", "--hidden", "256"), 2),
        ("pipeline.py", ("--batch", "4", "--microbatches", "4", "--schedule", "1F1B"), 4),
        ("pipeline.py", ("--batch", "4", "--microbatches", "4", "--schedule", "Interleaved1F1B"), 4),
    ],
)
def test_both_modes_agree(name: str, options: tuple[str, ...], lines: int) -> None:
    with_data, without = (steps(data, 2, name, *options) for data in (True, False))
    assert len(without) == lines
    for one, other in zip(with_data, without, strict=True):
        assert re.split(NUMBER, one) == re.split(NUMBER, other)
        assert numbers(one) == pytest.approx(
            numbers(other), rel=2e-3
        )  # the first messages of a pipeline differ by a little


@pytest.mark.timeout(300)
def test_a_mixture_of_experts_gets_as_many_tokens_as_any_other() -> None:
    """Without data the router's choice is balanced: the time is about that of the tokens that a router chose."""
    with_data, without = (steps(data, 2, "experts.py", "--hidden", "256", "--top", "1") for data in (True, False))
    times = [[numbers(line)[2] for line in lines] for lines in (with_data, without)]
    assert times[1] == pytest.approx(times[0], rel=0.2)
