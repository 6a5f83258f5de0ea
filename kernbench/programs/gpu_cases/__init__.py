"""Calls of torch that :mod:`kernbench.programs.gpu_times` times: what each computes with, by sets of groups."""
