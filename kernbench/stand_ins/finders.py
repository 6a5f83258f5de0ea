"""How a program imports what stands in for a package, or for its compiled modules."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from fnmatch import fnmatch
from functools import partial
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from kernbench.stand_ins.table import StandIn, find, names

TAKEN: dict[str, str] = {}
"""What is to be said of stand-ins that a program has imported without naming them, or for another release, by name."""


def names_of(module: ModuleType) -> str:
    """The public names that a stand-in's module has of the package."""
    package = module.__name__.partition(".")[0]
    found = [
        name for name, value in vars(module).items()
        if not name.startswith("_") and (home := str(getattr(value, "__module__", ""))).partition(".")[0] == package
        and "._" not in home
    ]  # fmt: skip
    return ", ".join(sorted(found))


class PackageFinder(DistributionFinder):
    """Finds one stand-in that is imported in a package's place, as a package and as an installed release."""

    def __init__(self, stand_in: StandIn) -> None:
        assert stand_in.folder is not None
        self.name = stand_in.name
        self.stand_in = stand_in
        self._folder = stand_in.folder

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

    def find_distributions(self, context: object = None) -> Iterator[Distribution]:
        """Of the release, for a caller that asks for its version."""
        wanted = getattr(context, "name", None)
        if wanted is None or wanted.replace("-", "_").lower() in (self.name, self.stand_in.distribution):
            yield _Release(self.stand_in)


class CompiledFinder:
    """Finds the compiled modules of one package as modules that define their operators.

    Args:
        stand_in: for the package.
        anyway: whether also where the compiled module itself could be imported.
    """

    def __init__(self, stand_in: StandIn, *, anyway: bool) -> None:
        self.name = stand_in.name
        self.stand_in = stand_in
        self.anyway = anyway

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of a compiled module. Raises ModuleNotFoundError for one without which the package does."""
        if fullname in self.stand_in.absent:
            raise ModuleNotFoundError(f"{fullname} is compiled for CUDA, and has no stand-in", name=fullname)
        if self.stand_in.loaded and fullname.partition(".")[0] == self.name:
            watch_libraries()  # each time: libraries are imported with torch's own names in place
        if fullname in self.stand_in.around or fullname in self.stand_in.observed:
            return _attended(self.stand_in, PathFinder.find_spec(fullname, path))
        if fullname in self.stand_in.bound:
            loader = _BoundLoader(self.stand_in, self.stand_in.bound[fullname], tells=not self.anyway)
            return importlib.util.spec_from_loader(fullname, loader)
        reference = self.stand_in.compiled.get(fullname)
        if reference is None:
            return None
        there = PathFinder.find_spec(fullname, path)
        operators = _OperatorsLoader(self.stand_in, reference, there, anyway=self.anyway)
        return importlib.util.spec_from_loader(fullname, operators, origin=None if there is None else there.origin)


class AutomaticFinder(DistributionFinder):
    """Finds whatever has a stand-in and cannot be imported. It is the last to be asked for packages; their compiled modules are
    found by a :class:`CompiledFinder` of each."""

    name = "auto"

    def __init__(self) -> None:
        self._found: dict[str, PackageFinder] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of a package that nothing else has found, and its modules."""
        package = fullname.partition(".")[0]
        if fullname == package and package not in self._found and package in names():
            stand_in = find(package)
            if stand_in is not None and stand_in.folder is not None and not stand_in.only_by_name:
                self._found[package] = PackageFinder(stand_in)
                tell(stand_in)
        finder = self._found.get(package)
        return None if finder is None else finder.find_spec(fullname, path, target)

    def find_distributions(self, context: object = None) -> Iterator[Distribution]:
        """Of those that have been imported."""
        for finder in self._found.values():
            yield from finder.find_distributions(context)

    @property
    def taken(self) -> set[str]:
        """The packages that it has found."""
        return set(self._found)


def tell(stand_in: StandIn) -> None:
    """A program has imported a stand-in that it was not given by name."""
    TAKEN.setdefault(
        stand_in.name,
        f"{stand_in.name}: its stand-in ({stand_in.release}) was imported, as the package is not here for want of CUDA",
    )


class _OperatorsLoader(Loader):
    """Makes a module whose import defines operators, unless the compiled one can be imported."""

    def __init__(self, stand_in: StandIn, reference: str, there: ModuleSpec | None, *, anyway: bool) -> None:
        self._stand_in = stand_in
        self._reference = reference
        self._there = there
        self._anyway = anyway
        self._real = False

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See importlib."""
        if self._anyway or self._there is None or self._there.loader is None:
            return None
        try:
            module = self._there.loader.create_module(self._there)
        except ImportError:
            tell(self._stand_in)
            return None
        self._real = True
        return module

    def exec_module(self, module: ModuleType) -> None:
        """See importlib."""
        if self._real:
            assert self._there is not None
            assert self._there.loader is not None
            self._there.loader.exec_module(module)
            return
        library = None if self._there is None or self._there.origin is None else Path(self._there.origin)
        if library is None and (place := self._stand_in.placed.get(module.__name__)) is not None:
            package = importlib.util.find_spec(self._stand_in.name)
            folders = () if package is None else package.submodule_search_locations or ()
            library = next((Path(folder, place) for folder in folders), None)
        module.__file__ = str(library or module.__name__)  # a compiled module has one, and loaders print it
        define(self._stand_in, self._reference, library)


class _BoundLoader(Loader):
    """Makes a compiled module's functions, by the names of a module of ours."""

    def __init__(self, stand_in: StandIn, module: str, *, tells: bool) -> None:
        self._stand_in = stand_in
        self._module = module
        self._tells = tells

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See importlib."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """See importlib."""
        ours = importlib.import_module(self._module)
        if self._tells:
            tell(self._stand_in)
        define(self._stand_in, f"{self._module}:operators", None)
        vars(module).update(ours.NAMES)


def _attended(stand_in: StandIn, spec: ModuleSpec | None) -> ModuleSpec | None:
    """A module of the package's Python, with what a stand-in brings for its execution and its observation."""
    if spec is not None and isinstance(spec.loader, SourceFileLoader):
        spec.loader = _AttendedLoader(spec.loader.name, spec.loader.path)
        spec.loader.stand_in = stand_in
    return spec


class _AttendedLoader(SourceFileLoader):
    stand_in: StandIn

    def exec_module(self, module: ModuleType) -> None:
        """Execute it within what :attr:`StandIn.around` has for it, and give it to what :attr:`StandIn.observed` has."""
        from kernbench.plugins.discovery import load_reference

        around, observed = (each.get(self.name) for each in (self.stand_in.around, self.stand_in.observed))
        with nullcontext() if around is None else load_reference(around)(module):
            super().exec_module(module)
        if observed is not None:
            load_reference(observed)(module)


def define(stand_in: StandIn, reference: str, library: Path | None) -> None:
    """Define the operators that a compiled module or library would; its schemas are read in ``library``."""
    from kernbench.plugins.discovery import load_reference

    try:
        release = version(stand_in.name)
    except PackageNotFoundError:
        release = stand_in.release
    package = None if library is None else importlib.util.find_spec(stand_in.name)
    folders = [] if package is None else [Path(each) for each in package.submodule_search_locations or ()]
    operators = load_reference(reference)
    operators.define(
        f"{stand_in.name} {release}", library, (file for folder in folders for file in folder.rglob("*.py"))
    )
    if release != stand_in.release:
        TAKEN[stand_in.name] = (
            f"{stand_in.name}: its stand-in was tested with {stand_in.release}, and {release} is installed"
        )


def load_library(load: Callable[[str], None], path: str) -> None:
    """``torch.ops.load_library``, which ``load`` is: of a library that has a stand-in in effect, its operators are defined."""
    for finder in [each for each in sys.meta_path if isinstance(each, CompiledFinder)]:
        for pattern, reference in finder.stand_in.loaded.items():
            if fnmatch(path, f"*/{pattern}"):
                if not finder.anyway:
                    try:
                        load(path)
                    except OSError:
                        tell(finder.stand_in)
                    else:
                        return
                define(finder.stand_in, reference, Path(path))
                return
    load(path)


def watch_libraries() -> None:
    """Have torch ask :func:`load_library`, from now on or until what has replaced it is put back."""
    ops: Any = getattr(sys.modules.get("torch"), "ops", None)
    if ops is not None and getattr(ops.load_library, "func", None) is not load_library:
        ops.load_library = partial(load_library, ops.load_library)


def leave_libraries() -> None:
    """Undo :func:`watch_libraries`."""
    ops: Any = getattr(sys.modules.get("torch"), "ops", None)
    if ops is not None and getattr(ops.load_library, "func", None) is load_library:
        ops.load_library = ops.load_library.args[0]


_LIBRARIES = re.compile(
    r"lib(?:cuda|cudart|nvrtc|nvToolsExt|nvJitLink|nvidia-\w+|cublas\w*|cudnn\w*|cufft|curand|cusparse\w*|cusolver|nccl|"
    r"nvshmem\w*|c10_cuda|torch_cuda)[-\w]*\.so"
)


def needs_cuda(said: str, path: str) -> str | None:
    """What to do about a library at ``path`` (or a module of that name) which cannot be loaded for want of one of CUDA's, as an
    error ``said``; None if it lacks something else."""
    if not _LIBRARIES.search(said):
        return None
    package = next((name for name in names() if name in re.split(r"[/.]", path)), None)
    if package is not None:
        return f"it is compiled for CUDA: kernbench run --stand-in {package} has its operators"
    return (
        "it is compiled for CUDA, which is not here, and has no stand-in (kernbench stand-ins lists those that there are): "
        'docs/plugins.md, "How to add an operator"'
    )


class _StandInLoader(SourceFileLoader):
    """Executes a module of a stand-in, which says of a name that it has not what it has."""

    def exec_module(self, module: ModuleType) -> None:
        """See importlib."""
        super().exec_module(module)

        def missing(name: str) -> Any:
            raise AttributeError(
                f"the stand-in for {module.__name__} has no {name}; what it has is {names_of(module)}",
                name=name,
                obj=module,
            )

        vars(module).setdefault("__getattr__", missing)


class _Release(Distribution):
    def __init__(self, stand_in: StandIn) -> None:
        name = stand_in.distribution or stand_in.name
        self._folder = stand_in.folder
        self._texts = {
            "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {stand_in.release}\n",
            "top_level.txt": f"{stand_in.name}\n",
        }

    def read_text(self, filename: str) -> str | None:
        """A file of the release's metadata."""
        return self._texts.get(filename)

    def locate_file(self, path: Any) -> Path:
        """Where a file of the release is."""
        assert self._folder is not None
        return self._folder.parent / path
