"""Times of torch's kernels on a real GPU beside those on a simulated one, by groups of cases.

    python -m kernbench.benches.gpu_compare [real.json] [simulated.json] [--cases WORD]
    python -m kernbench.benches.gpu_compare --steps

Both files are what :mod:`kernbench.programs.gpu_times` writes, or :mod:`kernbench.programs.gpu_steps.timed`, which times
steps of whole programs. Without the second the program is run, without the first its readings of an H100 are taken, which come
with the package.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from kernbench.errors import KernbenchError
from kernbench.input_files import read_json
from kernbench.plurals import counted
from kernbench.spec_files import check_json
from kernbench.validation import data

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


class _Case(BaseModel):
    group: str
    name: str
    seconds: float | None = None


class _Timings(BaseModel):
    cases: list[_Case]


def read(path: Path) -> dict[str, Any]:
    """What a program has written. Raises ConfigError of a file that is not there, or is no such one."""
    found: dict[str, Any] = read_json(path)
    check_json(found, _Timings, path)
    return found


def simulate(system: str, module: str) -> dict[str, Any]:
    """Run the program ``module`` on one GPU of a system, without data."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "simulated.json"
        command = ["run", "--no-data", "--no-summary", "--system", system, "--nproc-per-node", "1"]
        program = ["-m", module, "--out", str(out)]
        subprocess.run([sys.executable, "-m", "kernbench", *command, *program], check=True, stdout=subprocess.DEVNULL)
        return read(out)


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("real", nargs="?", type=Path)
    parser.add_argument("simulated", nargs="?", type=Path)
    parser.add_argument("--steps", action="store_true", help="steps of whole programs, instead of calls")
    parser.add_argument("--system", default="dgx_h100", help="that is simulated, without a second file")
    parser.add_argument("--cases", help="show the cases of groups with this in their names")
    args = parser.parse_args()
    try:
        real = read(args.real or (SHIPPED_STEPS if args.steps else SHIPPED))
        simulated = (
            simulate(args.system, STEPS if args.steps else CALLS) if args.simulated is None else read(args.simulated)
        )
    except KernbenchError as error:
        parser.error(str(error))
    except subprocess.CalledProcessError as failed:  # which has said why
        parser.exit(failed.returncode)
    groups = ratios(real, simulated)
    if not groups:
        parser.error("the two files have no case in common")
    errors = []
    print(f"{'group':34s} cases  median     min     max   error")
    for group, cases in groups.items():
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
    print(f"all: {counted(len(errors), 'case')}, median error {statistics.median(errors):.1%}")


if __name__ == "__main__":
    main()
