"""``[rank3]`` in front of every line that a rank prints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

TORCHRUN_PREFIX = "[rank{}] "


def require_encodable(stream: Any, text: str) -> None:
    """Raise what Python's own stream raises at the line that prints text which it has no bytes for (``LC_ALL=C``)."""
    encoding = getattr(stream, "encoding", None)
    if encoding is not None and not text.isascii():
        text.encode(encoding, getattr(stream, "errors", None) or "strict")


class RankStream:
    """A text stream that names the writer. Lines come out whole, in the order in which they were finished.

    Args:
        stream: where they go.
        who: the rank that writes; None: no rank to be named.
        prefix: stands before each line of a rank, with ``{}`` for its number.
    """

    def __init__(self, stream: TextIO, who: Callable[[], int | None], prefix: str) -> None:
        self._stream = stream
        self._who = who
        self._prefix = prefix
        self._partial: dict[int, str] = {}
        self._closed: set[int] = set()

    def write(self, text: str) -> int:
        """Hand on whole lines."""
        rank = self._who()
        if rank is None:
            return self._stream.write(text)
        if rank in self._closed:
            raise ValueError("I/O operation on closed file.")
        require_encodable(self._stream, text)
        *lines, rest = (self._partial.get(rank, "") + text).split("\n")
        if lines:
            self._stream.write("".join(f"{self._prefix.format(rank)}{line}\n" for line in lines))
        self._partial[rank] = rest
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write one after the other."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Hand on what there is."""
        self._stream.flush()

    def close(self) -> None:
        """A rank closes what is its own: the others go on."""
        rank = self._who()
        if rank is None:
            self._stream.close()
        else:
            self._closed.add(rank)

    @property
    def closed(self) -> bool:
        """Whether the rank that asks has closed it."""
        return self._stream.closed or self._who() in self._closed

    def finish(self) -> None:
        """Write the lines that their ranks have not ended."""
        for rank, text in sorted(self._partial.items()):
            if text:
                self._stream.write(f"{self._prefix.format(rank)}{text}\n")
        self._partial.clear()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def rank_streams(who: Callable[[], int | None], prefix: str) -> Iterator[None]:
    """In a block, ``sys.stdout`` and ``sys.stderr`` are :class:`RankStream`; without a ``prefix`` they stay as they are."""
    if not prefix:
        yield
        return
    stdout, stderr = sys.stdout, sys.stderr
    streams = [None if each is None else RankStream(each, who, prefix) for each in (stdout, stderr)]
    sys.stdout, sys.stderr = streams
    try:
        yield
    finally:
        sys.stdout, sys.stderr = stdout, stderr
        for stream in streams:
            if stream is not None:
                stream.finish()
