"""From a name or a path to a validated description.

Reading goes in three steps: text to a :class:`Document` (positions kept, ``extends`` resolved), references to device
and fabric files put in place, then one validation of the whole. Everything that is wrong, in all files concerned, is
reported in one :class:`~kernbench.errors.ConfigError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from kernbench.defaults import DEFAULT_SYSTEM
from kernbench.errors import ConfigError
from kernbench.input_files import expanded, resolved, shortened
from kernbench.suggestions import nearest
from kernbench.topology.device import DeviceSpec, Spec
from kernbench.topology.document import Document, Loc
from kernbench.topology.problems import Problem, describe, raise_problems
from kernbench.topology.rules import device_rules, system_rules
from kernbench.topology.shipped import SUFFIXES, find_config
from kernbench.topology.system import FabricSpec, SystemSpec
from kernbench.topology.yaml_files import read_document

_MOST_EXTENDED = 32

FileT = TypeVar("FileT", bound=Spec)


class SystemFile(Spec):
    """Top level of a system file."""

    system: SystemSpec


class DeviceFile(Spec):
    """Top level of a device file."""

    device: DeviceSpec


class FabricFile(Spec):
    """Top level of a fabric file."""

    fabric: FabricSpec


def load_system(name_or_path: str | Path | None = None) -> SystemSpec:
    """The validated system of that shipped name or YAML file; the default system without an argument."""
    return read_system(find_config("systems", name_or_path or DEFAULT_SYSTEM)).validated()


def load_device(name_or_path: str | Path) -> DeviceSpec:
    """The validated device of that shipped name or YAML file. Raises ConfigError listing all that is wrong."""
    document = _read("device", find_config("devices", name_or_path))
    problems = [] if document.problems else device_rules(document, ("device",))
    return _validate(DeviceFile, document, problems, title=str(name_or_path)).device


def load_fabric(name_or_path: str | Path) -> FabricSpec:
    """The validated fabric of that shipped name or YAML file. Raises ConfigError listing all that is wrong."""
    return load_part("fabric", name_or_path, FabricFile).fabric


def load_part(kind: str, name_or_path: str | Path, model: type[FileT]) -> FileT:
    """The validated shipped or given file of another kind (``generation``, ...) whose top level is ``model``."""
    return _validate(model, _read(kind, find_config(f"{kind}s", name_or_path)), (), title=str(name_or_path))


@dataclass(frozen=True)
class SystemSource:
    """A system as its files describe it, before validation.

    Attributes:
        title: the file's name, for complaints.
        text: all that the files say, by which sources are compared.
        plain: the mapping as written (``extends`` resolved, references as names).
    """

    title: str
    text: str
    plain: dict[str, Any] = field(compare=False, repr=False)
    document: Document = field(compare=False, repr=False)

    def validated(self) -> SystemSpec:
        """The system. Raises :class:`ConfigError` listing all that is wrong."""
        return _validate(SystemFile, self.document, system_rules(self.document), title=self.title).system


def read_system(path: Path) -> SystemSource:
    """The description of a system in one file, with the files that it extends and refers to."""
    document = _read("system", path)
    plain = document.copy().data
    if isinstance(document.get(("system",)), dict):
        _resolve_reference(document, ("system", "sips", "device"), "device", path)
        _resolve_reference(document, ("system", "fabric"), "fabric", path)
    return SystemSource(str(path), repr((document.data, document.problems)), plain, document)


def _read(kind: str, path: Path, chain: tuple[Path, ...] = ()) -> Document:
    """One file with the files that it extends beneath it."""
    document = read_document(path)
    body = document.get((kind,))
    if isinstance(body, dict) and "name" not in body:
        body["name"] = path.stem  # also when the file extends another: it is another system
        document.marks[kind, "name"] = document.mark((kind,))
    if isinstance(body, dict):
        _anchor(body, path)
    if "extends" not in document.data:
        return document
    base = document.data.pop("extends")
    mark = document.marks.pop(("extends",))
    if isinstance(body, dict) and "description" not in body:
        body["description"] = f"built on {shortened(base)}"
        document.marks[kind, "description"] = mark
    here = (*chain, resolved(path))
    try:
        if not isinstance(base, str):
            raise ConfigError(f"found {describe(base)}")
        base_path = find_config(f"{kind}s", base, beside=path.parent)
        if resolved(base_path) in here:
            raise ConfigError(f"{base_path} extends itself, by way of {' -> '.join(at.name for at in here)}")
        if len(here) > _MOST_EXTENDED:
            raise ConfigError(f"more than {_MOST_EXTENDED} files extend each other")
    except ConfigError as error:
        document.problems.append(Problem(mark, str(error), f"the name or path of the {kind} to build on"))
        return document
    return document.over(_read(kind, base_path, here))


def _anchor(body: dict[str, object], path: Path) -> None:
    """A generation that is given as a path counts from the file that names it."""
    name = body.get("generation")
    if isinstance(name, str) and name.endswith(SUFFIXES):
        body["generation"] = str(resolved(path.parent / expanded(name)))


def _resolve_reference(document: Document, loc: Loc, kind: str, path: Path) -> None:
    """Replace the name of a device or fabric by its description; an inline one may extend a file."""
    value = document.get(loc)
    inline = document.below(loc) if isinstance(value, dict) else None
    if inline is not None:
        _anchor(inline.data, path)
    if inline is None:
        name = value
    elif "extends" in inline.data:
        name = inline.data.pop("extends")
        inline.marks.pop(("extends",))
    else:
        return
    if not isinstance(name, str):
        return  # missing or malformed: the schema says so
    try:
        target = find_config(f"{kind}s", name, beside=path.parent)
    except ConfigError as error:
        document.problems.append(Problem(document.mark(loc), str(error), f"a shipped {kind}, a path or a mapping"))
        return
    found = _read(kind, target)
    if not isinstance(found.get((kind,)), dict):
        expected = f"one mapping `{kind}`"
        document.problems += found.problems or [Problem(found.mark((kind,)), "missing", expected)]
        document.problems += [] if found.problems else _unknown_top(found, kind)
        return
    body = found.below((kind,))
    body.problems = [*found.problems, *_unknown_top(found, kind)]
    document.graft(loc, body if inline is None else inline.over(body))


def _unknown_top(document: Document, kind: str) -> list[Problem]:
    return [
        Problem(document.mark((key,)), "unknown key", f"one mapping `{kind}`, and `extends`")
        for key in document.data
        if key != kind
    ]


def _validate(model: type[FileT], document: Document, rules: Iterable[Problem], *, title: str) -> FileT:
    """The model of a document. Raises ConfigError with the problems of the text, of the fields and of the rules."""
    problems = list(document.problems)
    if document.data or not problems:
        known = {(problem.mark.file, problem.mark.path) for problem in problems}
        try:
            result = model.model_validate(document.data)
        except ValidationError as error:
            translated = (_translate(model, document, item) for item in error.errors(include_url=False))
            problems += [problem for problem in translated if (problem.mark.file, problem.mark.path) not in known]
        known = {(problem.mark.file, problem.mark.path) for problem in problems}
        problems += [problem for problem in rules if (problem.mark.file, problem.mark.path) not in known]
        if not problems:
            return result
    raise_problems(problems, title=title)
    raise AssertionError("a document that fails has at least one problem")  # pragma: no cover


_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}
_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
}


def _translate(root: type[BaseModel], document: Document, error: Any) -> Problem:
    """A pydantic error in the words of the file's author."""
    loc: Loc = error["loc"]
    kind, context = error["type"], error.get("ctx", {})
    mark, found = document.mark(loc), describe(document.get(loc))
    if kind == "missing":
        return Problem(mark, "missing", _description(root, loc))
    if kind == "extra_forbidden":
        return _unknown_key(root, document, loc)
    if kind == "quantity":
        return Problem(mark, context["found"], context["expected"])
    if kind == "literal_error":
        word = document.get(loc)
        options = context["expected"].replace("'", "")
        close = nearest(word, options.replace(" or ", ", ").split(", ")) if isinstance(word, str) else None
        return Problem(mark, found, options, f"did you mean {close}?" if close else "")
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return Problem(mark, found, f"{words} {context[bound]:g}")
    if kind in _TYPES:
        return Problem(mark, found, _TYPES[kind])
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        target = _model_at(root, loc)
        keys = ", ".join(target.model_fields) if target else ""
        return Problem(mark, found, f"a mapping with the keys {keys}")
    return Problem(mark, found, error["msg"])


def _unknown_key(root: type[BaseModel], document: Document, loc: Loc) -> Problem:
    """An unknown key: the nearest known one beside it, or the place where a key of that name belongs."""
    key, parent = str(loc[-1]), _model_at(root, loc[:-1])
    known = list(parent.model_fields) if parent else []
    close = nearest(key, known)
    if close:
        hint = f"did you mean `{close}`?"
    else:
        elsewhere = sorted(".".join(path) for path in _paths(root) if path[-1] == key)
        hint = f"it belongs at {' or '.join(elsewhere[:3])}" if elsewhere else ""
    return Problem(document.mark(loc), "unknown key", f"one of {', '.join(known)}", hint)


def _description(root: type[BaseModel], loc: Loc) -> str:
    parent = _model_at(root, loc[:-1])
    info = parent.model_fields.get(str(loc[-1])) if parent else None
    if info is not None and info.description:
        return info.description
    target = _model_at(root, loc)
    return f"a mapping with the keys {', '.join(target.model_fields)}" if target else "a value"


def _model_at(root: type[BaseModel], loc: Loc) -> type[BaseModel] | None:
    """The model that describes the mapping at ``loc``."""
    model: type[BaseModel] | None = root
    for key in loc:
        info = model.model_fields.get(str(key)) if model else None
        model = _submodel(info.annotation) if info else None
    return model


def _submodel(annotation: object) -> type[BaseModel] | None:
    options = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return next((option for option in options if isinstance(option, type) and issubclass(option, BaseModel)), None)


def _paths(model: type[BaseModel], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, info in model.model_fields.items():
        yield (*at, name)
        if (below := _submodel(info.annotation)) is not None:
            yield from _paths(below, (*at, name))
