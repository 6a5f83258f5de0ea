"""Torch without data: operations on simulated GPUs are answered by the shapes of their results, and small ones computed.

A *hollow* tensor is a CPU tensor with shape, stride, dtype, storage and lifetime whose bytes are never computed or touched, so
that they take address space and no memory. Here is which operations are computed nevertheless (``recorder``), what the others
give (``shapes``, ``selections``), what is assumed of their values (``stand_ins``), and what the host reads (``looks``).
"""
