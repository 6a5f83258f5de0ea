"""A run over HTTP: what its state says, that looking changes nothing, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner

import kernbench
from kernbench.cli import app
from kernbench.html_report.live import live_state
from kernbench.html_report.server import ReportServer
from kernbench.trace import write_trace
from tests.html_report.conftest import Browser

_PROGRAM = """
import os, sys
import torch
import torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.ones(64, 64, device="cuda")
dist.all_reduce(x @ x)
print(int(x.sum().item()))
if "fail" in sys.argv and dist.get_rank() == 1:
    raise ValueError("<b>of rank 1</b>")
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(_PROGRAM)
    return str(path)


@pytest.fixture
def server() -> Iterator[ReportServer]:
    with ReportServer("127.0.0.1", 0) as made:
        yield made


def got(server: ReportServer, path: str) -> Any:
    with urlopen(server.address + path, timeout=60) as answer:
        return answer.read()


def told(events: Any) -> dict[str, Any]:
    """The next event."""
    line = events.readline()
    assert events.readline() == b"\n"
    found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
    return found


def body(rank: int, world_size: int, ctx: Any, look: Any) -> None:
    ctx.distributed.init_process_group("nccl")
    x = ctx.ones((256, 1024))
    if rank == world_size - 1:
        look()
    ctx.distributed.all_reduce(x)
    ctx.distributed.barrier()


def test_ranks_that_wait_say_for_whom(server: ReportServer) -> None:
    seen: list[dict[str, Any]] = []
    with kernbench.simulate() as ctx:
        server.watch(ctx.simulation)
        ctx.multiprocessing.spawn(
            body, args=(3, ctx, lambda: seen.append(json.loads(got(server, "state.json")))), nprocs=3
        )
        last = live_state(ctx.simulation)
    (state,) = seen
    run = state["run"]
    assert state["status"] == "running"
    assert (run["alive"], run["ranks"], run["world"], run["begun"]) == (3, 3, 3, 0)
    (missing,) = run["missing"]
    assert (missing["there"], missing["missing"]) == (2, [2])
    assert [row["phase"] for row in run["rows"]] == ["waiting", "waiting", "running"]
    assert [row["waits_for"] for row in run["rows"]] == [[2], [2], []]
    assert "test_server.py" in run["rows"][0]["doing"]
    assert run["rows"][0]["memory"]["used"] == 256 * 1024 * 4
    assert (last["alive"], last["begun"], last["missing"]) == (0, 2, [])
    assert [row["phase"] for row in last["rows"]] == ["done"] * 3


def test_events_come_until_the_end_and_then_there_is_the_report(server: ReportServer) -> None:
    assert b"kernbench" in got(server, "")
    with urlopen(server.address + "events", timeout=60) as events:
        assert told(events)["status"] == "starting"
        server.summing_up()
        while (status := told(events)["status"]) == "starting":
            pass
        assert status == "summing up"
        server.reported("<p>größer</p>")
        server.finish()
        while (status := told(events)["status"]) == "summing up":
            pass
        assert status == "ended"
        assert events.readline() == b""
    assert got(server, "").decode() == "<p>größer</p>"


def test_closing_ends_who_follows() -> None:
    with ReportServer("127.0.0.1", 0) as server:
        events = urlopen(server.address + "events", timeout=60)
        assert told(events)["status"] == "starting"
        server.fail("no room")
        while (state := told(events))["status"] == "starting":
            pass
        assert (state["status"], state["failure"]) == ("failed", "no room")
    assert events.read() == b""
    server.close()


def test_the_page_in_a_browser(browser: Browser, server: ReportServer) -> None:
    with kernbench.simulate() as ctx:
        server.watch(ctx.simulation)

        def look() -> None:
            shown = server.state()["run"]
            assert [row["phase"] for row in shown["rows"]] == ["waiting", "waiting", "running"]

        ctx.multiprocessing.spawn(body, args=(3, ctx, look), nprocs=3)
        server.fail("no room <i>here</i>")
        page = browser(server.address)
        assert "no room &lt;i&gt;here&lt;/i&gt;" in page
        assert "allocated, at most 1 MiB, of" in page
        assert page.count('<tr class="done">') == 3
        server.reported("<p id='report'>a report</p>")
        server.finish()
        assert "a report" in browser(server.address)


@pytest.mark.parametrize(("name", "path", "status"), [
    ("localhost", "/", 200), ("127.0.0.1:1", "/", 200), ("else.example", "/", 421), ("localhost", "/no", 404),
])  # fmt: skip
def test_who_is_answered(server: ReportServer, name: str, path: str, status: int) -> None:
    connection = http.client.HTTPConnection(server.address.split("/")[2], timeout=60)
    connection.request("GET", path, headers={"Host": name})
    assert connection.getresponse().status == status
    connection.close()


def test_a_port_in_use_is_an_error_that_says_what_to_do() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(kernbench.KernbenchError, match=r"in use\. Give --port another, or 0"):
            ReportServer("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(kernbench.KernbenchError, match=r"--host no\.such\.host\.invalid"):
        ReportServer("no.such.host.invalid", 0)


def test_a_trace_is_the_same_when_somebody_looks(tmp_path: Path) -> None:
    def run(name: str, watched: ReportServer | None) -> bytes:
        with kernbench.simulate() as ctx:
            if watched is not None:
                watched.watch(ctx.simulation)
            look = (lambda: None) if watched is None else (lambda: got(watched, "state.json"))
            ctx.multiprocessing.spawn(body, args=(3, ctx, look), nprocs=3)
            write_trace(ctx, tmp_path / name)
        return (tmp_path / name).read_bytes()

    with ReportServer("127.0.0.1", 0) as server, following(server):
        looked = run("looked.json", server)
    assert looked == run("alone.json", None)


@contextmanager
def following(server: ReportServer) -> Iterator[None]:
    """Somebody has the page open."""
    events = urlopen(server.address + "events", timeout=60)
    thread = threading.Thread(target=events.read, daemon=True)
    told(events)
    thread.start()
    try:
        yield
    finally:
        server.fail("over")
        thread.join()


@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("fail",), 1)])
def test_the_command_has_the_exit_code_and_writes_the_report(
    program: str, tmp_path: Path, arguments: tuple[str, ...], code: int
) -> None:
    report = tmp_path / "report.html"
    result = CliRunner().invoke(app, [
        "report", "serve", "--port", "0", "--exit-when-done", "--nproc-per-node", "2", "--report", str(report), program,
        *arguments,
    ])  # fmt: skip
    assert result.exit_code == code, result.output
    assert "http://127.0.0.1:" in result.output
    assert ("&lt;b&gt;of rank 1" in report.read_text()) is bool(arguments)


def test_ctrl_c_ends_it_and_the_report_is_served_until_then(program: str) -> None:
    command = [sys.executable, "-m", "kernbench", "report", "serve", "--port", "0", program]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        try:
            address = process.stderr.readline().split()[1]
            with urlopen(address + "events", timeout=60) as events:
                while told(events)["status"] != "ended":
                    pass
            with urlopen(address, timeout=60) as page:
                assert b"kernbench-data" in page.read()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        finally:
            process.kill()
