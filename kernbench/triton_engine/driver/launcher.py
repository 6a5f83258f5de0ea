"""What Triton calls to launch a compiled kernel."""

from __future__ import annotations

import re
import sys
from operator import index
from types import CodeType
from typing import Any

from kernbench.own_files import is_own
from kernbench.torch_backend.modes import plain_torch
from kernbench.triton_engine import launching
from kernbench.triton_engine.frontend.lower import lower_ttir
from kernbench.triton_engine.frontend.program import Program
from kernbench.triton_engine.machine import Launch

from .limits import MOST_BLOCKS, is_cooperative, refuse_grid, refuse_what_does_not_fit
from .pipeline import values_kernel

_programs: dict[tuple[str, str], Program] = {}
_LAUNCHER = "_kernbench_launcher"
"""The attribute of a compiled kernel's source that keeps its launcher."""
_FILE = re.compile(r'^#loc = loc\("([^"]+)":(\d+):', re.MULTILINE)


def _code_of(src: object) -> CodeType | None:
    """The code of a kernel's function; None if it has none."""
    code = getattr(getattr(getattr(src, "fn", None), "fn", None), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _is_headed(code: CodeType, line: int) -> bool:
    """Whether a line is one between a function's first decorator and its body, as that of its ``def`` is."""
    body = [at for _, _, at in code.co_lines() if at is not None and at > code.co_firstlineno]
    return code.co_firstlineno <= line <= min(body, default=code.co_firstlineno)


def _relocated(ttir: str, code: CodeType | None) -> str:
    """``ttir`` with the path of the file that the kernel is in.

    Triton's cache knows a kernel by its text and its line, not by its file: what was compiled before the file moved, in another
    checkout, or of another file that has the same kernel at the same line, names that one.
    """
    found = _FILE.search(ttir)
    if code is None or found is None or found[1] == code.co_filename or not _is_headed(code, int(found[2])):
        return ttir
    return ttir.replace(f'loc("{found[1]}":', f'loc("{code.co_filename}":')


def program_of(src: object, metadata: Any) -> Program:
    """The program of a compiled kernel, cached by the compiler's hash and the kernel's file."""
    code = _code_of(src)
    key = metadata.hash, "" if code is None else code.co_filename
    program = _programs.get(key)
    if program is None:
        ttir = getattr(metadata, "kernbench_ttir", None)
        if ttir is None:
            ttir = values_kernel(src, metadata).metadata.kernbench_ttir
        with plain_torch():
            target, text = metadata.target, _relocated(ttir, code)
            program = lower_ttir(text, target.backend, metadata.num_warps, target.warp_size)
            _programs[key] = program
    return program


def _positions(signature: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    """Paths into the bound arguments that are run-time arguments; tuples are flattened as Triton does."""
    out: list[tuple[int, ...]] = []
    for i, kind in enumerate(signature):
        if isinstance(kind, tuple):
            out += _positions(kind, (*path, i))
        elif kind != "constexpr":
            out.append((*path, i))
    return out


class Launcher:
    """Made once per compiled kernel; called for every launch with Triton's launcher arguments."""

    def __init__(self, src: Any, metadata: Any) -> None:
        self.src = src
        self.metadata = metadata
        self.program = program_of(src, metadata)
        kinds = tuple(src.signature.values())
        paths = _positions(kinds)
        names = list(src.signature)
        self.paths = paths
        self.descriptors = [str(_follow(kinds, p)).startswith("tensordesc") for p in paths]
        self.n_bound = len(kinds)
        #: Positions of what is not declared a constant (Triton makes constants of other arguments too: 1 and None).
        self.undeclared = _undeclared(src, kinds)
        self.flat = all(len(p) == 1 for p in paths) and not any(self.descriptors)
        self.positions = tuple(p[0] for p in paths) if self.flat else ()
        self.cooperative = is_cooperative(metadata)
        refuse_what_does_not_fit(self)
        self.names: list[str] = []
        for path, descriptor in zip(paths, self.descriptors, strict=True):
            name = ".".join([str(names[path[0]]), *map(str, path[1:])])
            self.names.append(name)
            if descriptor:  # a descriptor is followed by its shape and strides
                rank = len(self.program.args[len(self.names) - 1][1].shape)
                self.names += [f"{name}.shape[{i}]" for i in range(rank)] + [
                    f"{name}.strides[{i}]" for i in range(rank)
                ]
        if len(self.names) != len(self.program.args):
            raise RuntimeError(
                f"{self.program.name}: {len(self.names)} arguments bound, {len(self.program.args)} expected"
            )

    def _arguments(self, bound: tuple[object, ...]) -> list[Any]:
        out: list[Any] = []
        for path, descriptor in zip(self.paths, self.descriptors, strict=True):
            value = _follow(bound, path)
            out.append(value)
            if descriptor:
                out += [*value.shape, *value.strides]
        return out

    def _spread(self, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """Arguments of a compiled kernel that was called directly, each at its position in the signature.

        ``kernel[grid]`` of a compiled kernel takes what the signature lists, constants included; callers written for
        Triton before 3.3 leave the constants out, which says the same.

        Raises:
            TypeError: neither.
        """
        if len(given) != len(self.undeclared):
            names = [str(n) for n in self.src.signature]
            undeclared = ", ".join(names[i] for i in self.undeclared)
            raise TypeError(
                f"compiled kernel {self.metadata.name} takes {self.n_bound} arguments ({', '.join(names)}), or the "
                f"{len(self.undeclared)} of them that are not declared constants ({undeclared}); {len(given)} were given"
            )
        out: list[Any] = [None] * self.n_bound
        for position, value in zip(self.undeclared, given, strict=True):
            out[position] = value
        return tuple(out)

    def __call__(
        self,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        stream: object,
        function: Any,
        packed_metadata: Any,
        launch_metadata: Any,
        enter_hook: Any,
        exit_hook: Any,
        *bound: object,
    ) -> None:
        """Launch: Triton calls this, with the arguments in the order of the signature."""
        if len(bound) != self.n_bound:
            bound = self._spread(bound)
        args = [bound[p] for p in self.positions] if self.flat else self._arguments(bound)
        grid = index(grid_x), index(grid_y), index(grid_z)
        if self.cooperative or max(grid) > MOST_BLOCKS:
            refuse_grid(self, grid)
        if enter_hook is not None and getattr(enter_hook, "calls", True):
            enter_hook(launch_metadata)
        launch = Launch(
            self.program,
            grid,
            args,
            None,
            self.metadata.name,
            _user_frame() if launching.launches_are_collected() else "",
            self.names,
            self,
        )
        launching.submit(launch)
        if exit_hook is not None and getattr(exit_hook, "calls", True):
            exit_hook(launch_metadata)


def _undeclared(src: object, kinds: tuple[object, ...]) -> list[int]:
    params = getattr(getattr(src, "fn", None), "params", None)
    if params is None or len(params) != len(kinds):
        return [i for i, kind in enumerate(kinds) if kind != "constexpr"]
    return [i for i, p in enumerate(params) if not p.is_constexpr]


def _follow(bound: Any, path: tuple[int, ...]) -> Any:
    for i in path:
        bound = bound[i]
    return bound


def _user_frame() -> str:
    """``file:line`` of the innermost frame outside of Triton and kernbench."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_globals.get("__name__", "")
        if not name.startswith("triton.") and not is_own(file):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def launcher_of(src: object, metadata: object) -> Launcher:
    """The launcher of a compiled kernel. Triton asks for it at each launch that has hooks, as kernels have no module here."""
    known: Launcher | None = getattr(src, _LAUNCHER, None)
    if known is None or known.metadata is not metadata:
        known = Launcher(src, metadata)
        setattr(src, _LAUNCHER, known)
    return known
