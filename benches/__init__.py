"""Benchmark programs: each has ``run(ctx)`` and is ``python -m``-able.

In a source tree this is the package ``benches``. An installed wheel carries it as ``kernbench.benches``, so that it takes no
name of other packages; there, once it is imported, it goes by its short name as well, by which its modules call each other.
"""

import sys

sys.modules.setdefault("benches", sys.modules[__name__])
