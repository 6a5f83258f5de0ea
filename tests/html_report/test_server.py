"""A run over HTTP: what its state says, that looking changes nothing, and how it ends."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kernbench
from kernbench.cli import app
from kernbench.html_report import server as report_server
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
    *others, asks = [row["phase"] for row in run["rows"]]
    assert others == ["waiting"] * 2
    assert asks in (
        "waiting",
        "running",
    )  # for the answer to this question: the server may be asked before that is seen
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
    ("localhost", "/", 200), ("127.0.0.1:1", "/", 200), ("[::1]", "/?x", 200), ("else.example", "/", 421),
    ("else.example", "/state.json", 421), ("[", "/", 421), ("", "/", 421), ("localhost", "/no", 404), ("localhost", "//[", 404),
    ("localhost", "/../../etc/passwd", 404),
])  # fmt: skip
def test_who_is_answered(server: ReportServer, name: str, path: str, status: int) -> None:
    connection = http.client.HTTPConnection(server.address.split("/")[2], timeout=60)
    connection.request("GET", path, headers={"Host": name})
    answer = connection.getresponse()
    assert answer.status == status
    assert (answer.headers["X-Frame-Options"], answer.headers["X-Content-Type-Options"]) == ("DENY", "nosniff")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    connection.close()


class Scripts(HTMLParser):
    """The texts of a page's scripts that run, as a browser finds them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._runs = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._runs = tag == "script" and dict(attrs).get("type") != "text/plain"

    def handle_data(self, data: str) -> None:
        if self._runs:
            self.found.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._runs = False


def test_a_page_runs_its_own_scripts_alone(server: ReportServer) -> None:
    with urlopen(server.address, timeout=60) as answer:
        policy, page = answer.headers["Content-Security-Policy"], Scripts()
        page.feed(answer.read().decode())
    sums = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in page.found]
    assert len(sums) == 3
    allowed = " ".join(f"'sha256-{each}'" for each in sums)
    assert f"script-src {allowed};" in policy


_HOSTILE = (
    b"", b"\n", b"\x00\xff\n\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.0\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffff", b"GET " + b"/" * 100_000,
    b"GET / HTTP/1.0\r\n" + b"X: " + b"y" * 100_000, b"GET / HTTP/1.0\r\n" + b"X: y\r\n" * 1000, b"\x16\x03\x01\x02\x00\x01",
)  # fmt: skip


def asked(server: ReportServer, text: bytes) -> bytes:
    """What the server answers to bytes after which nothing more comes; nothing, if it only hangs up."""
    with socket.create_connection(("127.0.0.1", int(server.address.split(":")[2][:-1])), timeout=60) as end:
        found = b""
        try:
            end.sendall(text)
            end.shutdown(socket.SHUT_WR)
            while part := end.recv(1 << 16):
                found += part
        except OSError:
            pass
    return found


@pytest.mark.parametrize("text", _HOSTILE, ids=range(len(_HOSTILE)))
def test_bytes_that_are_no_request_are_refused(
    server: ReportServer, text: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = asked(server, text)
    if text.startswith(b"GET / HTTP/1.0\r\nHost: localhost\r\nT"):  # a body that is not read
        assert answer.startswith(b"HTTP/1.0 200")
    else:
        assert b" 200 " not in answer
    assert got(server, "state.json")
    assert capfd.readouterr().err == ""


@given(st.binary(max_size=200), st.sampled_from((b"", b"GET ", b"GET / HTTP/1.0\r\n")))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_comes_the_server_stays(server: ReportServer, text: bytes, begin: bytes) -> None:
    asked(server, begin + text)
    assert got(server, "state.json")


def test_connections_that_ask_nothing_are_bounded_and_ended(
    server: ReportServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred that connect and send a byte: no more threads than there may be connections, and in the end room again."""
    monkeypatch.setattr(report_server, "PATIENCE", 0.5)
    port, before = int(server.address.split(":")[2][:-1]), threading.active_count()
    slow = []
    try:
        for _ in range(100):
            end = socket.create_connection(("127.0.0.1", port), timeout=60)
            end.send(b"G")
            slow.append(end)
            assert threading.active_count() - before <= report_server.CONNECTIONS
        for end in slow:  # each is answered that the server is busy, or hears the end
            with suppress(ConnectionResetError):
                assert end.recv(1 << 10)[:12] in (b"", b"HTTP/1.0 503")
        assert got(server, "state.json")
    finally:
        for end in slow:
            end.close()


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
    """A viewer has the page open."""
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
