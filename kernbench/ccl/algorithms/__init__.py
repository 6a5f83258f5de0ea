"""Collective algorithms, one module each.

A module has ``COLLECTIVE`` (what it implements), ``TOPOLOGIES`` (how members may be joined, as named by ``topology`` in
``ccl.yaml``) and ``build(members) -> Schedule``. Third parties name a module of their own in ``ccl.yaml``.
"""
