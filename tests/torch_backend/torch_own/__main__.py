"""See the package."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial

import torch

from tests.torch_backend.torch_own import on_gloo, on_ranks
from tests.torch_backend.torch_own.suite import FAILED, PASSED, RECORD, Suite


def main() -> int:
    """Run tests and print their outcomes; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.torch_backend.torch_own", description=__doc__)
    parser.add_argument("--side", choices=("ranks", "gloo"), default="ranks")
    parser.add_argument(
        "--isolation", choices=("carrier", "process"), default="carrier", help="what simulated ranks are"
    )
    parser.add_argument("--closed", action="store_true")
    parser.add_argument("--shard", nargs=2, type=int, metavar=("START", "STEP"))
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--time", action="store_true", help="print seconds, too")
    parser.add_argument("--serve", action="store_true", help="read names line by line, write their outcomes as JSON")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    suite = Suite(opened=not args.closed)
    if args.serve:
        return serve(suite, args.isolation)
    names = args.names or suite.names
    if args.shard:
        names = names[args.shard[0] :: args.shard[1]]
    run = partial(on_ranks.run_apart, isolation=args.isolation) if args.side == "ranks" else on_gloo.run_test
    passed, failed = [], 0
    for name in names:
        begin = time.monotonic()
        outcome = run(suite, name)
        seconds = f" ({time.monotonic() - begin:.1f} s)" if args.time else ""
        print(f"{name}: {outcome}{seconds}", flush=True)
        if outcome == PASSED:
            passed.append(name)
        failed += outcome.startswith(FAILED)
    print(f"{len(passed)} passed, {failed} failed, of {len(names)}")
    if args.record:
        header = f"# torch {torch.__version__}: passed on {args.side}\n"
        RECORD[suite.opened].write_text(header + "".join(f"{name}\n" for name in passed))
    return min(failed, 1)


def serve(suite: Suite, isolation: str) -> int:
    """Answer each name on stdin by its outcome, as JSON on stdout, after a first line with all names.

    The process itself never runs a test: what it forks starts from an interpreter in which autograd has no threads.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps(suite.names), file=answers)
    for line in sys.stdin:
        print(json.dumps(on_ranks.run_apart(suite, line.strip(), isolation)), file=answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
