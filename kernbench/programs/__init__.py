"""Training programs of published runs, in plain torch: ``kernbench validate --end-to-end`` and benches run them without data.

Each is a script for torchrun that knows nothing of kernbench; :mod:`kernbench.programs.float8` is what they may have besides.
"""
