"""What processes find that a command under ``kernbench run`` starts: this folder is put first on ``PYTHONPATH``."""

ALONE = "KERNBENCH_ALONE"
"""The environment variable by which a process has a GPU of its own: JSON of a system's file, the options of
:func:`kernbench.simulate`, and the path of a file of figures (:mod:`kernbench.runtime_api.lone_processes`)."""
