"""What processes find that a command under ``kernbench run`` starts: this folder is put first on ``PYTHONPATH``."""
