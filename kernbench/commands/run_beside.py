"""A run beside that of a script: the processes that the script starts itself join it.

The script's own process is a rank where it stands, in a world of one, and cannot simulate another world meanwhile. So a second
``kernbench run`` does, from when the first such process is started until the script has ended; then it prints its summary.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import kernbench
from kernbench.environment_variables import variables_set
from kernbench.processes.gate import INHERITED, listening
from kernbench.runtime_api.child_variables import child_variables
from kernbench.runtime_api.joining import ADDRESS, TAKEN, taken
from kernbench.topology import Topology

_BEGIN = "import sys; sys.path.insert(0, {0!r}); import kernbench.cli; sys.path.remove({0!r}); kernbench.cli.main()"


class RunBeside:
    """The second run.

    Args:
        options: of ``kernbench run``, on the command line.
        topology: of the system.
    """

    def __init__(self, options: Sequence[str], topology: Topology) -> None:
        self._options = options
        self._topology = topology
        self._process: subprocess.Popen[bytes] | None = None
        self._joining = ExitStack()

    def let_join(self) -> None:
        """Have it, and the environment in which processes join it."""
        if self._process is not None:
            return
        address, listener = listening()
        begin = _BEGIN.format(str(Path(kernbench.__file__).parents[1]))
        environ = {**os.environ, INHERITED: f"{listener.fileno()} {address}"}
        environ.pop(ADDRESS, None)
        # what it runs ends when our end of the pipe is closed, however we end
        self._process = subprocess.Popen(
            [sys.executable, "-c", begin, "run", *self._options, "--", "cat"], stdin=subprocess.PIPE, env=environ,
            pass_fds=[listener.fileno()],
        )  # fmt: skip
        listener.close()
        values = {ADDRESS: str(address), **child_variables(self._topology, os.environ)}
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            local = os.environ.get("LOCAL_WORLD_SIZE", "")
            values[TAKEN] = taken("", os.environ["RANK"], os.environ["WORLD_SIZE"], local)
        self._joining.enter_context(variables_set(values))

    def close(self) -> None:
        """The script has ended: have the summary printed. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        self._joining.close()
        sys.stdout.flush()
        assert process.stdin is not None
        process.stdin.close()
        process.wait()
