"""YAML descriptions read into pydantic models, with complaints that name file, line and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from kernbench.errors import ConfigError
from kernbench.input_files import shortened, shown_path
from kernbench.suggestions import nearest
from kernbench.topology.document import Document
from kernbench.topology.problems import Problem, describe, raise_problems
from kernbench.topology.yaml_files import read_document

Model = TypeVar("Model", bound=BaseModel)


def read_spec(path: Path, model: type[Model], *, list_as: str = "") -> Model:
    """The validated contents of one YAML file; ``list_as``: the key that a list at the top is taken for.

    Raises:
        ConfigError: everything that is wrong with it, each with file, line, key path and what was expected.
    """
    document = read_document(path, list_as=list_as)
    problems = list(document.problems)
    if not problems:
        try:
            return model.model_validate(document.data)
        except ValidationError as error:
            problems = [_problem(model, document, item) for item in error.errors(include_url=False)]
    raise_problems(problems, title=str(path))
    raise AssertionError("a file that fails has at least one problem")  # pragma: no cover


def check_json(data: object, model: type[Model], path: str | Path) -> Model:
    """The validated contents of a JSON file. Raises ConfigError, of one line, that names the first five that are wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[:5]
        places = [".".join(map(shortened, each["loc"])) or "the file" for each in first]
        wrong = "; ".join(f"{place}: {shortened(each['msg'], 200)}" for place, each in zip(places, first, strict=True))
        raise ConfigError(f"{shown_path(path)}: {wrong}") from None


def _problem(root: type[BaseModel], document: Document, error: Any) -> Problem:
    loc = error["loc"]
    mark, kind = document.mark(loc), error["type"]
    if kind == "extra_forbidden":
        known = list(_fields_at(root, loc[:-1]))
        close = nearest(str(loc[-1]), known)
        return Problem(mark, "unknown key", f"one of {', '.join(known)}", f"did you mean `{close}`?" if close else "")
    if kind == "missing":
        field = _fields_at(root, loc[:-1]).get(str(loc[-1]))
        return Problem(mark, "missing", (field and field.description) or "a value")
    value: Any = document.data
    for key in loc:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            break
    return Problem(mark, describe(value), shortened(error["msg"].removeprefix("Input should be "), 200))


def _fields_at(model: type[BaseModel], loc: tuple[str | int, ...]) -> dict[str, Any]:
    """The fields of the model that describes the mapping at ``loc``."""
    current: Any = model
    for key in loc:
        if isinstance(key, int):
            continue
        field = current.model_fields.get(key)
        current = _model_in(field.annotation) if field else None
        if current is None:
            return {}
    return dict(current.model_fields)


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)
