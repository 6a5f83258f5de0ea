"""Times of torch's kernels on a real GPU beside those on a simulated one, by groups of cases.

    python -m benches.gpu_compare [real.json] [simulated.json] [--cases WORD]
    python -m benches.gpu_compare --steps

Both files are what :mod:`kernbench.programs.gpu_times` writes, or :mod:`kernbench.programs.gpu_steps.timed`, which times
steps of whole programs. Without the second the program is run, without the first its readings of an H100 are taken, which come
with the package.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernbench.cost import data

_DATA = Path(next(iter(data.__path__)))
SHIPPED, SHIPPED_STEPS = _DATA / "h100_kernels.json", _DATA / "h100_steps.json"
CALLS, STEPS = "kernbench.programs.gpu_times", "kernbench.programs.gpu_steps.timed"


def ratios(real: dict[str, Any], simulated: dict[str, Any]) -> dict[str, list[tuple[str, float, float]]]:
    """By group, of each case that both have: its name, its real seconds, and the simulated ones in units of them."""
    found = {(case["group"], case["name"]): case.get("seconds") for case in simulated["cases"]}
    groups: dict[str, list[tuple[str, float, float]]] = {}
    for case in real["cases"]:
        ours, seconds = found.get((case["group"], case["name"])), case.get("seconds")
        if ours is not None and seconds:
            groups.setdefault(case["group"], []).append((case["name"], seconds, ours / seconds))
    return groups


def simulate(system: str, module: str) -> dict[str, Any]:
    """Run the program ``module`` on one GPU of a system, without data."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "simulated.json"
        command = ["run", "--no-data", "--no-summary", "--system", system, "--nproc-per-node", "1"]
        program = ["-m", module, "--out", str(out)]
        subprocess.run([sys.executable, "-m", "kernbench", *command, *program], check=True, stdout=subprocess.DEVNULL)
        made: dict[str, Any] = json.loads(out.read_text())
        return made


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("real", nargs="?", type=Path)
    parser.add_argument("simulated", nargs="?", type=Path)
    parser.add_argument("--steps", action="store_true", help="steps of whole programs, instead of calls")
    parser.add_argument("--system", default="dgx_h100", help="that is simulated, without a second file")
    parser.add_argument("--cases", help="show the cases of groups with this in their names")
    args = parser.parse_args()
    real = json.loads((args.real or (SHIPPED_STEPS if args.steps else SHIPPED)).read_text())
    simulated = (
        simulate(args.system, STEPS if args.steps else CALLS)
        if args.simulated is None
        else json.loads(args.simulated.read_text())
    )
    errors = []
    print(f"{'group':34s} cases  median     min     max   error")
    for group, cases in ratios(real, simulated).items():
        found = [ratio for _, _, ratio in cases]
        off = [abs(ratio - 1) for ratio in found]
        errors += off
        print(
            f"{group:34s} {len(found):5d} {statistics.median(found):7.2f} {min(found):7.2f} {max(found):7.2f} "
            f"{statistics.median(off):6.1%}"
        )
        if args.cases is not None and args.cases in group:
            for name, seconds, ratio in cases:
                print(f"    {ratio:6.2f} {seconds * 1e6:10.2f} us  {name}")
    print(f"all: {len(errors)} cases, median error {statistics.median(errors):.1%}")


if __name__ == "__main__":
    main()
