"""Durations: what kernels, copies and collectives take on a described system."""
