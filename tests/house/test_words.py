"""The words of docstrings and messages: the field's terms (CONTRIBUTING.md, "Words"), in every room of the package."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import kernbench
from tests.house.source import Package

AVOIDED = re.compile(
    r"\b((no|some|any|every)body|(some|any|every)one|who(m)?ever|(is|are|be|been|was|were)\s+told|who\s+(asks|looks)"
    r"|(by|for|from|than|to|with)\s+who)\b",
    re.IGNORECASE,
)
"""Whole words, also across the end of a line. ``who`` behind a preposition stands for a noun: the caller."""


@pytest.fixture(scope="module")
def package() -> Package:
    """kernbench's own source."""
    return Package(Path(kernbench.__file__).parent)


def avoided_words(package: Package) -> list[str]:
    """``module:line: word``, of each avoided word in a docstring, of a constant as well; the line is the docstring's first."""
    return [
        f"{module}:{node.lineno}: {match[0]}"
        for module, nodes in package.nodes.items()
        for node in sorted((node for node in nodes if isinstance(node, ast.Expr)), key=lambda node: node.lineno)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for match in AVOIDED.finditer(node.value.value)
    ]


def avoided_in_messages(package: Package) -> list[str]:
    """The same of every text that is no docstring: messages, options' help, reasons. A text in several pieces is read whole."""
    found = []
    for module, nodes in package.nodes.items():
        statements = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        pieces = {id(piece) for node in nodes if isinstance(node, ast.JoinedStr) for piece in node.values}
        for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
            if isinstance(node, ast.JoinedStr):
                text = "".join(str(piece.value) if isinstance(piece, ast.Constant) else "{}" for piece in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements | pieces:
                text = node.value
            else:
                continue
            found += [f"{module}:{node.lineno}: {match[0]}" for match in AVOIDED.finditer(text)]
    return found


def test_docstrings_use_the_fields_terms(package: Package) -> None:
    assert avoided_words(package) == []


def test_messages_use_the_fields_terms(package: Package) -> None:
    assert avoided_in_messages(package.without("benches.data")) == []  # the text that a bench learns
    pages = Path(kernbench.__file__).parent / "html_report" / "page"
    scripts = [path for path in pages.iterdir() if path.suffix in (".js", ".html")]
    assert scripts
    assert [
        path.name
        for path in scripts
        if re.search(r"^(?!\s*(//|\*)).*\b(nobody|somebody|whoever)\b", path.read_text(), re.I | re.M)
    ] == []


def test_an_avoided_word_is_found_with_its_line(tmp_path: Path) -> None:
    """In modules, classes, methods, private or not, and across lines; not inside other words."""
    root = tmp_path / "sample"
    root.mkdir()
    (root / "__init__.py").write_text(
        '"""Nobody."""\n'
        "class Shown:\n"
        '    """Somebodys."""\n'
        "    def method(self):\n"
        '        """What is\n        told."""\n'
        "    def _private(self):\n"
        '        """Whoever."""\n'
        "def raises():\n"
        '    raise ValueError("nobody")\n'
        '    raise ValueError(f"{x} was "\n        f"told {x}")\n'
        'HELP = {"x": "whoever"}\n'
    )
    assert avoided_words(Package(root)) == ["sample:1: Nobody", "sample:5: is\n        told", "sample:8: Whoever"]
    assert avoided_in_messages(Package(root)) == ["sample:10: nobody", "sample:11: was told", "sample:13: whoever"]
