"""Types of arguments that are names of what there is: a shell completes them, and nothing heavy is imported before."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem


class Name(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """A text that a shell completes.

    Args:
        name: of the type, for the help.
        known: gives the names that there are; called only when a shell asks.
        files: whether a file's path may stand there, too.
    """

    def __init__(self, name: str, known: Callable[[], Iterable[str]], *, files: bool = False) -> None:
        self.name = name
        self._known = known
        self._files = files

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Any text: whether there is such a thing is said by what reads it."""
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin so, and files where they may stand."""
        items = [CompletionItem(each) for each in self._known() if each.startswith(incomplete)]
        return [*items, CompletionItem(incomplete, type="file")] if self._files else items


class Names(click.ParamType):  # type: ignore[type-arg]  # generic since click 8.3
    """Several names with commas between them, of which a shell completes the last.

    Args:
        each: of one name.
    """

    def __init__(self, each: Name) -> None:
        self.name = f"{each.name},..."
        self._each = each

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The text as it stands."""
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The whole text, the last name made whole; a file only where it is the first."""
        before, comma, last = incomplete.rpartition(",")
        items = self._each.shell_complete(ctx, param, last)
        if not comma:
            return items
        return [CompletionItem(f"{before},{item.value}") for item in items if item.type == "plain"]


def _systems() -> list[str]:
    from kernbench.topology.shipped import added_systems, shipped_systems

    return [*shipped_systems(), *added_systems()]


def _devices() -> list[str]:
    from kernbench.topology.shipped import shipped_devices

    return shipped_devices()


def _fabrics() -> list[str]:
    from kernbench.topology.shipped import shipped_fabrics

    return shipped_fabrics()


def _algorithms() -> list[str]:
    """Those of the shipped file and of one in the working directory."""
    from pathlib import Path

    from kernbench.topology.shipped import config_root
    from kernbench.topology.yaml_files import read_document

    entries = [read_document(path).get(("algorithms",)) for path in (config_root() / "ccl.yaml", Path("ccl.yaml"))]
    return list(dict.fromkeys(name for found in entries if isinstance(found, dict) for name in found))


SYSTEM = Name("NAME|FILE", _systems, files=True)
DEVICE = Name("NAME|FILE", _devices, files=True)
FABRIC = Name("NAME|FILE", _fabrics, files=True)
ALGORITHM = Name("NAME", _algorithms)
SYSTEMS = Names(SYSTEM)
