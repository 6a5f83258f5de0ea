"""Observers that take their events in a process of their own.

What draws, writes over a network or trains a model on the events should not hold up the run. A :class:`Worker` is a process
with one handler object. :meth:`Worker.send` tells it something and never gets an answer, so no late answer can be read
as another call's; :meth:`Worker.call` waits for an answer, and answers to calls that were given up are thrown away by
their number. Whatever goes wrong over there comes back as a value, ``{"error": ..., "kind": "worker_error"}``: a worker
that raised, hangs or died is no reason for a run to fail.

Frames are eight bytes of length and a pickle, over a pair of sockets: the process is started by hand rather than by
``multiprocessing``, which would import the user's ``__main__`` again.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import struct
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from kernbench.plugins.discovery import load_reference
from kernbench.plugins.problems import PluginError, reason, warn
from kernbench.plugins.specs import OBSERVED, Plugin

ERROR_KIND = "worker_error"
_LENGTH = struct.Struct("!Q")
_SEND, _CALL = "send", "call"
_LONGEST_START = 120.0  # host seconds: importing what the handler needs
_LONGEST_END = 10.0


def worker_error(text: str) -> dict[str, str]:
    """What a call answers that could not be answered."""
    return {"error": text, "kind": ERROR_KIND}


def is_worker_error(answer: object) -> bool:
    """Whether an answer says that there is none."""
    return isinstance(answer, dict) and answer.get("kind") == ERROR_KIND


class Worker:
    """A process with one handler.

    Args:
        handler: ``module:name`` or ``path/file.py:name`` of what makes the handler: it is called in the process with
            ``arguments``.
        arguments: can be pickled.
        patience: longest time to wait for the process to take a message (host seconds). One that is slower is ended.

    Raises:
        PluginError: the handler cannot be made.
    """

    def __init__(self, handler: str, *arguments: object, patience: float = 30.0) -> None:
        self.handler = handler
        ours, theirs = socket.socketpair()
        ours.settimeout(patience)
        self._frames = _Frames(ours)
        self._patience = patience
        self._number = 0
        self._gone = ""
        start = f"import sys; sys.path[:] = {sys.path!r}; from kernbench.plugins.worker import main; main({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", start], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        self._end = weakref.finalize(self, _end, ours, self._process)  # also when this process ends
        answer = self._call(None, (handler, arguments), _LONGEST_START)
        if is_worker_error(answer):
            self.close()
            raise PluginError(f"worker {handler}: {answer['error']}")

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it takes messages, as far as is known."""
        return not self._gone

    def send(self, method: str, *arguments: object) -> None:
        """Have the handler's ``method`` called; nothing comes back, neither a result nor an error. Never raises."""
        if not self._gone:
            lost = self._write((_SEND, method, arguments))
            if lost and not self._gone:
                warn(f"worker {self.handler}: a message for {method} is lost: {lost}")

    def call(self, method: str, *arguments: object, timeout: float | None = None) -> Any:
        """The answer of the handler's ``method``, after everything that was sent before.

        ``{"error": ..., "kind": "worker_error"}`` if it raised, has not answered within ``timeout`` (host seconds; default:
        the worker's patience), or is dead. Never raises.
        """
        return self._call(method, arguments, self._patience if timeout is None else timeout)

    def _call(self, method: str | None, arguments: object, timeout: float) -> Any:
        self._number += 1
        lost = self._gone or self._write((_CALL, self._number, method, arguments))
        if lost:
            return worker_error(lost)
        connection = self._frames.connection
        connection.settimeout(timeout)
        try:
            while True:
                number, answer = self._frames.read()
                if number == self._number:
                    return answer
        except TimeoutError:
            return worker_error(f"no answer to {method} within {timeout:g} s")
        except (OSError, EOFError, pickle.UnpicklingError, AttributeError, ImportError) as error:
            self._lose(error)
            return worker_error(self._gone)
        finally:
            if not self._gone:
                connection.settimeout(self._patience)

    def _write(self, message: object) -> str:
        """Send; the reason if that cannot be done."""
        try:
            self._frames.write(message)
        except OSError as error:
            self._lose(error)
            return self._gone
        except Exception as error:  # from pickle, of whatever kind
            return f"it cannot be pickled: {reason(error)}"
        return ""

    def _lose(self, error: BaseException) -> None:
        """It is dead, or so slow that it is no longer waited for."""
        if isinstance(error, TimeoutError):
            self._process.kill()
            self._gone = f"it took no message for {self._patience:g} s and was ended"
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
            code = self._process.poll()
            self._gone = f"it answered nonsense: {reason(error)}" if code is None else f"it has died (exit code {code})"
        self._end()
        warn(f"worker {self.handler}: {self._gone}; the run goes on without it")

    def close(self) -> None:
        """End it when it has taken everything that was sent, at the latest after ten seconds. Idempotent."""
        self._gone = self._gone or "it was closed"
        self._end()


def _end(connection: socket.socket, process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
    try:
        process.wait(_LONGEST_END)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    connection.close()


class WorkerPlugin(Plugin):
    """A plugin whose run hooks are methods of a handler in a worker process.

    The handler has methods called as the hooks, which take the event. They get the events of all simulations that this
    plugin observes, in order. A method ``close()`` is called in the end.

    Args:
        handler, arguments, patience: see :class:`Worker`.
    """

    def __init__(self, handler: str, *arguments: object, patience: float = 30.0) -> None:
        self.name = handler.rpartition(":")[2]
        self.worker = Worker(handler, *arguments, patience=patience)
        wanted = self.worker.call("__hooks__")
        for hook in OBSERVED if is_worker_error(wanted) else wanted:
            setattr(self, hook, _forward(self.worker, hook))

    def call(self, method: str, *arguments: object, timeout: float | None = None) -> Any:
        """Ask the handler; see :meth:`Worker.call`."""
        return self.worker.call(method, *arguments, timeout=timeout)

    def close(self) -> None:
        """End the process when it has taken all events."""
        self.worker.close()


def _forward(worker: Worker, hook: str) -> Callable[..., None]:
    def forward(event: object) -> None:
        worker.send(hook, event)

    forward.__name__ = hook
    return forward


# -- frames ----------------------------------------------------------------------------------------------------------


class _Frames:
    """Messages over a connection. A read that times out half way goes on where it was."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._received = bytearray()

    def write(self, message: Any) -> None:
        data = pickle.dumps(message)
        self.connection.sendall(_LENGTH.pack(len(data)) + data)

    def read(self) -> Any:
        self._receive(_LENGTH.size)
        (length,) = _LENGTH.unpack_from(self._received)
        self._receive(_LENGTH.size + length)
        data = bytes(self._received[_LENGTH.size : _LENGTH.size + length])
        del self._received[: _LENGTH.size + length]
        return pickle.loads(data)

    def _receive(self, size: int) -> None:
        while len(self._received) < size:
            part = self.connection.recv(max(size - len(self._received), 1 << 16))
            if not part:
                raise EOFError("the other side has closed the connection")
            self._received += part


# -- the process -----------------------------------------------------------------------------------------------------


def main(descriptor: int) -> None:
    """The worker process: take messages until the other side is gone."""
    frames = _Frames(socket.socket(fileno=descriptor))
    handler: Any = None
    told: set[str] = set()
    try:
        while True:
            kind, *rest = frames.read()
            if kind == _SEND:
                method, arguments = rest
                answer = _answer(handler, method, arguments)
                if is_worker_error(answer) and method not in told:
                    told.add(method)
                    print(f"kernbench: worker: {method}: {answer['error']}\n{answer['traceback']}", file=sys.stderr)
                continue
            number, method, arguments = rest
            if method is None:
                handler, answer = _make(*arguments)
            else:
                answer = _answer(handler, method, arguments)
            try:
                frames.write((number, answer))
            except OSError:
                raise
            except Exception as error:
                frames.write((number, worker_error(f"the answer of {method} cannot be pickled: {reason(error)}")))
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the run has ended
    finally:
        if callable(close := getattr(handler, "close", None)):
            close()


def _make(reference: str, arguments: tuple[object, ...]) -> tuple[Any, Any]:
    try:
        return load_reference(reference)(*arguments), None
    except Exception as error:
        return None, worker_error(reason(error)) | {"traceback": traceback.format_exc()}


def _answer(handler: object, method: str, arguments: tuple[object, ...]) -> Any:
    try:
        if method == "__hooks__":
            return [hook for hook in OBSERVED if callable(getattr(handler, hook, None))]
        return getattr(handler, method)(*arguments)
    except Exception as error:
        return worker_error(reason(error)) | {"traceback": traceback.format_exc()}
