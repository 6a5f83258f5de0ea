"""How wrong the cost models are on tables that they were not fitted to (ADR 0073).

    python -m kernbench.benches.cross_validation [--kind collective gemm memory_bound] [--by source] [--bands] [--processes N]

Leaves out one source of measurements after the other (or one device, or one collective), sets the fitted constants again
from their priors without it, and prints the errors on what was left out. A full run takes some minutes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from kernbench.output_files import write_file
from kernbench.validation.comparisons import Comparison
from kernbench.validation.cross_validation import KEYS, Fold, bands, judged, leave_one_out
from kernbench.validation.scores import Score, score

KINDS = ("collective", "gemm", "memory_bound")


def report(folds: Sequence[Fold]) -> str:
    """A line per fold, and the pool of them."""
    width = max(12, *(len(fold.left_out) for fold in folds))
    lines = [f"{'left out':{width}}  tables  points   median     p90   signed  in 80%", "-" * (width + 50)]
    lines += [_line(fold.left_out, width, fold.comparisons) for fold in folds]
    everything = [item for fold in folds for item in fold.comparisons]
    lines.append(_line("all", width, everything))
    return "\n".join(lines)


def _line(title: str, width: int, comparisons: list[Comparison]) -> str:
    found: Score = score(comparisons)
    return (
        f"{title:{width}}  {len(comparisons):>6}  {found.points:>6}  {100 * found.median:6.1f}% {100 * found.p90:6.1f}% "
        f"{100 * found.signed:+7.1f}% {100 * found.coverage:6.0f}%"
    )


def print_folds(
    kinds: Sequence[str] = KINDS, by: str = "source", *, processes: int = 1, json_path: Path | None = None
) -> list[Fold]:
    """Print the folds of each kind; all of them are the result."""
    every: list[Fold] = []
    for kind in kinds:
        if by == "collective" and kind != "collective":
            continue
        folds = judged(leave_one_out(kind, by, processes=processes))
        print(f"\n{kind}, leaving out one {by} at a time\n{report(folds)}", flush=True)
        every += folds
    if json_path is not None:
        tables = [
            {"kind": fold.kind, "left_out": fold.left_out, "table": item.table.title, **_plain(score([item]))}
            for fold in every
            for item in fold.comparisons
        ]
        write_file(json_path, json.dumps({"by": by, "tables": tables}, indent=1) + "\n")
    return every


def _plain(found: Score) -> dict[str, float]:
    return {"points": found.points, "median": found.median, "p90": found.p90, "coverage": found.coverage}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", nargs="+", default=list(KINDS), choices=KINDS, help="kinds of tables")
    parser.add_argument("--by", default="source", choices=sorted(KEYS), help="what to leave out at a time")
    parser.add_argument("--processes", type=int, default=1, help="folds to run side by side")
    parser.add_argument("--json", type=Path, help="write the errors of each table left out to a file")
    parser.add_argument("--bands", action="store_true", help="print the intervals that the errors ask for")
    args = parser.parse_args()
    folds = print_folds(args.kind, args.by, processes=args.processes, json_path=args.json)
    if args.bands:
        for group, rows in bands([item for fold in folds for item in fold.comparisons]).items():
            print(f"{group}: {rows}")


if __name__ == "__main__":
    main()
