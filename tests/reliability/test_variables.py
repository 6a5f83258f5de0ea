"""Variables of the environment that have a few values."""

from __future__ import annotations

import pytest

from kernbench.environment_variables import one_of
from kernbench.errors import ConfigError
from kernbench.triton_engine.driver.driver import KernbenchDriver
from kernbench.triton_engine.driver.pipeline import _mode
from kernbench.triton_engine.native.run import mode


@pytest.mark.parametrize(
    ("name", "read", "expected"),
    [
        ("KERNBENCH_TRITON", KernbenchDriver.is_active, "0 or 1"),
        ("KERNBENCH_TRITON_COMPILE", _mode, "values or full"),
        ("KERNBENCH_TRITON_NATIVE", mode, "auto, always or never"),
    ],
)
def test_another_value_is_refused(name, read, expected, monkeypatch):
    monkeypatch.setenv(name, "true")
    with pytest.raises(ConfigError, match=f"{name}=true: expected {expected}"):
        read()


def test_one_that_is_empty_is_as_if_not_set(monkeypatch):
    monkeypatch.setenv("KERNBENCH_TRITON_NATIVE", "")
    assert one_of("KERNBENCH_TRITON_NATIVE", "auto", "never") == "auto"
    monkeypatch.delenv("KERNBENCH_TRITON_NATIVE")
    assert one_of("KERNBENCH_TRITON_NATIVE", "auto", "never") == "auto"
    monkeypatch.setenv("KERNBENCH_TRITON_NATIVE", "never")
    assert one_of("KERNBENCH_TRITON_NATIVE", "auto", "never") == "never"
