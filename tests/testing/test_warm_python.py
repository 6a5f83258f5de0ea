"""The warm Python of the tests runs what its user asks for, and nothing else."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.warm_client import is_own
from tests.warm_python import WARM


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone can be another user, too")
def test_another_user_runs_nothing(warm_python: str, tmp_path: Path) -> None:
    """It is hung up on before it is listened to, and the owner goes on."""
    made = tmp_path / "made"
    program = tmp_path / "program.py"
    program.write_text(f"open({str(made)!r}, 'w')")
    for name, user in (("stranger", 65534), ("owner", os.geteuid())):
        pid = os.fork()
        if pid == 0:
            try:
                os.setuid(user)
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
                    end.connect(f"\0{WARM._name}")
                    os._exit(end.recv(1) == b"" if user else not is_own(end))
            except OSError:
                os._exit(1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (1 if name == "stranger" else 0)
    subprocess.run([*warm_python.split(), program], check=True)
    assert made.exists()
