"""Native code for runs of elementwise instructions (ADR 0142).

``text``: lines of LLVM IR, and how values lie in registers. ``forms``: an operation as such lines. ``function``: a loop nest
around the lines of several. ``compiler``: from the text to an address, with a cache on disk. ``plan``: which instructions of a
run become which functions. ``run``: what the machine calls in place of the run's instructions.
"""
