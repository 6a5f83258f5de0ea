"""kernbench calibrate host: what this machine takes, kept in a file that later runs read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch.utils._python_dispatch import TorchDispatchMode

from kernbench.cli import app
from kernbench.cost import host_speed
from kernbench.cost.host_speed import REFERENCE, HostSpeed, measure_host
from kernbench.errors import ConfigError
from kernbench.topology import load_system


class Counting(TorchDispatchMode):
    """Counts operators: views, and others."""

    def __init__(self) -> None:
        super().__init__()
        self.views = self.others = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.is_view:
            self.views += 1
        else:
            self.others += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("part", "kind"), [("operators", "others"), ("views", "views"), ("recorded", "others")])
def test_the_parts_call_as_many_operators_as_their_times_are_shared_among(part: str, kind: str) -> None:
    timed = getattr(host_speed._Work(), part)
    with torch.no_grad(), Counting() as counting:
        timed()
    assert getattr(counting, kind) == timed.count
    assert part == "recorded" or counting.views * counting.others == 0


def test_every_class_is_timed() -> None:
    threads = torch.get_num_threads()
    speed = measure_host(passes=3, cold_passes=4)
    assert speed.seconds.keys() == REFERENCE.keys()
    assert all(seconds >= 0 for seconds in speed.seconds.values())
    assert speed.seconds["operator"] > 0
    assert speed.cpu
    assert torch.get_num_threads() == threads


def test_a_cpu_is_as_slow_as_most_of_what_it_does() -> None:
    slow = {name: (9 if name == "view" else 1.5) * seconds for name, seconds in REFERENCE.items()}
    speed = HostSpeed("a slow one", slow)
    assert speed.ratios["view"] == pytest.approx(9)
    assert speed.factor == pytest.approx(1.5)


def test_the_file_is_the_system_with_another_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = {name: 1.25 * seconds for name, seconds in REFERENCE.items()}
    monkeypatch.setattr("kernbench.commands.calibrate_host.measure_host", lambda: HostSpeed("My CPU: 3 GHz", taken))
    first, second = tmp_path / "mine.yaml", tmp_path / "again.yaml"
    for base, out in (("dgx_a100", first), (first, second)):
        result = CliRunner().invoke(app, ["calibrate", "host", "--system", str(base), "--out", str(out)])
        assert result.exit_code == 0, result.output
        assert "host.factor 1.25 (My CPU: 3 GHz)" in result.output
        assert "operator                         2.62 us     2.10 us     1.25" in result.output
        mine, base_system = load_system(str(out)), load_system("dgx_a100")
        assert (mine.name, mine.host.factor, mine.host.cpu) == (out.stem, 1.25, "My CPU: 3 GHz")
        assert mine.host.operator == base_system.host.operator
        assert mine.device == base_system.device


def test_what_says_what_nccl_tests_ran_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["calibrate", "host", "--system", "dgx_h100", "--out", str(tmp_path / "x.yaml"), "--ranks", "8"]
    )
    assert isinstance(result.exception, ConfigError)
    assert "--ranks" in str(result.exception)
