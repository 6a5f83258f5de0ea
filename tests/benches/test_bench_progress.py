"""The progress bar appears on a terminal only, and never in the output."""

from __future__ import annotations

import io
import sys

import pytest

from kernbench.benches.harness.progress import ProgressBar


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("terminal", [False, True])
def test_the_bar_is_for_terminals(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = _Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with ProgressBar(2, "measuring") as bar:
        bar.advance()
        bar.echo("a row")
        bar.advance()
    assert ("measuring" in stream.getvalue()) is terminal
    assert capsys.readouterr().out == "a row\n"
