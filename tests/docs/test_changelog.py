"""What has changed since the last release stands in ``changelog.d``, a file for each change, as towncrier reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

FRAGMENTS = sorted(path for path in (ROOT / "changelog.d").iterdir() if path.name != ".gitignore")
SECTIONS = dict(
    re.findall(
        r'\[\[tool\.towncrier\.type]]\ndirectory = "(\w+)"\nname = "(\w+)"', (ROOT / "pyproject.toml").read_text()
    )
)


def wrong_with(name: str, text: str) -> list[str]:
    """What towncrier, or a reader of the changelog, would stumble over."""
    found = [] if re.fullmatch(rf"\+[a-z0-9-]+\.({'|'.join(SECTIONS)})\.md", name) else ["its name says no section"]
    if not text.strip() or text.startswith(("- ", "#")) or not text.endswith("\n"):
        found.append("it is no text of a point")
    for target in re.findall(r"]\(([^)#]+)[^)]*\)", text):
        if "://" not in target and not (ROOT / target).exists():
            found.append(f"there is no {target}")
    return found


@pytest.mark.parametrize("path", FRAGMENTS, ids=lambda path: path.name)
def test_a_change_can_be_put_into_the_changelog(path: Path) -> None:
    assert wrong_with(path.name, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("name", "text", "wrong"),
    [
        ("+x.added.md", "New. [How](docs/tour.md#a)\n", []),
        ("x.md", "New.\n", ["its name says no section"]),
        ("+x.removed.md", "- Gone.\n", ["its name says no section", "it is no text of a point"]),
        ("+x.fixed.md", "See [it](docs/nosuch.md).\n", ["there is no docs/nosuch.md"]),
    ],
)
def test_what_is_wrong_is_found(name: str, text: str, wrong: list[str]) -> None:
    assert wrong_with(name, text) == wrong


def test_the_changelog_has_releases_alone() -> None:
    """In the order that readers expect, behind the place where towncrier puts the next."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    head, mark, releases = text.partition("<!-- towncrier release notes start -->\n")
    assert mark
    assert "\n## " not in head
    assert all(
        re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", title) for title in re.findall(r"^## (.*)$", releases, re.M)
    )
    assert set(re.findall(r"^### (.*)$", releases, re.M)) <= set(SECTIONS.values())
    assert list(SECTIONS.values()) == ["Added", "Changed", "Fixed"]
