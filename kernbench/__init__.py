"""kernbench: a cooperative multi-rank runtime simulator."""

__version__ = "0.1.0"
