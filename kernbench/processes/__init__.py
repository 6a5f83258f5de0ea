"""Ranks that are OS processes, joined to one simulation (ADR 0120).

The simulation stays in the process that spawns: virtual time, streams, links, matching, stores, reports. Every rank is a fork
of it that runs the rank's program with its own torch, and whatever else Python keeps per process. In the simulation a greenlet,
the :class:`~kernbench.processes.relay.Relay`, stands for the rank: it makes the calls that the rank has sent, in the order in
which the rank made them, when the scheduler says that it is that rank's turn. So the order in which processes run on the
host changes nothing.
"""
