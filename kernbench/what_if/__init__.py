"""A training program at many settings, systems and sizes: which is quickest, and which fits. See ``docs/what_if.md``."""

from kernbench.what_if.question import Question
from kernbench.what_if.run import Answer, ask

__all__ = ["Answer", "Question", "ask"]
