"""Programs of users as files: found, read and compiled as Python does it, whichever command or process runs them."""

from __future__ import annotations

import os
import pkgutil
import sys
import traceback
import zipfile
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from kernbench.errors import ConfigError


def read_program(path: str | Path) -> bytes:
    """The text of a file. Raises :class:`ConfigError` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"cannot read {str(path) or repr('')}: {error.strerror}") from None


def compiled_program(source: bytes, path: str) -> CodeType:
    """What ``python path`` would execute. Raises :class:`ConfigError` with Python's own words if that is no Python."""
    try:
        code: CodeType = compile(source, path, "exec", dont_inherit=True)  # not this file's __future__
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError) as error:
        words = "".join(traceback.format_exception_only(error)).strip()
        if getattr(error, "filename", None) is None:  # of what is no text, or too deep
            words = f"{path}: cannot be compiled: {words}"
        raise ConfigError(words) from None
    return code


class Source(NamedTuple):
    """What Python executes of a program.

    Attributes:
        text: of the file.
        file: its path; of one in an archive, the archive's and its name there.
        place: what is first on ``sys.path``.
    """

    text: bytes
    file: str
    place: str


def source_of(path: str) -> Source:
    """What ``python path`` executes: a file, or ``__main__.py`` of a folder or a zip archive. Raises :class:`ConfigError`."""
    whole = os.path.abspath(path)
    if path and (os.path.isdir(path) or zipfile.is_zipfile(path)):
        spec = _find_in([whole], "__main__")
        if spec is None or not spec.has_location:
            raise ConfigError(f"cannot run {path}: there is no __main__.py in it")
        return Source(source_of_module(spec), str(spec.origin), whole)
    return Source(read_program(path), whole, os.path.dirname(whole))


def source_of_module(spec: ModuleSpec) -> bytes:
    """The text of a module that has a file. Raises :class:`ConfigError` if it cannot be read."""
    loader: Any = spec.loader
    try:
        return bytes(loader.get_data(spec.origin))
    except OSError as error:
        raise ConfigError(f"cannot read {spec.origin}: {error.strerror or error}") from None


def find_module(name: str) -> ModuleSpec | None:
    """Where the module is that ``python -m name`` runs. Its packages are not imported: each rank does that itself."""
    if not all(name.split(".")):
        return None  # finders of other packages, pytest's say, take it for a name and raise
    here, found = [os.getcwd(), *sys.path], None
    path: Sequence[str] = here
    for end in [at for at, sign in enumerate(name) if sign == "."] + [len(name)]:
        full = name[:end]
        finders = (getattr(finder, "find_spec", None) for finder in sys.meta_path)
        specs = (find(full, None if path is here else path) for find in finders if find is not None)
        found = _find_in(path, full) or next((spec for spec in specs if spec is not None), None)
        if found is None or (end < len(name) and found.submodule_search_locations is None):
            return None
        path = found.submodule_search_locations or ()
    return found


def _find_in(path: Sequence[str], name: str) -> ModuleSpec | None:
    """As ``PathFinder`` does, which would need a namespace package that ``name`` is in to be imported."""
    portions: list[str] = []
    for entry in path:
        finder: Any = pkgutil.get_importer(entry or os.getcwd())
        spec: ModuleSpec | None = None if finder is None else finder.find_spec(name)
        if spec is not None and spec.loader is not None:
            return spec
        portions += (spec and spec.submodule_search_locations) or ()
    if not portions:
        return None
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = portions
    return namespace
