"""Benchmark programs: each has ``run(ctx)`` and is ``python -m``-able."""
