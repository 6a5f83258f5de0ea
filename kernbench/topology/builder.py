"""The front door of the room: a name or a path becomes a topology."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernbench.plugins.manager import PluginManager
from kernbench.topology.graph import Topology
from kernbench.topology.loader import DEFAULT_SYSTEM, load_fabric, read_system
from kernbench.topology.shipped import find_config


@dataclass(frozen=True)
class TopologyHandle:
    """A resolved system: its name, the file that it came from, and the graph."""

    name: str
    path: Path
    topology_obj: Topology


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
    system, plain = read_system(path)
    if fabric is not None:
        system = system.joined_by(load_fabric(fabric))
    return TopologyHandle(system.name, path, Topology(system, nodes=nodes, spec=plain))
