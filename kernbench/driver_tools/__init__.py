"""Tools of a GPU's driver as ranks find them: NVML and ``nvidia-smi``, which list the simulated GPUs of a node.

The torch backend knows them by one protocol, :class:`kernbench.torch_backend.environment.DriverTools`.
"""
