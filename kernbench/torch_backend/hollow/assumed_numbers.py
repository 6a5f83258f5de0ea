"""Python's numbers that were assumed: they print with a mark, and so does what Python computes with them.

They are floats and ints, because torch, numpy and ``json`` take nothing else. C that wants the bare value of one takes it
without a call (``"%f" % x``, ``math.exp``, ``json``), so what becomes of them there is seen to elsewhere: ``sinks`` has the
functions of Python's library, ``marked_source`` the program's own text. Where Python calls a method and wants a bare number
back (``int``, numpy's arrays), the mark ends, and the line is noted. So are lines that compare them, because these steer.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeGuard

import torch

from kernbench.own_files import is_own
from kernbench.simulation.active_simulation import current_simulation
from kernbench.simulation.ranks.locations import callers_location, is_pythons
from kernbench.simulation.values.assumptions import LOST, MARK, STEERED
from kernbench.torch_backend.hollow import numbers_in_tensors
from kernbench.torch_backend.overloads import OpOverload
from kernbench.torch_backend.relies_on import Reliance

RELIES_ON = (
    Reliance("sys._getframe", "the frames of the thread that runs, innermost first"),
    Reliance("torch.serialization", "what `torch.load` may make of a checkpoint", has=("add_safe_globals",)),
)


def with_mark(text: str) -> str:
    """``text``, of a number, with the mark right behind it, in the place of a blank if there is one: columns stay columns."""
    number = text.rstrip(" ")
    after = text[len(number) + 1 :]
    if number == text and number.startswith(" "):
        number = number[1:]
    return number if number.endswith(MARK) else f"{number}{MARK}{after}"


def note(kind: str, entry: str, frame: FrameType | None, answer: str = "") -> None:
    """Note in the simulation what a line does with an assumed number; ``frame``: where to look for the program's line."""
    simulation = current_simulation()
    if simulation is None or simulation.engine.enable_data:
        return
    simulation.assumptions.used(kind, callers_location(frame), entry, simulation.hosts.current().rank, answer)


def _computes(base: type, name: str) -> Callable[..., object]:
    plain = getattr(base, name)

    def method(self: object, *others: object) -> object:
        result = plain(self, *others)
        if result is NotImplemented and type(others[0]) is float:  # which would take the bare value of a whole number
            result = getattr(float, name)(float(bare(self)), *others)
        return marked(result)

    return method


def _ends_mark(base: type, name: str) -> Callable[..., object]:
    """A method that Python calls for a bare number."""
    plain, entry = getattr(base, name), name.strip("_")

    def method(self: object, *others: object) -> object:
        frame = sys._getframe(1)
        if not is_own(frame.f_code.co_filename):
            note(LOST, entry, frame)
        return plain(self, *others)

    return method


_SIGNS = {
    "__lt__": "<",
    "__le__": "<=",
    "__gt__": ">",
    "__ge__": ">=",
    "__eq__": "==",
    "__ne__": "!=",
    "__bool__": "truth",
}


def _steers(base: type, name: str) -> Callable[..., object]:
    plain, sign = getattr(base, name), _SIGNS[name]

    def method(self: object, *others: object) -> object:
        answer, frame = plain(self, *others), sys._getframe(1)
        filename = frame.f_code.co_filename
        if answer is not NotImplemented and not is_own(filename) and not is_pythons(filename):
            note(STEERED, sign, frame, repr(answer))
        return answer

    return method


def _given_back(cls: type, func: OpOverload, types: object, args: object = (), kwargs: object = None) -> object:
    """An operation of torch takes the number: what it gives is assumed too."""
    return numbers_in_tensors.operate(func, bare(args), bare(kwargs or {}))


_TAKES = tuple(
    f"__{side}{name}__"
    for name in ("add", "sub", "mul", "truediv", "pow", "floordiv", "mod", "divmod")
    for side in ("", "r")
)
_ALONE = ("__neg__", "__abs__", "__pos__", "__round__", "__floor__", "__ceil__", "__trunc__", "conjugate")


def _methods(base: Any, *ending: str) -> dict[str, Any]:
    """What a subclass of ``base`` is made of; ``ending``: methods behind which there is no mark."""

    def text(self: object) -> str:
        return with_mark(base.__repr__(self))

    def spec_text(self: object, spec: str) -> str:
        return with_mark(base.__format__(bare(self), spec))

    return {
        "__slots__": (), "__module__": __name__, "__repr__": text, "__str__": text, "__format__": spec_text,
        "__hash__": base.__hash__,
        "real": property(lambda self: self),
        **{name: _computes(base, name) for name in (*_TAKES, *_ALONE)},
        **{name: _steers(base, name) for name in _SIGNS},
        **{name: _ends_mark(base, name) for name in ending},
    }  # fmt: skip


_DISPATCHED: dict[str, object] = {"__torch_function__": classmethod(_given_back)}

AssumedFloat: Any = type(
    "AssumedFloat", (float,), {**_methods(float, "__float__", "__int__", "hex", "as_integer_ratio"), **_DISPATCHED}
)
"""A ``float`` that was assumed."""

AssumedInt: Any = type("AssumedInt", (int,), _methods(int, "__float__", "__int__", "to_bytes"))
"""An ``int`` that was assumed. Torch would not take one that it dispatches for a size (``x.new_empty(n, 4)``)."""

_WrittenInt: Any = type("_WrittenInt", (int,), _DISPATCHED)
"""One that is just being written into a tensor, and dispatched."""


@contextmanager
def as_plain_numbers() -> Iterator[None]:
    """A block in which torch takes them for the numbers that they are: Dynamo, which would trace what is done besides."""
    dispatched = vars(AssumedFloat).get("__torch_function__")
    if dispatched is None:  # in a block of another rank
        yield
        return
    del AssumedFloat.__torch_function__
    try:
        yield
    finally:
        AssumedFloat.__torch_function__ = dispatched


torch.serialization.add_safe_globals([AssumedFloat, AssumedInt])  # a program loads the losses that it has saved

_KINDS: dict[type, Callable[[Any], object]] = {
    AssumedFloat: float.__pos__, AssumedInt: int.__pos__, _WrittenInt: int.__pos__,
}  # fmt: skip
_MARKED = {float: AssumedFloat, int: AssumedInt}


def marked(value: Any) -> Any:
    """``value``, or a list or tuple of values, as numbers that say that they are assumed; what cannot say so stays as it is."""
    kind = type(value)
    if kind is list or kind is tuple:
        return kind(map(marked, value))
    return _MARKED[kind](value) if kind in _MARKED else value


def bare(value: Any) -> Any:
    """The other way round: numbers without marks, also inside of lists, tuples and dicts."""
    match value:
        case float() | int():
            return _KINDS[type(value)](value) if type(value) in _KINDS else value
        case list():
            return list(map(bare, value))
        case tuple():
            return tuple(map(bare, value))
        case dict():
            return {name: bare(each) for name, each in value.items()}
        case slice():
            return slice(bare(value.start), bare(value.stop), bare(value.step))
    return value


def is_marked(value: object) -> bool:
    """Whether a number says that it is assumed."""
    return type(value) in _KINDS


def holds_marked(value: object) -> bool:
    """Whether a value is such a number, or a container of Python's own with one in it."""
    if type(value) in _KINDS:
        return True
    waiting, seen = [value], set()
    while waiting:
        parts = waiting.pop()
        if not isinstance(parts, list | tuple | dict) or id(parts) in seen:
            continue
        seen.add(id(parts))
        parts = parts.values() if isinstance(parts, dict) else parts
        kinds = set(map(type, parts))
        if not _KINDS.keys().isdisjoint(kinds):
            return True
        if any(issubclass(kind, list | tuple | dict) for kind in kinds):
            waiting += parts
    return False


# -- what the program's own text calls in the place of Python (marked_source) ------------------------------------------------

_CONVERSION = re.compile(
    r"%(?:\((?P<key>[^()]*)\))?(?P<how>[#0\- +]*(?:\*|\d+)?(?:\.(?:\*|\d+)?)?)[hlL]?(?P<type>.)", re.S
)
_OF_NUMBERS = frozenset("diouxXeEfFgG")


def of_one_element(value: object) -> TypeGuard[torch.Tensor]:
    """Whether a value is a tensor that is a number to Python."""
    return isinstance(value, torch.Tensor) and value.numel() == 1


def formatted(template: object, values: Any) -> Any:
    """``template % values``: numbers that are assumed have their marks."""
    given = values if type(values) is tuple else values.values() if isinstance(values, Mapping) else (values,)
    if type(template) is not str or not any(is_marked(each) or of_one_element(each) for each in given):
        return template % values
    try:
        text = _converted(template, values)
    except Exception:  # what is wrong with it, Python says
        text = None
    return template % values if text is None else text


def _converted(template: str, values: Any) -> str | None:
    """As ``formatted``, conversion by conversion; None if not all values are wanted."""
    places = iter(values if type(values) is tuple else (values,))
    parts: list[str] = []
    end = 0
    for found in _CONVERSION.finditer(template):
        parts.append(template[end : found.start()])
        end = found.end()
        if found["type"] == "%":
            parts.append("%")
            continue
        stars = [next(places) for _ in range(found["how"].count("*"))]
        value = values[found["key"]] if found["key"] is not None else next(places)
        if found["type"] in _OF_NUMBERS and of_one_element(value):
            value = value.item()
        text = f"%{found['how']}{found['type']}" % (*stars, bare(value) if found["type"] in _OF_NUMBERS else value)
        parts.append(with_mark(text) if found["type"] in _OF_NUMBERS and is_marked(value) else text)
    if not isinstance(values, Mapping) and next(places, None) is not None:
        return None
    return "".join([*parts, template[end:]])


def written(target: Any, value: Any) -> Any:
    """The ``value`` of ``target[...] = value`` and ``target[...] += value``: what is assumed makes a tensor so."""
    return _WrittenInt(value) if type(value) is AssumedInt and isinstance(target, torch.Tensor) else value


def as_float(*args: object) -> object:
    """``float(...)``: of what is assumed, it is too."""
    return _as_number(float, AssumedFloat, args)


def as_int(*args: Any, **kwargs: Any) -> object:
    """``int(...)``, likewise."""
    return int(*args, **kwargs) if kwargs else _as_number(int, AssumedInt, args)


def _as_number(kind: Any, marked_kind: Any, args: tuple[Any, ...]) -> Any:
    if len(args) != 1:
        return kind(*args)
    value = args[0].item() if of_one_element(args[0]) else args[0]
    if isinstance(value, str) and (text := value.rstrip()).endswith(MARK):  # as ``float(f"{loss:.3g}")`` rounds
        with suppress(ValueError):
            return marked_kind(kind(text[: -len(MARK)]))
    return marked_kind(kind(bare(value))) if is_marked(value) else kind(value)
