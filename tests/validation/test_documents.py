"""docs/accuracy.md says what the models do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernbench.validation.manifests import SHIPPED_MANIFEST
from kernbench.validation.scores import compare_manifest, score

PAGE = Path(__file__).parents[2] / "docs" / "accuracy.md"


@pytest.mark.skipif(not PAGE.is_file(), reason="the documents do not come with the package")
def test_the_accuracy_page_is_what_the_command_prints():
    printed = dict(re.findall(r"^(\w\S*)(?: \*)? +\d+ +([\d.]+)%", PAGE.read_text(), flags=re.MULTILINE))
    for item in compare_manifest(SHIPPED_MANIFEST):
        assert float(printed[item.table.title]) == pytest.approx(100 * score([item]).median, abs=1.0), item.table.title
