"""The notebook of the documentation, ``docs/notebook.ipynb``: its cells are run, and it holds what they show.

    python docs/tools/notebook.py            run the cells, and write what they show
    python docs/tools/notebook.py --check    exit 1 if a cell fails that should not, or shows something else

nbclient runs it in a kernel of ipykernel, as an editor would. What differs from run to run (a kernel's process, times of
cells, the text form of what has a form for notebooks) is not kept. A cell with the tag ``raises-exception`` has to raise.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parents[1] / "notebook.ipynb"


def executed(path: Path = NOTEBOOK) -> Any:
    """The notebook with what its cells show now. Raises :class:`nbclient.exceptions.CellExecutionError`."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(path.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute(env=environment)
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
                         "language_info": {"name": "python"}}  # fmt: skip
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            if "text/html" in output.get("data", ()):
                output.data["text/plain"] = re.match(r"\w+", output.data["text/plain"])[0]
            if output.output_type == "error":
                output.evalue = ""  # its lines are in the traceback
    return notebook


def text_of(notebook: Any) -> str:
    """Text of the file."""
    import nbformat

    return nbformat.writes(notebook) + "\n"


def main(arguments: list[str]) -> int:
    """The command line of above; returns the exit code."""
    wanted = text_of(executed())
    if "--check" not in arguments:
        NOTEBOOK.write_text(wanted, encoding="utf-8")
    elif NOTEBOOK.read_text(encoding="utf-8") != wanted:
        print(f"{NOTEBOOK.name} shows something else now: run python docs/tools/notebook.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
