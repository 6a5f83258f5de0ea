"""Triton kernels of the parallel layers."""
