"""The notebook of the documentation runs in a kernel, and shows what it holds (docs/tools/notebook.py)."""

from __future__ import annotations

import json

import pytest

from tests.docs.pages import UPDATE
from tests.docs.tools import load_tool

tool = load_tool("notebook")


@pytest.mark.long  # seconds
@pytest.mark.timeout(600)
def test_its_cells_show_what_it_holds() -> None:
    for name in ("ipykernel", "nbclient", "nbformat"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'kernbench[notebook]'")
    shown = tool.text_of(tool.executed())
    if UPDATE:
        tool.NOTEBOOK.write_text(shown, encoding="utf-8")
    assert tool.NOTEBOOK.read_text(encoding="utf-8") == shown


def test_it_has_been_executed() -> None:
    cells = [
        cell for cell in json.loads(tool.NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"
    ]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    raised = {
        "raises-exception" in cell["metadata"].get("tags", ()): cell["outputs"][-1]["output_type"]
        for cell in cells
        if cell["outputs"]
    }
    assert raised == {False: "execute_result", True: "error"}
    assert "ipykernel_" not in tool.NOTEBOOK.read_text(encoding="utf-8")
