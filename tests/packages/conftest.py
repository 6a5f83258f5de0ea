"""Public packages' Triton kernels, unmodified, on plain CPU tensors."""

from __future__ import annotations

from tests.triton_fixtures import collect_ignore_glob, engine, seeded

__all__ = ["collect_ignore_glob", "engine", "seeded"]
