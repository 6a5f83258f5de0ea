"""Every example of every page runs and prints what the page says (see pages.py)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import kernbench
from tests.docs.pages import ROOT, Page, find_pages, matches

LONG = (
    "docs/compile.md", "docs/cost_models.md", "docs/order.md", "docs/precompile.md", "docs/sweep.md", "docs/tour.md",
    "docs/trace.md", "docs/what_if.md",
)  # fmt: skip
"""Pages whose examples compile much, run a program many times, or in an interpreter of its own."""

FRESH = ("trace.md",)
"""Pages all of whose commands are processes of their own, as a reader's are."""


def _param(path: Path) -> Any:
    return pytest.param(path, marks=[pytest.mark.long] if str(path).endswith(LONG) else [])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", [_param(page) for page in find_pages()], ids=str)
def test_a_page_does_what_it_says(path: Path, tmp_path: Path) -> None:
    page = Page(path, tmp_path, is_warm=path.name not in FRESH)
    page.run()
    assert not page.problems, "\n\n".join(page.problems)


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\nc\n", False),
        ("a\n", "a   \n", True),
        ("a\n...\nd\n", "a\nb\nc\nd\n", True),
        ("a\n...\nd\n", "a\nd\n", True),
        ("a\n...\nd\n", "a\nb\nc\n", False),
        ("torch ... (x)\n", "torch 2.13 (x)\n", True),
        ("torch ... (x)\n", "torch 2.13\n(x)\n", False),
        ("1.5\n", "1x5\n", False),
        ("", "", True),
        ("...\n", "", True),
    ],
)
def test_expected_output(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) is same


def _page(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Page:
    monkeypatch.setattr("tests.docs.pages.ROOT", folder)
    monkeypatch.setattr("tests.docs.pages.UPDATE", False)
    (folder / "page.md").write_text(text)
    (folder / "run").mkdir()
    page = Page(Path("page.md"), folder / "run")
    page.run()
    return page


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("```python\nprint(6 * 7)\n```\n\n```output\n42\n```\n", []),
        ("```python\nprint(6 * 7)\n```\n\n```output\n43\n```\n", ["page.md:6: expected"]),
        ("```python\nprint(1)\n```\n", ["page.md:2: the example prints"]),
        ("```python\n1 / 0\n```\n", ["page.md:2: the example fails"]),
        ('```python skip="no"\n1 / 0\n```\n', []),
        ("```python file=a.py\nprint('hi')\n```\n```console\n$ python a.py\nhi\n$ echo ab\na...\n```\n", []),
        ("```console\n$ echo a\nb\n```\n", ["page.md:3: expected"]),
        ("```console\n$ false\n```\n", ["page.md:2: exit code 1"]),
        ("```console exit=1\n$ echo a; false\na\n```\n", []),
        ("```console\nls\n```\n", ["page.md:2: a console block starts"]),
        ("[there](nowhere.md) [out](https://example.org/x)\n", ["page.md:1: nowhere.md does not exist"]),
    ],
)
def test_what_counts_as_a_problem(
    text: str, problems: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _page(tmp_path, monkeypatch, text).problems
    assert len(found) == len(problems)
    assert all(problem.startswith(start) for problem, start in zip(found, problems, strict=True))


@pytest.mark.parametrize("same", [True, False])
def test_an_image_that_the_page_draws_is_compared(same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.svg").write_text("<svg/>\n" if same else "<old/>\n")
    page = _page(tmp_path, monkeypatch, "![picture](a.svg)\n\n```console\n$ echo '<svg/>' > a.svg\n```\n")
    assert [problem.partition(": ")[0] for problem in page.problems] == ([] if same else ["page.md:1"])


def test_readme_is_among_the_pages() -> None:
    assert {Path("README.md"), Path("CONTRIBUTING.md"), Path("docs/architecture.md")} <= set(find_pages())
    assert (ROOT / "pyproject.toml").is_file()


def test_pages_name_benches_by_commands_that_need_no_checkout() -> None:
    """``python -m benches.NAME`` is the short name that a checkout has beside them; docs/benches.md says so, once."""
    short = {
        f"{page}: {line.strip()}"
        for page in find_pages()
        if page.name != "CHANGELOG.md"
        for line in (ROOT / page).read_text(encoding="utf-8").splitlines()
        if re.search(r"(?<![\w.])(python -m benches\b|from benches\b|import benches\b|`benches\.\w)", line)
    }
    assert short == {
        "docs/benches.md: `python -m kernbench.benches.NAME`, and in a checkout `python -m benches.NAME` is short for it."
    }


def test_there_is_one_version() -> None:
    """Package and changelog; the distribution reads the package's, and what is installed may be older."""
    declared = (ROOT / "pyproject.toml").read_text()
    newest = re.search(r"^## (\S+) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == kernbench.__version__
    assert re.search(r"^version\b", declared, re.MULTILINE) is None
    assert '[tool.hatch.version]\npath = "kernbench/version.py"' in declared
