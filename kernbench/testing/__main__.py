"""``python -m kernbench.testing``: what the marks, fixtures and options of the pytest plugin take."""

from kernbench.testing.declared import described

print(*described(), sep="\n")
