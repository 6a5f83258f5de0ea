"""Serves a page over HTTP: of a run while it lasts, and then the report that the run came to.

A thread for each connection, from Python's own ``http.server``. They look at the run, at most every :data:`PERIOD` seconds and
for at most a tenth of the time, and only while a viewer has the page open. Changes go to the page as server-sent events,
each of which is the whole state, so one that is missed does not matter. ADR 0149.

    /             the page
    /state.json   the state, once
    /events       the state, again and again, until the run has ended

What a connection may do to the machine is bounded: there are at most :data:`CONNECTIONS` at a time, one has :data:`PATIENCE`
seconds to say what it wants, and as long to take each part of the answer. A page may run its own scripts and ask this server,
nothing else, and no other page may frame it or read it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import ipaddress
import json
import re
import socket
import socketserver
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from time import monotonic
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kernbench.errors import ConfigError
from kernbench.html_report.live import live_state
from kernbench.html_report.page import filled
from kernbench.scheduler.watchdog import PROGRESS_THREAD
from kernbench.simulation.simulation import Simulation

PERIOD = 0.5
"""Seconds of real time between two looks at a run."""

CONNECTIONS = 64
"""Connections at a time; one that comes besides is answered that the server is busy."""

PATIENCE = 10.0
"""Seconds of real time that a connection has to send its request, and that it may let an answer wait."""

_SHARE = 10  # a look may take one such part of the time
_GRACE = 0.3  # seconds that pages have to hear the end
_SCRIPTS = ("words.js", "frame.js", "live.js")
_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_BUSY = b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class ServedPage(NamedTuple):
    """A page as it is sent.

    Attributes:
        body: HTML, UTF-8.
        policy: its Content-Security-Policy (W3C, level 3): its own inline scripts, by their hashes, and no others.
    """

    body: bytes
    policy: str

    @classmethod
    def of(cls, html: str) -> ServedPage:
        """The page of this HTML."""
        body = html.encode()
        sums = (base64.b64encode(hashlib.sha256(text).digest()).decode() for text in _SCRIPT.findall(body))
        scripts = " ".join(f"'sha256-{each}'" for each in sums) or "'none'"
        return cls(
            body,
            f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        )


class ReportServer:
    """Serves one run, or a page, from when it is made until it is closed.

    Args:
        host: name or address of this machine to listen on.
        port: 0 for one that is free.

    Attributes:
        address: of the page, a URL.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(self, host: str, port: int) -> None:
        self._changed = threading.Condition()
        self._number = 0
        self._status: dict[str, object] = {"status": "starting"}
        self._look: Callable[[], dict[str, Any]] | None = None
        self._begin = monotonic()
        self._seen: tuple[float, float, dict[str, Any]] | None = None
        self._looks = threading.Lock()
        self._page = ServedPage.of("")
        self._report: ServedPage | None = None
        self._open = 0
        self._closed = False
        self._server = _listening(host, port, partial(_Answer, self))
        self._local = _is_local(self._server.server_address[0])
        name = f"[{host}]" if ":" in host else host
        self._names = {host.lower(), "localhost"}
        self.address = f"http://{name}:{self._server.server_address[1]}/"
        self.waits_for_run("a run")
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name=PROGRESS_THREAD, daemon=True
        )
        self._thread.start()

    def __enter__(self) -> ReportServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # -- what the run says ---------------------------------------------------------------------------------------------

    def waits_for_run(self, title: str) -> None:
        """A run is to come."""
        self._page = ServedPage.of(filled("live.html", _SCRIPTS, title, ""))

    def watch(self, simulation: Simulation) -> None:
        """A run begins; it is shown from now on."""
        self._begin = monotonic()
        self._look = partial(live_state, simulation)
        self._tell({"status": "running"})

    def summing_up(self) -> None:
        """The program has ended; what is left is to make its report."""
        self._tell({"status": "summing up"})

    def reported(self, page: str) -> None:
        """The run has a report, HTML; it is not looked at any more."""
        self._report = ServedPage.of(page)
        self._last_look()

    def finish(self) -> None:
        """The run has ended, and all that it had is given back: its report, if there is one, is the page from now on."""
        self._page = self._report or self._page
        self._tell({"status": "ended"})

    def fail(self, text: str) -> None:
        """There is no report, because of ``text``."""
        self._last_look()
        self._tell({"status": "failed", "failure": text})

    def wait(self) -> None:
        """Serve until KeyboardInterrupt, which this raises."""
        while True:  # not for ever at once: a signal that comes just before this thread falls asleep does not wake it
            threading.Event().wait(PERIOD)

    def close(self) -> None:
        """Serve nothing any more. Who has the page open hears how things stand at the end. Idempotent."""
        self._look = None
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._open, timeout=_GRACE)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _last_look(self) -> None:
        look, self._look = self._look, None
        with self._looks:
            if look is not None:
                self._seen = (monotonic(), 0.0, look())

    def _tell(self, status: dict[str, Any]) -> None:
        with self._changed:
            self._status = status
            self._number += 1
            self._changed.notify_all()

    # -- what connections ask ------------------------------------------------------------------------------------------

    @property
    def page(self) -> ServedPage:
        """What is shown now."""
        return self._page

    def state(self) -> dict[str, Any]:
        """How things are; looked at again if it is time."""
        with self._looks:
            look, now = self._look, monotonic()
            if look is not None and (self._seen is None or now >= self._seen[1]):
                found = look()
                took = monotonic() - now
                self._seen = (now, now + max(PERIOD / 2, took * _SHARE), found)
            when, run = (self._begin, {}) if self._seen is None else (self._seen[0], self._seen[2])
        return {**self._status, "elapsed": when - self._begin, "run": run}

    def next_change(self, seen: int, seconds: float) -> int:
        """Wait for a change after the one of number ``seen``, for ``seconds`` at most; the number of the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._number != seen, timeout=seconds)
            return self._number

    @property
    def over(self) -> bool:
        """Whether nothing changes any more."""
        return self._closed or self._status["status"] in ("ended", "failed")

    def follows(self, more: int) -> None:
        """So many ``more`` (or fewer) connections follow the run."""
        with self._changed:
            self._open += more
            self._changed.notify_all()

    def knows(self, name: str | None) -> bool:
        """Whether a request to the host ``name`` is meant for this one: a page of another site, whose name leads here, may
        not read what only this machine is to see."""
        if not self._local:
            return True
        try:
            host = (urlsplit(f"//{name}").hostname or "").lower() if name else ""
        except ValueError:  # half of an IPv6 address, say
            return False
        return host in self._names or _is_local(host)


def _is_local(address: Any) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Threads that only look (:mod:`kernbench.scheduler.watchdog`)."""

    allow_reuse_address = True
    request_queue_size = CONNECTIONS  # where it is full, a client tries again after seconds
    daemon_threads = True
    block_on_close = False

    def __init__(self, family: socket.AddressFamily, address: Any, answer: Any) -> None:
        self.address_family = family
        self._lock = threading.Lock()
        self._open: dict[Any, float | None] = {}
        """Connections, and until when each has to have sent its request; None: it has."""
        super().__init__(address, answer)

    def process_request(self, request: Any, client_address: object) -> None:
        """As its mixin, with a name for the thread, and not for more connections than there may be."""
        with self._lock:
            busy = len(self._open) >= CONNECTIONS
            if not busy:
                self._open[request] = monotonic() + PATIENCE
        if busy:
            with contextlib.suppress(OSError):
                request.send(_BUSY, socket.MSG_DONTWAIT)
            self.shutdown_request(request)
            return
        threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name=PROGRESS_THREAD, daemon=True
        ).start()

    def shutdown_request(self, request: Any) -> None:
        """As its base; the connection is over."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def has_asked(self, request: object) -> None:
        """A connection has sent its request."""
        with self._lock:
            if request in self._open:
                self._open[request] = None

    def service_actions(self) -> None:
        """In the thread that listens, now and then: end connections that take too long to say what they want."""
        now = monotonic()
        with self._lock:
            for request, until in self._open.items():
                if until is not None and now > until:
                    with contextlib.suppress(OSError):
                        request.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it

    def handle_error(self, request: object, client_address: object) -> None:
        """The client has gone, or its request is malformed: not reported."""


def _listening(host: str, port: int, answer: object) -> _Server:
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]  # fmt: skip
        return _Server(family, address, answer)
    except socket.gaierror as error:
        raise ConfigError(f"--host {host}: {error.strerror}; expected an address of this machine") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise ConfigError(
            f"cannot serve on port {port} of {host}: {reason[:1].lower()}{reason[1:]}. Give --port another, or 0 for one that "
            "is free"
        ) from None


_NOTHING = "default-src 'none'; frame-ancestors 'none'"
_GUARDS = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
)
"""Headers of every answer: no other page frames it, or reads it as a script or a picture."""


class _Answer(BaseHTTPRequestHandler):
    """One connection."""

    timeout = PATIENCE
    _policy = _NOTHING

    def __init__(self, run: ReportServer, *args: Any) -> None:
        self._run = run
        super().__init__(*args)

    def do_GET(self) -> None:
        """See the module."""
        run = self._run
        self.server.has_asked(self.connection)  # type: ignore[attr-defined]
        if not run.knows(self.headers.get("Host")):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "this server has another name")
            return
        path = self.path.partition("?")[0]
        if path == "/":
            page = run.page
            self._send("text/html; charset=utf-8", page.body, page.policy)
        elif path == "/state.json":
            self._send("application/json", json.dumps(run.state()).encode())
        elif path == "/events":
            self._follow()
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _begin(self, kind: str, policy: str = _NOTHING) -> None:
        self._policy = policy
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")

    def end_headers(self) -> None:
        """Of every answer, errors among them: what a browser may do with it."""
        for name, value in (("Content-Security-Policy", self._policy), *_GUARDS):
            self.send_header(name, value)
        super().end_headers()

    def _send(self, kind: str, body: bytes, policy: str = _NOTHING) -> None:
        self._begin(kind, policy)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _follow(self) -> None:
        run = self._run
        self._begin("text/event-stream")
        self.end_headers()
        run.follows(1)
        try:
            seen = -1
            while True:
                over = run.over
                self.wfile.write(f"data: {json.dumps(run.state())}\n\n".encode())
                if over:
                    break
                seen = run.next_change(seen, PERIOD)
        finally:
            run.follows(-1)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""
