"""``kernbench run -- COMMAND``: a command that starts the ranks itself, such as torchrun, as on a cluster."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kernbench.child_processes import adopting, end_descendants, end_with_parent, has_variable
from kernbench.driver_tools import nvidia_smi
from kernbench.errors import ConfigError, KernbenchError

if TYPE_CHECKING:
    from kernbench.commands.run_failures import ShownFailures
    from kernbench.runtime_api.context import RuntimeContext
    from kernbench.topology import Topology

GRACE = 0.8
"""Seconds of wall-clock time that a command, and what it has started, has to end when the run is stopped."""


def found(program: str) -> str | None:
    """The path of a command, as a shell would find it: ours (``nvidia-smi``), beside the Python that runs this, on ``PATH``."""
    return shutil.which(program, path=nvidia_smi.on_path(_path(os.environ)))


def _path(environ: Mapping[str, str]) -> str:
    return os.pathsep.join([os.path.dirname(sys.executable), environ.get("PATH", os.defpath)])


class RankCommand:
    """A command whose processes join a simulation.

    Args:
        arguments: of the command, itself first.
        options: of :func:`kernbench.simulate`, as a process that joins is to give them; the system is the context's.
    """

    def __init__(self, arguments: Sequence[str], options: Mapping[str, Any]) -> None:
        path = found(arguments[0])
        if path is None:
            raise ConfigError(f"{arguments[0]}: no such command. A Python script is run without '--' before it")
        self._arguments = [path, *arguments[1:]]
        self._options = dict(options)

    def run(self, ctx: RuntimeContext, system: Path, failures: ShownFailures) -> tuple[int, dict[int, BaseException]]:
        """Run it until it has ended: its exit code, and the errors of ranks. What they print goes where its output goes.

        ``system``: the file from which the context's has been read. Raises :class:`ConfigError` if ranks that are processes
        cannot have such a context.
        """
        from kernbench.processes.gate import Gate
        from kernbench.processes.seat import Welcome
        from kernbench.processes.timekeeper import Timekeeper
        from kernbench.simulation.ranks.failures import SpawnException
        from kernbench.torch_backend.gpu.device.visible_devices import visible_first

        def welcome() -> Welcome:
            return Welcome(
                {**self._options, "system": str(system), "ccl": ctx.ccl_config}, ctx.now(), ctx.simulation.steps.limit,
                visible_first(ctx.topology, ctx.sips),
            )  # fmt: skip

        ctx.multiprocessing.require_joined(1)
        gate = Gate(welcome, ctx.multiprocessing.require_joined, _tell)
        keeper = Timekeeper(ctx.simulation.engine, ctx.simulation.requests, ctx.simulation.remarks.setdefault, _tell)
        errors: dict[int, BaseException] = {}
        with (
            closing(gate),
            closing(keeper),
            self._started(str(gate.address), ctx.topology, keeper.variables) as process,
        ):
            launcher, keeper.launcher = os.pidfd_open(process.pid), process.pid
            try:
                with contextlib.ExitStack() as worlds:
                    while (members := gate.gather(launcher, keeper)) is not None:
                        try:
                            ctx.multiprocessing.serve(members, launcher, worlds, keeper)
                        except SpawnException as error:
                            errors = dict(error.errors)
                            failures.joined(error)
                    code = process.wait()
            except KernbenchError as error:
                _tell(f"error: {error}")
                code = process.wait() or 1
            finally:
                os.close(launcher)
        return (128 - code if code < 0 else code), errors

    @contextmanager
    def _started(self, address: str, topology: Topology, more: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
        """The command's process, with ``more`` environment variables; it has ended when the block has."""
        from kernbench.driver_tools import inventory
        from kernbench.runtime_api.child_variables import child_variables
        from kernbench.runtime_api.joining import ADDRESS

        environ = {
            **os.environ, ADDRESS: address, **child_variables(topology, os.environ), **more, "PATH": _path(os.environ),
        }  # fmt: skip
        if inventory.has_smi(topology):
            environ.update(
                inventory.variables_of(inventory.idle_gpus(topology)), PATH=nvidia_smi.on_path(environ["PATH"])
            )
        with adopting():
            process = subprocess.Popen(  # what the caller has left open for it (`3>results`) is its own
                self._arguments, env=environ, preexec_fn=end_with_parent, close_fds=False
            )
            try:
                yield process
            finally:
                for end in (process.terminate, process.kill):
                    if process.poll() is None:
                        end()
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            process.wait(GRACE)
                if process.returncode != 0:  # torchrun that is asked to end while it starts workers loses them
                    end_descendants(lambda pid: has_variable(pid, ADDRESS, address), GRACE)


def _tell(text: str) -> None:
    click.echo(f"kernbench: {text}", err=True)
