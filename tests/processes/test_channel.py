"""Exceptions on their way between processes."""

from __future__ import annotations

import copyreg
from collections.abc import Iterator

import pytest

from kernbench.errors import KernbenchError
from kernbench.processes.channel import portable, restored
from kernbench.simulation.ranks.failures import place_of


class Odd(Exception):
    """Its constructor takes something else than its ``args``."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} and {right}")
        self.both = (left, right)


def _odd(*both: int) -> Odd:
    return Odd(*both)


def _made_without_constructor(cls: type[BaseException], args: tuple[object, ...]) -> BaseException:
    error = cls.__new__(cls)
    error.args = args
    return error


@pytest.fixture
def registered(request: pytest.FixtureRequest) -> Iterator[None]:
    """Reducers as tblib registers them, where the parameter is true, and one for :class:`Odd`."""
    before = copyreg.dispatch_table.copy()
    if request.param:
        for kind in (SystemExit, FileNotFoundError, ImportError):
            copyreg.pickle(kind, lambda error: (_made_without_constructor, (type(error), error.args)))
    copyreg.pickle(Odd, lambda error: (_odd, error.both))
    yield
    copyreg.dispatch_table.clear()
    copyreg.dispatch_table.update(before)


@pytest.mark.parametrize("registered", [False, True], indirect=True)
@pytest.mark.usefixtures("registered")
def test_an_exception_arrives_whole_whatever_a_library_has_registered() -> None:
    ended = restored(portable(SystemExit(3)))
    assert isinstance(ended, SystemExit)
    assert ended.code == 3
    missing = restored(portable(FileNotFoundError(2, "No such file", "it.txt")))
    assert isinstance(missing, FileNotFoundError)
    assert (missing.errno, missing.filename) == (2, "it.txt")
    absent = restored(portable(ImportError("none", name="package")))
    assert isinstance(absent, ImportError)
    assert absent.name == "package"
    odd = restored(portable(Odd(1, 2)))  # only its registered reducer can make it
    assert isinstance(odd, Odd)
    assert odd.both == (1, 2)


def test_one_that_cannot_travel_arrives_in_words() -> None:
    class Local(Exception):
        """Of a function: no other process finds it."""

    arrived = restored(portable(Local("why")))
    assert isinstance(arrived, KernbenchError)
    assert type(arrived).__name__ == "Local"
    assert str(arrived) == "why"
    assert type(restored(portable(arrived))).__name__ == "Local"


def test_where_it_was_raised_arrives_with_it() -> None:
    for kind in (SystemExit, ValueError):
        with pytest.raises(kind) as raised:
            exec(compile(f"\n\nraise {kind.__name__}(3)", "/program.py", "exec"))
        assert place_of(restored(portable(raised.value))) == place_of(raised.value) == "/program.py:3 in <module>"
