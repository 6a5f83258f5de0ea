"""Options as fields of a frozen dataclass: a field is the row of a table, and a record the values of all of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kernbench.errors import ConfigError
from kernbench.options.kinds import ValueKind

_ROW = "kernbench.option"


@dataclass(frozen=True)
class Option:
    """A row: what is known of one option.

    Attributes:
        name: of the argument, in Python.
        kind: what it may be.
        default: what it is where it is not given.
        about: what it does, in sentences.
        flags: its names on the command line of ``kernbench run``; none: it is not there.
        metavar: what its value is called there.
        variable: of the environment, that says it where the command line does not.
        alone: what it is where its flag stands without a value; None: it has to have one.
        many: its flag may be repeated.
        shown: the default in words.
        mark: it is among the arguments that the mark ``world_size`` names itself.
        output: it says what is printed or written, and changes nothing of what runs.
        none: None may be given, too.
    """

    name: str
    kind: ValueKind
    default: Any = None
    about: str = ""
    flags: tuple[str, ...] = ()
    metavar: str | None = None
    variable: str | None = None
    alone: str | None = None
    many: bool = False
    shown: str | None = None
    mark: bool = False
    output: bool = False
    none: bool = False

    def read(self, value: object) -> Any:
        """The value that is meant by what was given. Raises ValueError or TypeError for what it cannot be."""
        if value is None and (self.none or self.default is None):
            return None
        return self.kind.read(value)

    @property
    def is_switch(self) -> bool:
        """Whether its flags have no value."""
        return isinstance(self.default, bool) or "/" in "".join(self.flags)

    def words(self, value: Any) -> list[str]:
        """What says so on the command line."""
        flag, *_ = self.flags
        if self.is_switch:
            yes, _, no = flag.partition("/")
            return [yes if value else no]
        if isinstance(value, Mapping):
            return [f"{flag}={key}:{each}" for key, each in value.items()]
        return [f"{flag}={each}" for each in (value if self.many else [value])]


def option(kind: ValueKind, default: object, about: str, *flags: str, **known: Any) -> Any:
    """A field of a record."""
    return field(default=default, metadata={_ROW: Option("", kind, default, about, flags, **known)})


def again(record: type, name: str, **differs: Any) -> Any:
    """The field of a record that this one extends, with what is different."""
    row = replace(next(each for each in options_of(record) if each.name == name), **differs)
    return field(default=row.default, metadata={_ROW: row})


def options_of(record: Any) -> tuple[Option, ...]:
    """The table behind a record, in its order."""
    return tuple(replace(each.metadata[_ROW], name=each.name) for each in fields(record))


class Checked:
    """A record whose values are what they may be. Raises :class:`ConfigError` for the first that is not."""

    def __post_init__(self) -> None:
        for row in options_of(type(self)):
            value = getattr(self, row.name)
            try:
                object.__setattr__(self, row.name, row.read(value))
            except (TypeError, ValueError):
                known = "; a Topology is a handle's topology_obj" if type(value).__name__ == "Topology" else ""
                raise ConfigError(f"{row.name}={value!r}: expected {row.kind.takes}{known}") from None


def changed(values: object) -> dict[str, Any]:
    """Of a record, the options that are not at their defaults, but those of what is printed or written."""
    rows = [row for row in options_of(type(values)) if not row.output]
    return {row.name: value for row in rows if (value := getattr(values, row.name)) != row.default}


def command_line(values: object, names: Collection[str] | None = None) -> list[str]:
    """Of a record, the words of ``kernbench run`` that say the same; of ``names``, these alone."""
    given = changed(values)
    rows = [row for row in options_of(type(values)) if row.flags and row.name in given]
    return [word for row in rows if names is None or row.name in names for word in row.words(given[row.name])]
