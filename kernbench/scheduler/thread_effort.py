"""How long a thread has had to do something, on a machine that has other things to do."""

from __future__ import annotations

import threading
from pathlib import Path


class Effort:
    """Seconds for which a thread ran, slept or waited: all that pass, but for those in which it was ready and had no processor.

    Where the system does not say (it has no ``schedstat``), all that pass.
    """

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread
        self._delayed = self._look()

    def of(self, seconds: float) -> float:
        """How many of the last ``seconds`` count."""
        before, self._delayed = self._delayed, self._look()
        return max(0.0, seconds - max(0.0, self._delayed - before))

    def _look(self) -> float:
        """For how many seconds it has been ready and has had no processor, since it began."""
        try:
            figures = Path(f"/proc/self/task/{self._thread.native_id}/schedstat").read_text().split()
        except OSError:
            return 0.0
        return int(figures[1]) / 1e9
