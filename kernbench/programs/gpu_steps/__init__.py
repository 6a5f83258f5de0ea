"""Whole programs whose steps are timed on one GPU, a real or a simulated one."""
