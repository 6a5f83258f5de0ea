"""Folders in which processes of a test run meet: no other user can have made them, or put anything there."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from kernbench.errors import ConfigError
from kernbench.testing.folders import private_folder, run_folder, user_folder

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone can give a folder to another user")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_folders_are_this_users_alone_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        one, two, shared = run_folder(), run_folder(), user_folder("kernbench-gpus")
    finally:
        os.umask(before)
    assert {mode(each) for each in (one, two, shared)} == {0o700}
    assert one != two
    assert user_folder("kernbench-gpus") == shared


@pytest.mark.parametrize("bits", [0o777, 0o1777, 0o770])
def test_one_that_others_can_write_to_is_refused(temporary: Path, bits: int) -> None:
    folder = temporary / f"kernbench-gpus-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(bits)
    with pytest.raises(ConfigError, match=rf"{folder}: users of this machine other than you .* set TMPDIR"):
        user_folder("kernbench-gpus")


def test_one_that_others_can_read_is_closed_to_them(temporary: Path) -> None:
    (temporary / "mine").mkdir(0o755)
    assert mode(private_folder(temporary / "mine")) == 0o700


@pytest.mark.parametrize("leads_to", ["nowhere", "."])
def test_a_link_or_a_file_is_refused(temporary: Path, leads_to: str) -> None:
    (temporary / "link").symlink_to(temporary / leads_to)
    (temporary / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(ConfigError, match="expected a folder of this user"):
            private_folder(temporary / name)


@as_root
def test_one_of_another_user_is_refused(temporary: Path) -> None:
    """Mode 0700, made in advance under the name that can be guessed."""
    folder = temporary / f"kernbench-gpus-{os.geteuid()}"
    folder.mkdir(0o700)
    os.chown(folder, 65534, 65534)
    with pytest.raises(ConfigError, match="owner 65534, mode 700"):
        user_folder("kernbench-gpus")
