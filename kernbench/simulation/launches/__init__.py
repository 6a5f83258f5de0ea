"""What is put on streams: kernels of Triton, functions of Python, signals."""
