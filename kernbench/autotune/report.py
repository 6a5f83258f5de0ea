"""``kernbench run --autotune-report FILE``: what the autotuners of a run chose, as a plugin of that run.

Ranks have a ``__main__`` and module globals of their own, which are gone when they have ended. So each rank is read when
it ends, and the file has every choice once, whichever ranks made it.
"""

from __future__ import annotations

import json
from pathlib import Path

from kernbench.autotune import collect
from kernbench.plugins.specs import Plugin


class AutotuneReport(Plugin):
    """Collects while the run goes on; :meth:`write` writes the file.

    Args:
        path: of the JSON file.
    """

    name = "autotune-report"

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._rows: dict[str, collect.Row] = {}

    def look(self) -> None:
        """Add what the autotuners that are alive now have chosen."""
        for row in collect.collect_autotune_configs():
            self._rows.setdefault(json.dumps(row, sort_keys=True), row)

    def kernbench_rank_ended(self, event: object) -> None:
        """Look before its autotuners go."""
        self.look()

    def kernbench_rank_failed(self, event: object) -> None:
        """Look before its autotuners go."""
        self.look()

    def write(self) -> int:
        """Write the file, whole or not at all. Returns the number of rows."""
        self.look()
        return collect.write_report(self.path, list(self._rows.values()))
