"""Names of serving engines' requests, which draw them at random."""

from __future__ import annotations

import re
from collections import Counter


class RequestNames:
    """What requests are called in reports: the same in each run, where the engine's own names are not.

    Args:
        drawn: what of a name the engine draws at random.
    """

    def __init__(self, drawn: re.Pattern[str]) -> None:
        self._drawn = drawn
        self._of: dict[str, str] = {}
        self._given: Counter[str] = Counter()

    def of(self, request: str) -> str:
        """The name of a request that the engine knows by that: the first of a name has it, others have it with their number."""
        name = self._of.get(request)
        if name is None:
            name = self._drawn.sub("", request) or "request"
            self._given[name] += 1
            count = self._given[name]
            name = self._of[request] = name if count == 1 else f"{name} ({count})"
        return name

    def forget(self, request: str) -> None:
        """It has ended."""
        self._of.pop(request, None)
