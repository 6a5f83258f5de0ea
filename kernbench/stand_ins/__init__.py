"""Packages that exist only as builds for CUDA, by name: their public functions on torch's own operations.

``kernbench run --stand-in flash_attn`` lets a program import one that is not installed. Values are those of the package's
definition; time is that of torch's operations, whose attention is priced as the real kernels are.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import Distribution, DistributionFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from kernbench.errors import ConfigError

VERSIONS = {"flash_attn": "2.8.3"}
"""The stand-ins, and the release whose functions they have."""

TOLD = "KERNBENCH_STAND_INS"
"""The environment variable that tells the processes of a command which packages they can import: their names, with commas."""


def stand_in_for(error: BaseException) -> str | None:
    """What to say of an import that has failed: of a package that has a stand-in, or of a name that the stand-in lacks."""
    whole = (getattr(error, "name", None) or "") if isinstance(error, ImportError) else ""
    name = whole.partition(".")[0]
    if name not in VERSIONS:
        return None
    folder = Path(__file__).with_name(name)
    if isinstance(error, ImportError) and folder in Path(error.path or "").parents:
        stands_in = any(isinstance(each, _Finder) and each.name == name for each in sys.meta_path)
        with nullcontext() if stands_in else standing_in([name]):
            return f"what the stand-in for {whole} has is {_names_of(importlib.import_module(whole))}"
    if not isinstance(error, ModuleNotFoundError) or importlib.util.find_spec(name) is not None:
        return None
    return f"{name} is not installed: kernbench run --stand-in {name} has its public functions, on torch's operations"


@contextmanager
def standing_in(names: Iterable[str]) -> Iterator[None]:
    """For the length of a block, these packages can be imported, and are found by searches for their releases; also by
    processes that are started within it and join a simulation.

    Raises:
        ConfigError: there is no such stand-in, or the package is installed.
    """
    finders = []
    for name in names:
        if name not in VERSIONS:
            raise ConfigError(f"--stand-in {name}: there is none; there are: {', '.join(VERSIONS)}")
        if importlib.util.find_spec(name) is not None:
            raise ConfigError(f"--stand-in {name}: it is installed, so it is what the program imports: leave this out")
        finders.append(_Finder(name))
    sys.meta_path[:0] = finders
    before = os.environ.get(TOLD)
    if finders:
        os.environ[TOLD] = ",".join([*filter(None, [before]), *(finder.name for finder in finders)])
    try:
        yield
    finally:
        for finder in finders:
            sys.meta_path.remove(finder)
        if before is not None:
            os.environ[TOLD] = before
        elif finders:
            os.environ.pop(TOLD, None)
        for loaded in [each for each in sys.modules if each.partition(".")[0] in {finder.name for finder in finders}]:
            del sys.modules[loaded]


def stand_in_as_told(names: str) -> None:
    """In a process that joins: let it import these packages, the value of :data:`TOLD`, unless its Python has them."""
    for name in names.split(","):
        if name in VERSIONS and importlib.util.find_spec(name) is None:
            sys.meta_path.insert(0, _Finder(name))


def _names_of(module: ModuleType) -> str:
    """The public names that a stand-in's module has of the package."""
    package = module.__name__.partition(".")[0]
    names = [
        name for name, value in vars(module).items()
        if not name.startswith("_") and (home := str(getattr(value, "__module__", ""))).partition(".")[0] == package
        and "._" not in home
    ]  # fmt: skip
    return ", ".join(sorted(names))


class _StandInLoader(SourceFileLoader):
    """Executes a module of a stand-in, which says of a name that it has not what it has."""

    def exec_module(self, module: ModuleType) -> None:
        """See importlib."""
        super().exec_module(module)

        def missing(name: str) -> Any:
            raise AttributeError(
                f"the stand-in for {module.__name__} has no {name}; what it has is {_names_of(module)}",
                name=name,
                obj=module,
            )

        vars(module).setdefault("__getattr__", missing)


class _Finder(DistributionFinder):
    """Finds one stand-in, as a package and as an installed release."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._folder = Path(__file__).with_name(name)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of the package and its modules. Raises ModuleNotFoundError for one that it has not, with those that it has."""
        if fullname == self.name:
            return importlib.util.spec_from_file_location(
                fullname, self._folder / "__init__.py", submodule_search_locations=[str(self._folder)],
                loader=_StandInLoader(fullname, str(self._folder / "__init__.py")),
            )  # fmt: skip
        if not fullname.startswith(f"{self.name}."):
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec is None or spec.origin is None:
            modules = sorted(
                ".".join(each.relative_to(self._folder.parent).with_suffix("").parts).removesuffix(".__init__")
                for each in self._folder.rglob("*.py")
                if each.name == "__init__.py" or not each.name.startswith("_")
            )
            raise ModuleNotFoundError(
                f"the stand-in for {self.name} has no {fullname}; what it has is {', '.join(modules)}", name=self.name
            )
        spec.loader = _StandInLoader(fullname, spec.origin)
        return spec

    def find_distributions(self, context: Any = None) -> Iterator[Distribution]:
        """Of the release, for a caller that asks for its version."""
        wanted = getattr(context, "name", None)
        if wanted is None or wanted.replace("-", "_").lower() == self.name:
            yield _Release(self.name)


class _Release(Distribution):
    def __init__(self, name: str) -> None:
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSIONS[name]}\n",
            "top_level.txt": f"{name}\n",
        }

    def read_text(self, filename: str) -> str | None:
        """A file of the release's metadata."""
        return self._texts.get(filename)

    def locate_file(self, path: Any) -> Path:
        """Where a file of the release is."""
        return Path(__file__).parent / path
