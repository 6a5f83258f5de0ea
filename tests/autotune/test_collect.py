"""What the autotuners chose: the finder, and what is made of its findings."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kernbench.autotune import AutotuneCallback, FoundAutotuner, collect_autotune_configs, find_autotuners, finder
from kernbench.autotune.collect import label_key, write_report

FP16 = "torch.float16"


class Tuner:
    """Looks like an autotuner."""

    def __init__(self, function: Any, keys: list[str]) -> None:
        self.fn = SimpleNamespace(fn=function)
        self.base_fn = function
        self.keys = keys
        self.configs: list[Any] = []
        self.cache: dict[Any, Any] = {}


def config(warps: int, **kwargs: int) -> SimpleNamespace:
    return SimpleNamespace(kwargs=kwargs, num_warps=warps, num_stages=3, num_ctas=1, maxnreg=None)


def softmax_kernel() -> None:
    """Stands for a kernel."""


@pytest.fixture
def tuner(monkeypatch: pytest.MonkeyPatch) -> Tuner:
    """The only autotuner that the finder finds."""
    tuner = Tuner(softmax_kernel, ["M", "N"])
    monkeypatch.setattr(finder, "find_autotuners", lambda: [FoundAutotuner("pkg.ops.softmax", "softmax_kernel", tuner)])
    return tuner


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    module = ModuleType("pkg_of_this_test.ops")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_a_row_per_choice(tuner: Tuner) -> None:
    assert collect_autotune_configs() == []
    tuner.cache[(512, 64, FP16, FP16)] = config(8, BLOCK=128)
    tuner.cache[(1024, 64, FP16, FP16)] = config(4, BLOCK=256)
    first, second = collect_autotune_configs()
    assert first == {
        "kernel": "softmax_kernel",
        "module": "test_collect",
        "module_fqn": __name__,
        "key": {"M": 512, "N": 64, "dtypes": [FP16, FP16]},
        "config": {"BLOCK": 128, "num_warps": 8, "num_stages": 3, "num_ctas": 1},
    }
    assert (second["key"]["M"], second["config"]["BLOCK"]) == (1024, 256)


@pytest.mark.parametrize(
    ("key", "names", "expected"),
    [
        ((1, FP16), ["n"], {"n": 1, "dtypes": [FP16]}),
        ((1,), ["n"], {"n": 1, "dtypes": []}),
        ((FP16, FP16), ["out_dtype"], {"out_dtype": FP16, "dtypes": [FP16]}),
        ((1, 2, FP16), ["n"], {"key_0": 1, "key_1": 2, "dtypes": [FP16]}),
        (7, ["n"], {"n": 7, "dtypes": []}),
    ],
)
def test_labels(key: Any, names: list[str], expected: dict[str, Any]) -> None:
    assert label_key(key, names) == expected


def test_the_finder_looks_under_wrappers_and_finds_each_once(module: ModuleType) -> None:
    tuner = Tuner(softmax_kernel, [])
    module.direct, module.again, module.wrapped = tuner, tuner, SimpleNamespace(fn=tuner)  # type: ignore[attr-defined]
    module.dictionary, module.number = {"cache": {}, "fn": None}, 3  # type: ignore[attr-defined]
    found = [each for each in find_autotuners() if each.tuner is tuner]
    assert [(each.module, each.name) for each in found] == [("pkg_of_this_test.ops", "direct")]


def test_the_finder_finds_tritons_own() -> None:
    pytest.importorskip("triton")
    from tests.autotune import gemm

    found = {(each.module, each.name) for each in find_autotuners()}
    assert (gemm.__name__, "gemm") in found


def test_the_finder_is_safe_while_others_import(module: ModuleType) -> None:
    module.tuner = Tuner(softmax_kernel, [])  # type: ignore[attr-defined]
    stop = threading.Event()

    def import_on() -> None:
        at = 0
        while not stop.is_set():
            at += 1
            sys.modules[f"pkg_of_this_test.m{at % 50}"] = ModuleType("m")
            sys.modules.pop(f"pkg_of_this_test.m{(at + 25) % 50}", None)
            time.sleep(0)  # let the other thread in

    thread = threading.Thread(target=import_on)
    thread.start()
    try:
        for _ in range(5):
            assert any(each.tuner is module.tuner for each in find_autotuners())
    finally:
        stop.set()
        thread.join()
        for at in range(50):
            sys.modules.pop(f"pkg_of_this_test.m{at}", None)


def test_the_report_is_json(tuner: Tuner, tmp_path: Path) -> None:
    tuner.cache[(1, 2)] = config(1)
    assert write_report(tmp_path / "report.json") == 1
    assert json.loads((tmp_path / "report.json").read_text()) == collect_autotune_configs()
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_the_callback_reports_once(tuner: Tuner) -> None:
    reports: list[list[dict[str, Any]]] = []
    callback = AutotuneCallback(reports.append)
    callback.on_step_end("any", trainer="arguments")
    tuner.cache[(1, 2)] = config(1)
    for _ in range(3):
        callback()
    assert [len(rows) for rows in reports] == [1]


def test_the_callback_gives_up_quietly(tuner: Tuner) -> None:
    reports: list[Any] = []
    callback = AutotuneCallback(reports.append, give_up_after=5)
    for _ in range(5):
        assert not callback.done
        callback()
    tuner.cache[(1, 2)] = config(1)
    callback()
    assert callback.done
    assert reports == []


def test_the_callback_never_raises(monkeypatch: pytest.MonkeyPatch, tuner: Tuner) -> None:
    def fail(rows: Any) -> None:
        raise OSError("no network")

    tuner.cache[(1, 2)] = config(1)
    AutotuneCallback(fail)()
    monkeypatch.setattr(finder, "find_autotuners", lambda: fail(None))
    AutotuneCallback(fail)()
