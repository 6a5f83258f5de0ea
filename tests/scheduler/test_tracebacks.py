"""How exceptions are shown that are more than one: causes, groups, and what answers for itself."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]
from typing import Any

import pytest
from typing_extensions import deprecated

from kernbench.scheduler import tracebacks, user_traceback


def shown(make: Callable[[], BaseException]) -> str:
    try:
        raise make()
    except BaseException as error:
        return user_traceback(error)


def test_a_cause_that_was_never_raised_is_shown() -> None:
    """What a pool of processes raises has its worker's traceback so."""

    def make() -> BaseException:
        error = ValueError("of the worker")
        error.__cause__ = RemoteTraceback("worker.py, line 3, in work")
        return error

    text = shown(make)
    assert (
        text.index("worker.py, line 3, in work") < text.index("direct cause") < text.index("ValueError: of the worker")
    )


def test_causes_in_a_circle_are_shown_once() -> None:
    def make() -> BaseException:
        first, second = ValueError("first"), KeyError("second")
        first.__cause__, second.__cause__ = second, first
        return first

    text = shown(make)
    assert text.count("ValueError: first") == text.count("KeyError: 'second'") == 1


def test_of_a_long_chain_the_last_ones_are_shown() -> None:
    def make() -> BaseException:
        error: BaseException | None = None
        for number in range(10 * tracebacks.MOST_OF_A_CHAIN):
            each = ValueError(f"<{number}>")
            each.__cause__ = error
            error = each
        assert error is not None
        return error

    text = shown(make)
    assert text.startswith("(exceptions before these are left out)")
    assert text.count("ValueError: <") == tracebacks.MOST_OF_A_CHAIN
    assert text.endswith("ValueError: <999>\n")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.11 has groups of exceptions")
def test_what_a_group_holds_is_shown_with_its_lines() -> None:
    group: Any = vars(__import__("builtins"))["ExceptionGroup"]

    def failed(number: int) -> BaseException:
        try:
            raise KeyError(number)
        except KeyError as error:
            return error

    def make() -> BaseException:
        return group("several", [failed(1), group("inner", [failed(2)])])

    lines = shown(make).splitlines()
    assert "ExceptionGroup: several (2 sub-exceptions)" in lines
    assert "  | KeyError: 1" in lines
    assert "  |   | KeyError: 2" in lines
    assert sum(line.endswith("raise KeyError(number)") for line in lines) == 2


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.11 has groups of exceptions")
def test_a_group_that_holds_what_it_has_caused_ends() -> None:
    group: Any = vars(__import__("builtins"))["ExceptionGroup"]

    def make() -> BaseException:
        error = ValueError("within")
        found: BaseException = group("round", [error])
        error.__cause__ = found
        return found

    assert shown(make).count("ValueError: within") == 1


class Silent(Exception):
    """Whatever it is asked, it ends the program."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(0)


class Unnamed(type):
    """A class that does not say what it is."""

    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no module")

    def __repr__(cls) -> str:
        raise RuntimeError("no words")


class Nameless(Exception, metaclass=Unnamed):
    """See :class:`Unnamed`."""


@pytest.mark.parametrize("kind", [Silent, Nameless], ids=["attributes", "class"])
def test_one_that_breaks_what_looks_at_it_has_its_line_and_its_cause(kind: type[Exception]) -> None:
    def make() -> BaseException:
        error = kind("words")
        vars(BaseException)["__cause__"].__set__(error, ValueError("before it"))
        return error

    text = shown(make)
    assert "ValueError: before it" in text
    assert "raise make()" in text
    assert f"{type.__dict__['__qualname__'].__get__(kind)}: words" in text


def test_what_calls_a_deprecated_function_of_torchs_is_no_line_of_the_program() -> None:
    @deprecated("as of now", category=DeprecationWarning)
    def fails() -> None:
        raise ValueError("in it")

    with pytest.warns(DeprecationWarning, match="as of now"), pytest.raises(ValueError, match="in it") as caught:
        fails()
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert [tracebacks.is_programs(each) for each in frames] == [True, False, True]
