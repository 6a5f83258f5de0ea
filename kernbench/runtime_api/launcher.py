"""Runs a script in every simulated rank, as torchrun does in every process."""

from __future__ import annotations

import builtins
import functools
import importlib
import marshal
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from types import CodeType, ModuleType
from typing import Any

from greenlet import GreenletExit

from kernbench.environment_variables import variables_set
from kernbench.errors import ConfigError
from kernbench.program_files import compiled_program, find_module, source_of, source_of_module
from kernbench.runtime_api import started_processes
from kernbench.runtime_api.adoption import Adoption
from kernbench.runtime_api.at_exit import AtExit
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.spawned_ranks import SpawnedRanks, with_arguments
from kernbench.scheduler import RaisedElsewhere, user_traceback
from kernbench.scheduler.crew import current_member
from kernbench.torch_backend.patches import Patches
from kernbench.torch_backend.rank_state import marked_source, replaced_attributes
from kernbench.torch_backend.rank_state.excepthooks import call_excepthook, excepthook, hook_called
from kernbench.torch_backend.rank_state.output import TORCHRUN_PREFIX, rank_streams
from kernbench.torch_backend.rank_state.process_state import go_to, rank_variables
from kernbench.torch_backend.rank_state.rank_modules import SPAWNED_MAIN, RankModules


@dataclass(frozen=True)
class RankProgram:
    """A script or a module, compiled once.

    Attributes:
        code: what every rank executes.
        file: its path.
        text: of the file, which may be a pipe.
        place: what is first on ``sys.path`` of a script.
        package: ``__package__`` of a module, None for a script.
        argv: ``sys.argv``.
    """

    code: CodeType
    file: str
    text: bytes
    place: str
    package: str | None
    argv: tuple[str, ...]

    @classmethod
    def script(cls, path: str, args: Sequence[str]) -> RankProgram:
        """``python path args...``. Raises :class:`ConfigError` if it cannot be read or compiled."""
        text, file, place = source_of(path)
        return cls(compiled_program(text, file), file, text, place, None, (path, *args))

    @classmethod
    def module(cls, name: str, args: Sequence[str]) -> RankProgram:
        """``python -m name args...``. Raises :class:`ConfigError` if there is no such module."""
        spec = find_module(name)
        if spec is not None and spec.submodule_search_locations is not None:
            name += ".__main__"
            spec = find_module(name)
        if spec is None or spec.origin is None or not spec.has_location:
            raise ConfigError(f"no module named {name!r} that could be run")
        text, package = source_of_module(spec), name.rpartition(".")[0]
        return cls(compiled_program(text, spec.origin), spec.origin, text, "", package, (spec.origin, *args))

    def within(self, ctx: RuntimeContext) -> RankProgram:
        """As it is executed there: what it replaces is each rank's own; without data, numbers that are assumed keep their marks
        in its text."""
        if not ctx.simulation.engine.enable_data:
            return replace(self, code=marked_source.compiled(self.text, self.file))
        if replaced_attributes.may_replace(self.text):
            return replace(self, code=replaced_attributes.compiled(self.text, self.file))
        return self

    def fresh_main(self, name: str = "__main__") -> ModuleType:
        """A ``__main__`` that has not run yet."""
        main = ModuleType(name)
        main.__file__ = self.file
        main.__package__ = self.package
        vars(main)["__builtins__"] = builtins
        vars(main)["__cached__"] = None
        return main

    def execute(self, main: ModuleType) -> None:
        """As ``main``, in the running rank.

        In code of its own: ``torch.compile`` keeps what it has compiled with the code, for the globals that it saw.
        """
        if self.package:
            importlib.import_module(self.package)
        exec(marshal.loads(marshal.dumps(self.code)), vars(main))


@contextmanager
def _as_started(program: RankProgram) -> Iterator[None]:
    """``sys.argv`` and ``sys.path`` as the interpreter sets them for a script. The working directory comes back: what a command
    then writes is meant from where it was called, also where the program has removed the one that it went to."""
    folder = os.getcwd()
    argv, path, main = sys.argv, list(sys.path), sys.modules.get("__main__")
    sys.argv = list(program.argv)
    sys.path.insert(0, os.getcwd() if program.package is not None else program.place)
    try:
        yield
    finally:
        sys.argv = argv
        sys.path[:] = path
        go_to(folder)
        if main is not None:
            sys.modules["__main__"] = main


def _writer(ctx: RuntimeContext) -> int | None:
    """The rank that the running thread belongs to, whether it takes turns or not."""
    member = current_member()
    return ctx.simulation.scheduler.current_rank() if member is None else member.crew.rank


def run_ranks(
    ctx: RuntimeContext,
    program: RankProgram,
    *,
    nproc_per_node: int,
    nnodes: int = 1,
    prefix: bool = True,
    per_rank_modules: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    isolation: str = "carrier",
) -> None:
    """Run ``program`` as ``__main__`` in ``nproc_per_node * nnodes`` ranks.

    ``variables`` are environment variables of every rank; ``isolation``: as ``spawn`` takes it.
    Raises :class:`kernbench.SpawnException` if a rank fails.
    """
    program = program.within(ctx)
    world = nproc_per_node * nnodes
    mains: dict[int, ModuleType] = {}

    def configure(environment: Any) -> None:
        mains.update({rank: program.fresh_main() for rank in range(world)})
        environment.state.main_modules.update(mains)
        package = (program.package or "").partition(".")[0]
        environment.state.rank_modules = RankModules(
            named=[name for name in (package, *per_rank_modules) if name],
            remark=ctx.simulation.remarks.setdefault,
        )
        environment.state.variables = lambda rank: {
            **rank_variables(rank, world, nproc_per_node),
            **(variables or {}),
        }

    def body(rank: int) -> None:
        with nullcontext() if at_exit is None else at_exit.program():
            try:
                with hook_called(others):
                    program.execute(mains[rank])
            except (KeyboardInterrupt, GreenletExit) as error:
                if ctx.simulation.scheduler.interrupted or ctx.simulation.scheduler.aborting:
                    raise
                # its own: torchrun's process would end with 130, which is a failure
                call_excepthook(error, others)
                raise RaisedElsewhere(error, user_traceback(error)) from None

    others = excepthook()
    patches = Patches()
    at_exit = _at_exit(ctx, patches) if isolation == "carrier" else None
    if isolation == "process":
        import torch.distributed.fsdp  # noqa: F401  what many programs import, and takes long: once, not in every rank
    remark = ctx.simulation.remarks.setdefault
    started_processes.install(patches, remark, with_arguments(ctx.multiprocessing.spawn), lone=True)
    ctx.multiprocessing.configure = configure
    try:
        with (
            _as_started(program),
            rank_streams(functools.partial(_writer, ctx), TORCHRUN_PREFIX if prefix else ""),
        ):
            ctx.multiprocessing.spawn(body, (), world, isolation=isolation, per_rank_modules=per_rank_modules)
    finally:
        ctx.multiprocessing.configure = None
        patches.undo()


def run_once(
    ctx: RuntimeContext,
    program: RankProgram,
    *,
    prefix: bool = True,
    at_end: Callable[[], None] | None = None,
    isolation: str = "carrier",
    variables: Mapping[str, str] | None = None,
    let_join: Callable[[], None] | None = None,
) -> None:
    """Run ``program`` once, as ``python`` would, with a simulated GPU; ranks that it spawns are of ``isolation``.

    Raises ``SystemExit`` if the program ends itself with a failure.

    The program is rank 0 of a world of one, as with torchrun's default of one process, and has its variables.
    ``at_end`` is called while its ``__main__`` is still there; ``let_join``: see :func:`started_processes.install`.
    """
    program = program.within(ctx)
    patches = Patches()
    main = program.fresh_main()
    loaded = frozenset(sys.modules)
    adoption = Adoption(ctx.simulation, ctx.multiprocessing)
    at_exit = _at_exit(ctx, patches)

    def who() -> int | None:
        return None if adoption.holds else ctx.simulation.scheduler.current_rank()

    remark = ctx.simulation.remarks.setdefault
    spawned = SpawnedRanks(
        ctx.multiprocessing,
        functools.partial(adoption.spawn, isolation=isolation),
        fresh_main=functools.partial(program.fresh_main, SPAWNED_MAIN),
        execute_main=program.execute,
        loaded=loaded,
        remark=remark,
    )
    started_processes.install(patches, remark, spawned.spawn, let_join, lone=True)
    try:
        with (
            _as_started(program),
            rank_streams(who, TORCHRUN_PREFIX if prefix else ""),
            _variables({**rank_variables(0, 1, 1), **(variables or {})}),
        ):
            sys.modules["__main__"] = main
            try:
                with adoption, at_exit.program(), _exits(), hook_called(excepthook()):
                    exec(program.code, vars(main))
            finally:
                if at_end is not None:
                    at_end()
    finally:
        patches.undo()


@contextmanager
def _exits() -> Iterator[None]:
    """A program that ends itself without a failure has ended."""
    try:
        yield
    except SystemExit as end:
        if end.code:
            raise


def _at_exit(ctx: RuntimeContext, patches: Patches) -> AtExit:
    """For ranks that share this process: one that is a process ends as one."""
    found = AtExit(lambda: ctx.simulation.scheduler.aborting)
    found.install(patches)
    return found


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables that are set for the length of a block, unless they are already."""
    with variables_set({name: value for name, value in values.items() if name not in os.environ}):
        yield
