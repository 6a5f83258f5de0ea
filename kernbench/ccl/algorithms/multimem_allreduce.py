"""All-reduce in the switch by a kernel of its own, over symmetric memory: ``multimem.ld_reduce`` and ``multimem.st`` of PTX.

The steps and the order of reduction are those of ``nvls_allreduce``; the kernel starts as quickly as those that read the peers'
buffers, without the library's channels.
"""

from __future__ import annotations

from kernbench.ccl.algorithms import nvls_allreduce

COLLECTIVE = "all_reduce"
TOPOLOGIES = ("switch",)

build = nvls_allreduce.build
