"""The only package that touches Triton's internals.

Triton finds ``compiler`` and ``driver`` here through the ``triton.backends`` entry point, for scripts that never
import kernbench (``KERNBENCH_TRITON=1``). What is relied on is tested by ``tests/triton_engine/test_driver_contract.py``
against every supported version.
"""
