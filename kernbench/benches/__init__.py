"""Benchmark programs: each has ``run(ctx)`` and is ``python -m``-able.

``kernbench bench NAME`` runs those that are entry points, ``python -m kernbench.benches.NAME`` every one; in a checkout, where
there is a folder ``benches`` with the short name, ``python -m benches.NAME`` does, too.
"""
