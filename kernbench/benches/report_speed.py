"""How large a report is, how soon it opens, and how smoothly it moves: with a million operations, in a real browser.

    python -m kernbench.benches.report_speed [--operations N] [--ranks N] [--json FILE]

The operations are those of a training step, again and again: products and elementwise kernels beside all-reduces, launched by
the ranks' hosts. *jittered* ones all take different times, which is what a page can least make small; *equal* ones repeat. The
browser has no window and no GPU: it draws with the processor. Both reports are written and opened in turns; a figure is the
least over the rounds, of the frames' median or best tenth. Times are of the host (not virtual).
"""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import click

from kernbench.benches.harness.speed_command import SpeedRun, speed_options
from kernbench.benches.harness.turns import GROUPS, WALL, Comparison, Outcome, Samples, seconds
from kernbench.html_report import source_of_trace, write_report
from kernbench.trace.reading import TraceFile
from kernbench.trace.spans import HOST, Span

_LAYER = (
    ("addmm.default", "gemm", 40e-6), ("gelu.default", "math", 8e-6), ("addmm.default", "gemm", 40e-6),
    ("native_layer_norm.default", "math", 6e-6), ("add.Tensor", "math", 5e-6),
)  # fmt: skip
_PER_LAYER = 2 * len(_LAYER) + 2
"""Operations of a rank in a layer: kernels, what launches them, and an all-reduce with its launch."""

NAME = "report_speed"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

_MEASURE = """<script>
(async () => {
  while (document.documentElement.dataset.open !== "yes") await new Promise((done) => setTimeout(done, 5));
  const opened = performance.now(), { run, timeline } = window.report, told = { opened_ms: opened, spans: run.type.length };
  const frames = async (name, begin, share, way) => {
    timeline.look(begin, begin + run.length * share);
    await new Promise(requestAnimationFrame);
    const took = [];
    for (let i = 0; i < 60; i++) {
      const first = performance.now();
      timeline.pan(way);
      await new Promise(requestAnimationFrame);
      took.push(performance.now() - first);
    }
    took.sort((a, b) => a - b);
    told[`${name}, median frame`] = 1000 / took[30];
    told[`${name}, best tenth of frames`] = 1000 / took[6];
  };
  for (const [view] of timeline.views().views) {
    timeline.show(view);
    await frames(`${view}: pan half of it`, 0, 0.5, 0.008);
    await frames(`${view}: pan 1/50 of it`, 0, 0.02, 0.1);
    await frames(`${view}: pan 1/5000 of it`, run.length / 3, 0.0002, 0.1);
  }
  await fetch("/told", { method: "POST", body: JSON.stringify(told) });
})();
</script>"""


def spans_of(operations: int, ranks: int, jitter: float) -> Iterator[Span]:
    """About so many operations and launches, of ranks that meet in an all-reduce behind each layer."""
    draw = random.Random(0)
    free = [0.0] * ranks
    for layer in range(max(operations // (ranks * _PER_LAYER), 1)):
        for rank in range(ranks):
            at = free[rank]
            for name, kind, length in _LAYER:
                took = length * (1 + jitter * draw.random())
                yield Span(rank, rank, HOST, f"launch {name}", "launch", at, at + 4e-6)
                yield Span(
                    rank,
                    rank,
                    "compute",
                    name,
                    kind,
                    at + 4e-6,
                    at + 4e-6 + took,
                    1 << 20,
                    {},
                    (0.8 * took, 1.3 * took),
                )
                at += 4e-6 + took
            yield Span(rank, rank, HOST, "launch all_reduce", "launch", at, at + 4e-6)
            free[rank] = at + 4e-6
        end = max(free) + 30e-6 * (1 + jitter * draw.random())
        for rank in range(ranks):
            detail = {"op": "all_reduce", "group": "world", "sequence": layer}
            yield Span(rank, rank, "comm", "all_reduce", "collective", free[rank], end, 1 << 20, detail)
            free[rank] = end


def measured(page: Path, browser: str) -> dict[str, float]:
    """What a browser reports of a page that it opens from a server on this machine."""
    told: dict[str, float] = {}
    arrived = threading.Event()
    body = page.read_bytes().replace(b"</body>", _MEASURE.encode() + b"</body>")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            told.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()
            arrived.set()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as profile:
        command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={profile}",
                   "--window-size=1400,1000", f"http://127.0.0.1:{server.server_port}/"]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            if not arrived.wait(300):
                raise click.ClickException(f"{browser} told nothing of {page}")
        finally:
            process.terminate()
            process.wait(30)
            server.shutdown()
    return told


def once(name: str, jitter: float, operations: int, ranks: int, browser: str | None) -> dict[str, float]:
    """Write a report and open it: seconds and bytes, by the name of the figure."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        source = source_of_trace(TraceFile(name, tuple(spans_of(operations, ranks, jitter)), {}), name)
        found = {"written": seconds(lambda: write_report(page, source))(), "size": float(page.stat().st_size)}
        told = {} if browser is None else measured(page, browser)
    told.pop("spans", None)
    for label, value in told.items():
        found[label.removesuffix("_ms")] = value / 1e3 if label.endswith("_ms") else 1 / value
    return {f"{name}: {label}": value for label, value in found.items()}


def comparison(name: str) -> Comparison:
    """A figure's unit, and what it should be at most: 3 s to open, 30 frames a second."""
    if name.endswith("size"):
        return Comparison(name, "MiB", dict)
    if name.endswith(("written", "opened")):
        return Comparison(name, "s", dict, limit=3.0 if name.endswith("opened") else None)
    return Comparison(name, "ms", dict, limit=1e3 / 30 if name.endswith("median frame") else None)


def in_turns(speed: SpeedRun, operations: int, ranks: int, browser: str | None) -> list[Outcome]:
    """Write and open both reports in turns, four times and on until the budget's seconds are over; print."""
    samples: dict[str, Samples] = {}
    end, rounds = WALL() + speed.budget.seconds, 0
    while rounds < GROUPS or (WALL() < end and rounds < speed.budget.rounds):
        for name, jitter in (("equal", 0.0), ("jittered", 0.3)):
            for figure, value in once(name, jitter, operations, ranks, browser).items():
                samples.setdefault(figure, Samples()).values.append(value)
        rounds += 1
    found = [
        Outcome(comparison(figure), ("kernbench",), {"kernbench": each})
        for figure, each in samples.items()
        if not speed.only or any(part in figure for part in speed.only)
    ]
    speed.tell(NAME, found)
    return found


@click.command(name=NAME, help=__doc__)
@click.option("--operations", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option("--ranks", type=click.IntRange(1), default=64, show_default=True)
@speed_options
def main(speed: SpeedRun, operations: int, ranks: int) -> None:
    """Write reports of a million operations, and open them."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        click.echo("# no browser on this machine: writing only")
    in_turns(speed, operations, ranks, browser)


if __name__ == "__main__":
    main()
