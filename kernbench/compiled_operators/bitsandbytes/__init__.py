"""``bitsandbytes``: its own Python on kernels in the place of those of its library for CUDA, which it calls by ``ctypes``."""
