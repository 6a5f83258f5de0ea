"""The simulated GPU: what a program written for ``cuda`` asks torch, answered without one.

Its rooms, from the bottom: ``tensors`` (which are on one), ``kernels`` (what computes where the CPU's kernels are other ones),
``device`` (the GPUs of a rank, their streams and generators), ``memory`` and ``tools`` (what the driver's tools say), and
``names``, which stand in the place of torch's own.
"""
