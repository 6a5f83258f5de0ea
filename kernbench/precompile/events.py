"""Counting what Triton's compiler does: how many kernels it compiled, how many it found in its cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class CompileEvent:
    """One call of Triton's compiler.

    Attributes:
        kernel: name of the kernel.
        hash: the entry of Triton's cache.
        hit: True if the entry was there.
        identity: what distinguishes the compiled program: arguments' types, typed constants, attributes, captured values.
    """

    kernel: str
    hash: str
    hit: bool
    identity: str


@dataclass
class CompileCount:
    """What the compiler did inside a :func:`count_compiles` block."""

    events: list[CompileEvent] = field(default_factory=list)

    @property
    def compiled(self) -> int:
        """Kernels that were compiled."""
        return sum(not event.hit for event in self.events)

    @property
    def hits(self) -> int:
        """Kernels that were found in the cache."""
        return sum(event.hit for event in self.events)


@contextmanager
def listening(told: Callable[[object, Any, bool], None]) -> Iterator[None]:
    """Call ``told(source, metadata, cache_hit)`` at each call of Triton's compiler in this process.

    A listener that was there before is called as well.
    """
    from triton import knobs

    before = knobs.compilation.listener

    def listener(*, src: object, metadata: object, metadata_group: object, times: object, cache_hit: bool) -> None:
        told(src, metadata, bool(cache_hit))
        if before is not None:
            before(src=src, metadata=metadata, metadata_group=metadata_group, times=times, cache_hit=cache_hit)

    knobs.compilation.listener = listener
    try:
        yield
    finally:
        knobs.compilation.listener = before


@contextmanager
def count_compiles() -> Iterator[CompileCount]:
    """Count the calls of Triton's compiler in this process. Nested blocks each count."""
    count = CompileCount()

    def note(src: object, metadata: Any, cache_hit: bool) -> None:
        name = str(getattr(src, "name", ""))
        count.events.append(CompileEvent(name, str(metadata["hash"]), cache_hit, _identity(src)))

    with listening(note):
        yield count


def _identity(src: object) -> str:
    """Everything that makes this program another one, with types: ``1``, ``True`` and ``"1"`` are three constants."""
    constants = getattr(src, "constants", {})
    return repr(
        (
            getattr(src, "signature", None),
            [(path, type(value).__qualname__, repr(value)) for path, value in sorted(constants.items())],
            getattr(src, "attrs", None),
            _captured(getattr(src, "fn", None)),
        )
    )


def _captured(kernel: object) -> list[tuple[str, str]]:
    """Plain values that the kernel takes from its enclosing function: build flags of kernels made by a factory."""
    function = getattr(kernel, "fn", None)
    closure, code = getattr(function, "__closure__", None), getattr(function, "__code__", None)
    if not closure or code is None:
        return []
    values = [(name, cell.cell_contents) for name, cell in zip(code.co_freevars, closure, strict=True)]
    return [(name, repr(value)) for name, value in values if not hasattr(value, "params")]
