"""All operators of ``vllm._C_stable_libtorch``."""

from __future__ import annotations

from kernbench.compiled_operators.vllm import caches, core, packed, peers, quantised

operators = core.operators

PARTS = (core, caches, packed, peers, quantised)
"""The modules that define them."""
