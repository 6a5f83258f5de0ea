"""A run that is reported, and a browser to open reports in."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kernbench
from kernbench.html_report import source_of_run, write_report
from kernbench.html_report.source import ReportSource
from kernbench.runtime_api.context import RuntimeContext
from kernbench.trace.run_result import result_of
from tests.trace.conftest import layers

Opened = Callable[[Path, str], dict[str, Any]]
Browser = Callable[[str], str]

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")

_WATCH = """<script>
window.wrong = [];
console.error = console.warn = (...words) => wrong.push(words.join(" "));
addEventListener("error", (event) => wrong.push(String(event.message)));
addEventListener("unhandledrejection", (event) => wrong.push(String(event.reason)));
</script>"""

_DRIVE = """<script>
(async () => {
  const told = {};
  try {
    for (let i = 0; i < 2000 && document.documentElement.dataset.open !== "yes" && !wrong.length; i++) {
      await new Promise((done) => setTimeout(done, 10));
    }
    const click = (chart, x, y) => {
      const box = chart.getDom(), { left, top } = box.getBoundingClientRect(), target = box.querySelector("canvas");
      for (const name of ["mousedown", "mouseup", "click"]) {
        target.dispatchEvent(new MouseEvent(name, { bubbles: true, clientX: left + x, clientY: top + y }));
      }
    };
    const press = (element, key) => element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    const { run, timeline } = window.report ?? {};
    DOES
  } catch (error) {
    wrong.push(String(error.stack ?? error));
  }
  const out = document.createElement("pre");
  out.id = "told";
  out.textContent = btoa(encodeURIComponent(JSON.stringify({ ...told, wrong })));
  document.body.append(out);
})();
</script>"""


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """Opens an address in a browser without a window; gives the document as it is in the end."""
    program = next(filter(None, map(shutil.which, _NAMES)), None)
    if program is None:
        pytest.skip(f"no browser on this machine (one of {', '.join(_NAMES)}): the page itself is not opened")
    folder = tmp_path_factory.mktemp("browser")

    def dump(address: str) -> str:
        command = [
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage",
            f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=60000", "--window-size=1280,900", "--dump-dom",
            address,
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, timeout=250, check=False).stdout

    probe = folder / "probe.html"
    probe.write_text("<p id=p></p><script>document.getElementById('p').textContent = 6 * 7 + '!'</script>")
    try:
        found = dump(probe.as_uri())
    except (OSError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"{program} does not run on this machine ({type(error).__name__}): the page itself is not opened")
    if "42!" not in found:
        pytest.skip(f"{program} shows no page on this machine: the report is not opened in it")
    return dump


@pytest.fixture(scope="package")
def opened(browser: Browser) -> Opened:
    """Opens a page in a browser without a window, runs a script in it, and gives what that wrote into ``told``, besides
    ``wrong``: all that the page or the browser complained about."""

    def open_page(page: Path, does: str) -> dict[str, Any]:
        watched = page.with_name(f"watched_{page.name}")
        text = page.read_text(encoding="utf-8")
        watched.write_text(
            text.replace("<head>", "<head>" + _WATCH, 1).replace("</body>", _DRIVE.replace("DOES", does) + "</body>"),
            encoding="utf-8",
        )
        shown = browser(watched.as_uri())
        assert '<pre id="told">' in shown, shown[-2000:]
        from base64 import b64decode
        from urllib.parse import unquote

        told = shown.rpartition('<pre id="told">')[2].partition("</pre>")[0]
        outcome: dict[str, Any] = json.loads(unquote(b64decode(told).decode()))
        return outcome

    return open_page


def source_of(ctx: RuntimeContext, **errors: BaseException) -> ReportSource:
    """What the report of a run is made of; ``errors``: by ``rank0``, ``rank1``, ..."""
    failed = {int(name.removeprefix("rank")): error for name, error in errors.items()}
    return source_of_run(ctx, result_of(ctx.simulation, program="train.py", errors=failed), errors=failed)


@pytest.fixture(scope="package")
def reported() -> Iterator[RuntimeContext]:
    """A context in which four ranks have run, described."""
    with kernbench.simulate(correlation_id="layers") as context:
        context.simulation.describe_operations()
        context.multiprocessing.spawn(layers, args=(4, context), nprocs=4)
        yield context


@pytest.fixture(scope="package")
def page(reported: RuntimeContext, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its report."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, source_of(reported))
    return path
