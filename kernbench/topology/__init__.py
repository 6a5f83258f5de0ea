"""Descriptions of systems (validated YAML) and the graph of SIPs and links that virtual time runs on.

>>> from kernbench.topology import resolve_topology
>>> topology = resolve_topology("dgx_h100", nodes=2).topology_obj
>>> topology.route(0, 8).latency        # seconds, from SIP 0 of node 0 to SIP 0 of node 1

A description is read by :func:`load_system`, :func:`load_device` and :func:`load_fabric`; docs/systems.md explains the
keys. The room knows neither torch nor time.
"""

from __future__ import annotations

from kernbench.topology.builder import TopologyHandle, resolve_topology
from kernbench.topology.cubes import CubeMesh
from kernbench.topology.device import DeviceSpec
from kernbench.topology.graph import Topology
from kernbench.topology.links import Link, Route
from kernbench.topology.loader import load_device, load_fabric, load_system
from kernbench.topology.shipped import added_systems, shipped_devices, shipped_fabrics, shipped_systems
from kernbench.topology.system import FabricSpec, SystemSpec

__all__ = [
    "CubeMesh",
    "DeviceSpec",
    "FabricSpec",
    "Link",
    "Route",
    "SystemSpec",
    "Topology",
    "TopologyHandle",
    "added_systems",
    "load_device",
    "load_fabric",
    "load_system",
    "resolve_topology",
    "shipped_devices",
    "shipped_fabrics",
    "shipped_systems",
]
