"""A program over a grid of systems and parameters, as independent simulations. See ``docs/sweep.md``."""

from kernbench.callable_module import make_callable
from kernbench.sweep.outcome import Outcome
from kernbench.sweep.run import SweepResult, sweep
from kernbench.sweep.spec import PlotSpec, SweepSpec, read_sweep

__all__ = ["Outcome", "PlotSpec", "SweepResult", "SweepSpec", "read_sweep", "sweep"]

make_callable(__name__)
