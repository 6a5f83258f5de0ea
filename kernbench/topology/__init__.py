"""Descriptions of systems (validated YAML) and the graph of SIPs and links that virtual time runs on.

>>> from kernbench.topology import resolve_topology
>>> topology = resolve_topology("dgx_h100", nodes=2).topology_obj
>>> topology.route(0, 8).latency        # seconds, from SIP 0 of node 0 to SIP 0 of node 1

A description is read by :func:`load_system`, :func:`load_device` and :func:`load_fabric`; docs/systems.md explains the
keys. The room knows neither torch nor time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.lazy_names import lazily

if TYPE_CHECKING:
    from kernbench.topology.builder import TopologyHandle as TopologyHandle
    from kernbench.topology.builder import resolve_topology as resolve_topology
    from kernbench.topology.cubes import CubeMesh as CubeMesh
    from kernbench.topology.device import DeviceSpec as DeviceSpec
    from kernbench.topology.graph import Topology as Topology
    from kernbench.topology.links import Link as Link
    from kernbench.topology.links import Route as Route
    from kernbench.topology.loader import load_device as load_device
    from kernbench.topology.loader import load_fabric as load_fabric
    from kernbench.topology.loader import load_system as load_system
    from kernbench.topology.shipped import added_systems as added_systems
    from kernbench.topology.shipped import shipped_devices as shipped_devices
    from kernbench.topology.shipped import shipped_fabrics as shipped_fabrics
    from kernbench.topology.shipped import shipped_systems as shipped_systems
    from kernbench.topology.system import FabricSpec as FabricSpec
    from kernbench.topology.system import SystemSpec as SystemSpec

# A shell completes names of systems, and a command line is read, before anything is described: numpy and pydantic wait.
_HOMES = {
    "CubeMesh": ".cubes",
    "DeviceSpec": ".device",
    "FabricSpec": ".system",
    "Link": ".links",
    "Route": ".links",
    "SystemSpec": ".system",
    "Topology": ".graph",
    "TopologyHandle": ".builder",
    "added_systems": ".shipped",
    "load_device": ".loader",
    "load_fabric": ".loader",
    "load_system": ".loader",
    "resolve_topology": ".builder",
    "shipped_devices": ".shipped",
    "shipped_fabrics": ".shipped",
    "shipped_systems": ".shipped",
}

__all__ = [*_HOMES]

__getattr__ = lazily(__name__, _HOMES)
