"""Triton kernels of the kinds people really write, one subject per file.

Each module holds the ``@triton.jit`` kernels and the Python function that launches them on plain tensors, as a user's
own file would. They are written against the public Triton language only, name no device, and know nothing of kernbench:
the test suite runs them on the engine, the speed benchmark times them, and they are a place to look up how a pattern
(spin lock, pointer table, tensor descriptor) is written.
"""
