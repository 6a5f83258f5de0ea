"""Memory of simulated devices: how PyTorch's allocator uses it, what is in use for what, and how much of it there is.

Plain Python: nothing here knows torch, ranks or time. The room above gives addresses to storages with it
(:mod:`kernbench.simulation.memory.storages`).
"""
