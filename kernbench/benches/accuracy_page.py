"""Write the reports of the accuracy page again.

    python -m kernbench.benches.accuracy_page [docs/accuracy.md] [--left-out REPORT.txt ...]

Replaces what is between ``<!-- NAME -->`` and ``<!-- end -->``: ``report`` by what ``kernbench validate`` prints, ``left-out``
by reports of ``python -m kernbench.benches.cross_validation``, where given, ``steps`` by what
``kernbench validate --end-to-end --json`` has written to ``end_to_end.json`` beside the page, and ``parallel`` by what it has
with ``--parallel`` to ``end_to_end_parallel.json``.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from kernbench.commands.validate_tables import report
from kernbench.output_files import write_file
from kernbench.validation.end_to_end.parallel_report import parallel_report
from kernbench.validation.end_to_end.published import published, published_parallel
from kernbench.validation.end_to_end.report import report as steps_report
from kernbench.validation.end_to_end.results import read_results
from kernbench.validation.manifests import SHIPPED_MANIFEST
from kernbench.validation.scores import compare_manifest


def replaced(page: str, name: str, text: str) -> str:
    """The page with another block between its marks. Raises ValueError when it has none of that name."""
    block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not block.search(page):
        raise ValueError(f"the page has no block <!-- {name} --> ... <!-- end -->")
    return block.sub(lambda found: f"{found[1]}```\n{text.strip()}\n```\n{found[2]}", page)


def rewrite(page: Path, left_out: list[Path]) -> None:
    """Rewrite the page's blocks."""
    text = replaced(page.read_text(), "report", report(compare_manifest(SHIPPED_MANIFEST)))
    results = page.with_name("end_to_end.json")
    if results.exists():
        text = replaced(text, "steps", steps_report(read_results(results, published())))
    results = page.with_name("end_to_end_parallel.json")
    if results.exists():
        text = replaced(text, "parallel", parallel_report(read_results(results, published_parallel())))
    if left_out:
        text = replaced(text, "left-out", "\n".join(path.read_text().rstrip() for path in left_out))
    write_file(page, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("page", nargs="?", type=Path, default=Path("docs/accuracy.md"), help="page to rewrite")
    parser.add_argument(
        "--left-out", nargs="+", type=Path, default=[], help="reports of kernbench.benches.cross_validation"
    )
    args = parser.parse_args()
    rewrite(args.page, args.left_out)


if __name__ == "__main__":
    main()
