"""Unmodified ``@triton.jit`` kernels on CPU: all programs, and all ranks, of a launch at once.

Triton's own front end compiles a kernel to TTIR; this package runs that. See ``docs/triton.md``.

Nothing of torch or Triton is imported until a name of this package is used: Triton itself imports
``kernbench.triton_engine.driver`` when it looks for backends.
"""

from __future__ import annotations

from kernbench.lazy_names import lazily

_WHERE = {
    "activate": ".driver.activation",
    "active": ".driver.activation",
    "deactivate": ".driver.activation",
    "set_target": ".driver.target",
    "get_target": ".driver.target",
    "resources": ".driver.resources",
    "Resources": ".driver.resources",
    "set_launch_sink": ".launching",
    "LaunchSink": ".launching",
    "record_launches": ".launching",
    "LaunchRecord": ".launching",
    "execute": ".launching",
    "run_alone": ".launching",
    "Execution": ".machine",
    "Launch": ".machine",
    "Counts": ".counts",
    "HostAllocation": ".memory",
    "AllocationMap": ".memory",
    "registry": ".memory",
    "write_epoch": ".memory",
    "set_checks": ".checks",
    "RaceError": ".checks",
    "UninitialisedReadError": ".checks",
    "estimate": ".duration",
    "set_duration_model": ".duration",
    "lower_ttir": ".frontend.lower",
    "UnsupportedOpError": ".ops.registry",
    "DeviceAssertionError": ".ops.debug",
}

__all__ = [*_WHERE]

__getattr__ = lazily(__name__, _WHERE)
