"""Options of the small serving engine, and what a command checks before it runs."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from kernbench.input_files import shortened
from kernbench.programs.model_shape import DTYPES, MOST
from kernbench.programs.requests import FORMS


def _number(
    read: Callable[[str], float], least: float, most: float, expected: str, *, open_end: bool = False
) -> Callable[[str], float]:
    """What reads an option's number; ``open_end``: ``least`` itself is none."""

    def number(text: str) -> float:
        try:
            value = read(text) if len(text) <= 50 else math.nan
        except ValueError:
            value = math.nan
        if not least <= value <= most or (open_end and value == least):
            raise argparse.ArgumentTypeError(f"{shortened(repr(text))}: expected {expected}")
        return value

    return number


COUNT = _number(int, 1, MOST, f"a whole number above 0 and of at most {MOST:,}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        super().error(shortened(message, 400))


def options() -> argparse.ArgumentParser:
    """Of the engine."""
    parser = _Parser(
        prog="kernbench.programs.serving", description="A small serving engine.", usage="%(prog)s --model DIR [OPTIONS]"
    )
    parser.add_argument("--model", required=True, type=Path, help="config.json of a Llama, or its folder")
    parser.add_argument("--requests", default="none", help=FORMS)
    parser.add_argument("--dtype", choices=DTYPES, help="of weights and cache; that of the config by default")
    parser.add_argument("--longest", type=COUNT, help="most tokens of a sequence; what the model can by default")
    parser.add_argument("--budget", type=COUNT, default=8192, help="most tokens of a step")
    parser.add_argument("--sequences", type=COUNT, default=256, help="most sequences of a step")
    parser.add_argument(
        "--utilization", type=_number(float, 0, 1, "a share above 0 and of at most 1", open_end=True), default=0.9,
        help="share of the GPU's memory to be used",
    )  # fmt: skip
    parser.add_argument("--page", type=COUNT, default=256, help="tokens of a page; flash_attn wants multiples of 256")
    parser.add_argument("--pages", type=COUNT, help="of the cache; as many as fit by default")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument(
        "--host-seconds", type=_number(float, 0, 3600, "seconds, of at least 0 and at most an hour"), default=0.0,
        help="what scheduling a step takes the host, besides launches",
    )  # fmt: skip
    parser.add_argument("--weights", choices=["empty", "drawn"], default="empty", help="drawn: from a seed, for values")
    parser.add_argument("--answers", type=Path, help="write the generated tokens here, as JSON")
    return parser
