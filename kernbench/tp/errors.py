"""What tensor parallelism refuses. Megatron-Core asserts in these places, so each is an AssertionError too."""

from __future__ import annotations

from kernbench.errors import ConfigError, KernbenchError


class PartitionError(ConfigError, AssertionError):
    """A size does not divide over the ranks, or a tensor does not have the shape that its layer needs."""


class NotInitializedError(KernbenchError, AssertionError):
    """Model parallelism has not been initialised on this rank, or without what was asked for."""


class AlreadyInitializedError(KernbenchError, AssertionError):
    """``initialize_model_parallel`` was called twice without ``destroy_model_parallel`` between."""
