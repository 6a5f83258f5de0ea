"""One simulation: who runs and what time it is, streams, values, and where the ranks' calls meet.

Each module has one owner, which is given what it needs; :class:`~kernbench.simulation.simulation.Simulation` wires them. What
a rank does by itself (its host's clock, its streams, its values: ``hosts``, ``streams``, ``values``, ``storages``,
``host_reads``) and what concerns others (``matching``, ``messages``, ``collective_runs``, ``deadlines``, ``reports``,
``drain``) meet in ``matching.Matcher.post``, which takes an :class:`~kernbench.simulation.groups.Arrival`.
"""
