"""The documentation site: ``make site``.

Pages are the Markdown files that one also reads in the repository; ``tests/docs`` has run their examples, and what they show is
what was printed. Sphinx reads them where they are, so that a link leads to the same page here and there; a link that leads
nowhere is a warning, and a warning is an error. The reference is made from the docstrings. README is the first page.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from kernbench import __version__  # noqa: E402

project = "kernbench"
copyright = "2026, kernbench contributors"
version = release = __version__

root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "docs/*.ipynb", "adr/*.md"]
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # tests/docs has run the notebook, too

autodoc_default_options = {"members": True, "show-inheritance": True, "member-order": "bysource"}
autodoc_typehints_format = "short"
autodoc_inherit_docstrings = False  # torch's
autodoc_preserve_defaults = True
autodoc_class_signature = "separated"
napoleon_use_ivar = True  # attributes are told once, also those that a class describes by itself

html_theme = "furo"
html_title = f"kernbench {release}"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["wide.css"]
highlight_language = "none"  # of blocks that name no language

CONTENTS = {
    "Programs": [
        "docs/tour", "docs/notebook", "docs/options",
        "docs/versions", "docs/distributed", "docs/processes", "docs/programs", "docs/runtime", "docs/triton",
        "docs/symmetric_memory", "docs/tensor_parallel", "docs/compile", "docs/real_size", "docs/serving", "docs/memory",
        "docs/order", "docs/bugs", "docs/reliability",
    ],
    "Machines": ["docs/systems", "docs/collectives", "docs/ccl_author_guide"],
    "Times": ["docs/trace", "docs/profiler", "docs/report", "docs/cost_models", "docs/accuracy", "docs/limits"],
    "Studies": ["docs/testing", "docs/benches", "docs/speed", "docs/sweep", "docs/what_if", "docs/precompile", "docs/autotune"],
    "The house": ["docs/stability", "docs/architecture", "docs/plugins", "CONTRIBUTING", "adr/README", "CHANGELOG"],
    "Reference": ["docs/site/reference"],
}  # fmt: skip
"""The order of pages, beside the text: part to pages."""


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the order of pages to the two pages that have one here and not in the repository."""
    if page == root_doc:
        for part, pages in CONTENTS.items():
            source[0] += _contents(pages, part)
    elif page == "adr/README":
        source[0] += _contents(sorted(path.stem for path in (ROOT / "adr").glob("[0-9]*.md")), "")


def _contents(pages: list[str], caption: str) -> str:
    head = f":hidden:\n:caption: {caption}\n" if caption else ":hidden:\n"
    return "\n\n```{toctree}\n" + head + "\n" + "\n".join(pages) + "\n```\n"


def add_index(app: Sphinx, exception: Exception | None) -> None:
    """Web servers show ``index.html``."""
    if exception is None:
        shutil.copyfile(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_lexer("output", TextLexer)  # what an example prints
    app.connect("source-read", add_contents)
    app.connect("build-finished", add_index)
