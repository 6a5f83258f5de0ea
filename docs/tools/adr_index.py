"""Decision records: their form, and the index of them, ``adr/README.md``.

    python docs/tools/adr_index.py            write the index
    python docs/tools/adr_index.py --check    exit 1, and say why, if a record has not the form or the index is not current

A record is ``adr/NNNN-its-title.md``:

    # NNNN. Its title

    - Status: accepted        (or: superseded by NNNN)
    - Date: 2026-11-20

    ## Context                    why there was something to decide
    ## Decision                   what was decided
    ## Alternatives               only where it helps: what else was weighed, and why not
    ## Consequences               what follows, the unpleasant too
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "adr"
SECTIONS = (["Context", "Decision", "Consequences"], ["Context", "Decision", "Alternatives", "Consequences"])

_HEAD = re.compile(
    r"# (?P<number>\d{4})\. (?P<title>.+)\n\n"
    r"- Status: (?P<status>accepted|superseded by (?P<by>\d{4}))\n"
    r"- Date: (?P<date>\d{4}-\d\d-\d\d)\n\n"
)
_SECTION = re.compile(r"^## (.+)\n+(?=(.))", re.MULTILINE)

HEADING = """\
# Decisions

One page per decision that a newcomer would question: what there was to decide, what was decided, what follows from
it. A decision that no longer holds stays, and names the one that replaced it. `python docs/tools/adr_index.py` writes
this page and says what form a record has; [CONTRIBUTING](../CONTRIBUTING.md) says when to write one. A number that is
missing was a note on speed: those stand at the head of their modules.

| | decision | status | date |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Record:
    """One decision: its file and what stands at its head. ``by``: number of the record that supersedes it, if any."""

    path: Path
    number: str
    title: str
    status: str
    by: str | None
    date: str

    @property
    def row(self) -> str:
        """Its line of the index."""
        return f"| {self.number} | [{self.title}]({self.path.name}) | {self.status} | {self.date} |\n"


def read(path: Path) -> Record:
    """The record in a file. Raises :class:`ValueError` that says in which way it has not the form."""
    text = path.read_text(encoding="utf-8")
    head = _HEAD.match(text)
    if head is None:
        raise ValueError(
            f"{path.name}: expected '# NNNN. Title', a blank line, '- Status: ...', '- Date: ...', a blank line"
        )
    if path.name.partition("-")[0] != head["number"]:
        raise ValueError(f"{path.name}: its title has the number {head['number']}")
    date.fromisoformat(head["date"])
    sections = [found[1] for found in _SECTION.finditer(text)]
    if sections not in SECTIONS or "#" in {found[2] for found in _SECTION.finditer(text)}:
        raise ValueError(
            f"{path.name}: its sections are {sections}; expected {' or '.join(map(str, SECTIONS))}, none empty"
        )
    return Record(path, head["number"], head["title"], head["status"], head["by"], head["date"])


def read_all(folder: Path = FOLDER) -> list[Record]:
    """Every record of a folder, by number. Raises :class:`ValueError` for the first that is not as it should be."""
    records = [read(path) for path in sorted(folder.glob("[0-9]*.md"))]
    numbers = [record.number for record in records]
    for record in records:
        if numbers.count(record.number) > 1:
            raise ValueError(f"{record.path.name}: its number is another record's too")
        if record.by is not None and record.by not in numbers:
            raise ValueError(f"{record.path.name}: superseded by {record.by}, which is not there")
    return records


def index(folder: Path = FOLDER) -> str:
    """Text of the index."""
    return HEADING + "".join(record.row for record in read_all(folder))


def main(arguments: list[str]) -> int:
    """The command line of above; returns the exit code."""
    page = FOLDER / "README.md"
    try:
        wanted = index()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if "--check" not in arguments:
        page.write_text(wanted, encoding="utf-8")
    elif not page.is_file() or page.read_text(encoding="utf-8") != wanted:
        print("adr/README.md is not current: run python docs/tools/adr_index.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
