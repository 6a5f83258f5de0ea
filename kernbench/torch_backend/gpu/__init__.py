"""The simulated GPU: what a program written for ``cuda`` asks torch, answered without one."""
