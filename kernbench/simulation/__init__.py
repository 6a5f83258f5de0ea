"""One simulation: who runs and what time it is, streams, values, and where the ranks' calls meet.

Each module has one owner, which is given what it needs; :class:`~kernbench.simulation.simulation.Simulation` wires them. Its
rooms, from the bottom: ``ranks`` (hosts and their clocks), ``time`` (waits), ``memory`` (storages), ``values``, ``order``
(where accesses are watched), ``launches`` (what is put on streams) and ``matching`` (what concerns others, which meets in
``matcher.Matcher.post`` and takes a :class:`~kernbench.simulation.matching.groups.Arrival`). Above them are the modules of the
whole: the drain, the world of a spawn, reports of deadlocks, looks at values.
"""
