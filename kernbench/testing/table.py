"""The table of what tests took: memory and duration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROW: pytest.StashKey[dict[str, object]] = pytest.StashKey()
"""What a test adds to its row of the table."""

RAISED: pytest.StashKey[BaseException | None] = pytest.StashKey()
"""What a test has failed with, until it is torn down."""


def show_table(rows: Sequence[tuple[str, dict[str, Any]]], shown: int, terminal: Any) -> None:
    """Print the ``shown`` longest of the tests in ``rows`` (name, what it took)."""
    terminal.section("kernbench: memory and duration")
    terminal.write_line(f"{'seconds':>8} {'host MiB':>8} {'device MiB':>10}  {'devices':12} test")
    for nodeid, row in sorted(rows, key=lambda row: -row[1]["seconds"])[:shown]:
        device = f"{row['device'] / 2**20:.1f}" if "device" in row else "-"
        devices = ",".join(map(str, row.get("devices", ()))) or "-"
        terminal.write_line(f"{row['seconds']:8.2f} {row['host'] / 2**20:+8.1f} {device:>10}  {devices:12} {nodeid}")
    if len(rows) > shown:
        terminal.write_line(f"... and {len(rows) - shown} more (--kernbench-table N)")


def resident_bytes() -> int:
    """Memory of this process, bytes; 0 where that is not known."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
