"""What benches share: options, sizes, inputs and their oracle, tables, progress.

A bench is a module with ``run(ctx)``; one that takes arguments of its own also has a click command named ``command``,
built from the decorators in :mod:`benches.harness.options`.
"""

from benches.harness.options import SimulationOptions, bench_main, simulation_options
from benches.harness.sizes import SIZE, format_size, parse_size, sweep

__all__ = [
    "SIZE",
    "SimulationOptions",
    "bench_main",
    "format_size",
    "parse_size",
    "simulation_options",
    "sweep",
]
