"""Looking at threads while some end, and the garbage collector wants to run."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import kernbench
from kernbench.scheduler.thread_frames import current_frames, frame_of_thread, handled_by_thread

PROGRAM = """
import gc, sys, threading, time
from kernbench.scheduler.thread_frames import current_frames as look
{look}
gc.set_threshold(1)
gc.callbacks.append(lambda *_: time.sleep(0.0005))  # another thread runs, which may be about to end
gate = threading.Event()
waiting = [threading.Thread(target=gate.wait) for _ in range(20)]
for thread in waiting:
    thread.start()

def start_and_end():
    while not gate.is_set():
        threading.Thread(target=int).start()

starter = threading.Thread(target=start_and_end)
starter.start()
for _ in range(200):
    look()
gate.set()
starter.join()
print("through")
"""


def test_nothing_is_collected_while_the_interpreter_holds_its_list_of_threads() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(look="")], capture_output=True, text=True, timeout=100, check=False
    )
    assert (ended.stdout, ended.stderr) == ("through\n", "")


def test_python_is_asked_in_one_place() -> None:
    package = Path(kernbench.__file__).parent
    files = [path for path in package.rglob("*.py") if "sys._current_" in path.read_text()]
    assert [path.name for path in files] == ["thread_frames.py"]


def test_what_a_thread_does() -> None:
    ready, over, own = threading.Event(), threading.Event(), threading.get_ident()

    def handle() -> None:
        try:
            raise KeyError("of the thread")
        except KeyError:
            ready.set()
            over.wait()

    thread = threading.Thread(target=handle)
    assert frame_of_thread(thread.ident) is None
    thread.start()
    ready.wait()
    frame, handled = frame_of_thread(thread.ident), handled_by_thread(thread.ident)
    assert own in current_frames()
    over.set()
    thread.join()
    assert frame is not None
    assert isinstance(handled, KeyError)
    assert handled_by_thread(own) is None
