"""A call that a rank in another process has posted says what becomes of it: those under way need not be looked through."""

from __future__ import annotations

from kernbench.processes.posted import PostedOperation


def _posted(said: list[int]) -> PostedOperation:
    return PostedOperation("send", 0, 0, "comm", 0.0, lambda: said.append(1))


def test_it_says_when_it_has_run_and_when_it_has_ended() -> None:
    said: list[int] = []
    op = _posted(said)
    assert not said
    assert (op.executed, op.end, op.done) == (False, None, False)
    op.executed = True
    assert len(said) == 1
    op.resolve(1.0, 2.0)
    assert len(said) == 2
    assert (op.start, op.end, op.done) == (1.0, 2.0, True)


def test_it_says_that_it_has_failed() -> None:
    said: list[int] = []
    op = _posted(said)
    op.fail(ValueError("x"), 3.0)
    assert said
    assert op.done
    assert op.end == 3.0
