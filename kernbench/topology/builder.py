"""The front door of the room: a name or a path becomes a topology."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kernbench.defaults import DEFAULT_SYSTEM
from kernbench.plugins.manager import PluginManager
from kernbench.topology.graph import Topology
from kernbench.topology.loader import SystemSource, load_fabric, read_system
from kernbench.topology.shipped import find_config


@dataclass(frozen=True)
class TopologyHandle:
    """A resolved system: its name, the file that it came from, and the graph."""

    name: str
    path: Path
    topology_obj: Topology

    def with_nodes(self, nodes: int | None) -> TopologyHandle:
        """The system with its node repeated that often; as it is where ``nodes`` is None.

        Raises :class:`~kernbench.errors.ConfigError` if its description has nothing that joins so many nodes.
        """
        if nodes is None or nodes == self.topology_obj.nodes:
            return self
        return TopologyHandle(self.name, self.path, _repeated(self.topology_obj, nodes))


def resolve_topology(
    name_or_path: str | Path | None = None,
    *,
    nodes: int | None = None,
    fabric: str | Path | None = None,
    plugins: PluginManager | None = None,
) -> TopologyHandle:
    """The topology of a shipped system (``sip8`` without an argument) or of a YAML file.

    ``nodes`` repeats the node that often, instead of the system's own number; ``fabric`` (a shipped name or a YAML
    file) joins the nodes instead of the system's own; ``plugins`` may bring systems of their own (default: the installed
    ones). Raises :class:`~kernbench.errors.ConfigError` listing everything that is wrong with the description.
    """
    path = find_config("systems", DEFAULT_SYSTEM if name_or_path is None else name_or_path, plugins=plugins)
    source = read_system(path)
    if fabric is None:
        topology = _built(source, nodes)
    else:
        topology = Topology(source.validated().joined_by(load_fabric(fabric)), nodes=nodes, spec=source.plain)
    return TopologyHandle(topology.system.name, path, topology)


@lru_cache(maxsize=16, typed=True)
def _built(source: SystemSource, nodes: int | None) -> Topology:
    """Simulations of one process share a graph, which never changes, and what is found out about it."""
    return Topology(source.validated(), nodes=nodes, spec=source.plain)


@lru_cache(maxsize=16, typed=True)
def _repeated(topology: Topology, nodes: int) -> Topology:
    return Topology(topology.system, nodes=nodes, spec=topology.spec)
