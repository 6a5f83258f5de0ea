"""A system file in a few words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

_SIPS = "{count: 8, device: sip, topology: ring_1d, link: {bandwidth: 64 GB/s, latency: 40 ns}}"


@pytest.fixture
def system_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a system file from its ``sips`` (flow style) and further lines of the ``system`` mapping."""

    def write(rest: str = "", *, sips: str = _SIPS) -> Path:
        path = tmp_path / "mine.yaml"
        path.write_text(f"system:\n  sips: {sips}\n" + (f"  {rest}\n" if rest else ""))
        return path

    return write
