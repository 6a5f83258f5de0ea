"""The releases that are tested stand in one table, and everything that names releases says the same."""

from __future__ import annotations

import re
from importlib import metadata

import pytest

from kernbench.commands import doctor
from kernbench.version import TESTED, is_beyond_tested, numbers
from tests.docs.pages import ROOT

PROJECT = (ROOT / "pyproject.toml").read_text()
SERIES = {name: [".".join(version.split(".")[:2]) for version in versions] for name, versions in TESTED.items()}


def _needed(name: str) -> str:
    """The versions of a package that pyproject.toml asks for."""
    found = re.search(rf'^  "{name}([^;"]*)', PROJECT, re.MULTILINE)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(("name", "variable"), [("Python", "PYTHON"), ("torch", "TORCH"), ("triton", "TRITON")])
def test_make_runs_what_the_table_says(name: str, variable: str) -> None:
    found = re.search(rf"^{variable}_VERSIONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert found is not None
    assert tuple(found[1].split()) == TESTED[name]


@pytest.mark.parametrize("name", ["torch", "triton"])
def test_the_oldest_is_needed_and_no_later_one_refused(name: str) -> None:
    assert _needed(name) == f">={SERIES[name][0]}"


def test_the_pythons_are_those_that_are_declared() -> None:
    declared = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert tuple(declared) == TESTED["Python"]
    assert f'requires-python = ">={TESTED["Python"][0]}"' in PROJECT


def test_what_is_developed_against_is_tested() -> None:
    pinned = re.findall(r"^(\w+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert {name for name, version in pinned if version in TESTED[name]} == {"torch", "triton"}


def test_the_table_is_in_order() -> None:
    for versions in TESTED.values():
        assert sorted(versions, key=numbers) == list(versions)


@pytest.mark.parametrize(
    ("name", "series", "page"),
    [
        ("torch", "torch", "docs/distributed.md"), ("torch", "torch", "docs/versions.md"),
        ("triton", "Triton", "docs/triton.md"), ("triton", "Triton", "docs/versions.md"),
    ],
)  # fmt: skip
def test_pages_say_which(name: str, series: str, page: str) -> None:
    *others, last = SERIES[name]
    sentence = f"{series} {', '.join(others)} and {last} are tested"
    assert sentence in " ".join((ROOT / page).read_text().split())


@pytest.mark.parametrize(
    ("name", "version", "beyond"),
    [
        ("torch", "2.13.0+cpu", False), ("torch", "2.15.9", False), ("torch", "2.16.0.dev20261101", True),
        ("torch", "3.0", True),
        ("triton", "3.9.1", False), ("triton", "3.10.0", True), ("Python", "3.13.7", False), ("Python", "3.14.0", True),
        ("triton", "", False),
    ],
)  # fmt: skip
def test_what_is_beyond(monkeypatch: pytest.MonkeyPatch, name: str, version: str, beyond: bool) -> None:
    for each, newest in (("torch", "2.15.0"), ("triton", "3.9.0"), ("Python", "3.13")):
        monkeypatch.setitem(TESTED, each, (newest,))
    assert is_beyond_tested(name, version) is beyond


def test_the_doctor_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond what was tested is a note, with what to do; no failure. Releases that were tested are ok."""
    have = {name: metadata.version(name) for name in ("torch", "triton")}
    monkeypatch.setattr(doctor, "_program", lambda: iter(()))
    monkeypatch.setattr(doctor, "_kernel", lambda: iter(()))

    def found() -> dict[str, doctor.Finding]:
        return {finding.subject: finding for finding in doctor.examine()}

    assert {found()[name].status for name in ("torch", "triton", "Python")} <= {doctor.OK}
    for name in TESTED:
        monkeypatch.setitem(TESTED, name, ("1.0",) if name != "Python" else ("3.8",))
    later = found()
    for name, advice in (
        ("torch", "all that is relied on in it is as it must be (python -m kernbench.torch_backend.relies_on)"),
        ("triton", "if something fails: pip install 'triton==1.0'"),
    ):
        assert later[name].found == f"{have[name]}, newer than the newest that is tested: 1.0"
        assert (later[name].status, later[name].advice) == (doctor.NOTE, advice)
    assert later["Python"].status == doctor.NOTE
