"""Where the members of a collective stand: what an algorithm may know when it builds its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kernbench.ccl.schedule import IntArray
from kernbench.errors import ConfigError
from kernbench.topology import Topology
from kernbench.topology.system import GRID_TOPOLOGIES


@dataclass(frozen=True)
class Placement:
    """Where each member stands.

    Attributes:
        node: ``[members]`` node of each member, numbered 0, 1, ... by first appearance.
        grid: ``(w, h)`` of a node whose SIPs stand in a mesh or torus, else None.
        spot: ``[members]`` place of each member in its node's grid (row by row), empty without a grid.
        wraps: whether that grid is a torus.
        reduces_in_switch: whether a node's SIPs are joined by a switch that reduces and multicasts in flight.
    """

    node: tuple[int, ...]
    grid: tuple[int, int] | None = None
    spot: tuple[int, ...] = ()
    wraps: bool = False
    reduces_in_switch: bool = False

    @classmethod
    def flat(cls, members: int, *, nodes: int = 1, reduces_in_switch: bool = False) -> Placement:
        """``members`` over ``nodes`` nodes, as evenly as possible and in order, joined in no particular way."""
        numbers = np.arange(members) * nodes // max(members, 1)
        return cls(tuple(numbers.tolist()), reduces_in_switch=reduces_in_switch)

    @classmethod
    def of(cls, topology: Topology, sips: Sequence[int]) -> Placement:
        """The placement of members on ``sips`` of a system."""
        numbers: dict[int, int] = {}
        node = tuple(numbers.setdefault(topology.node_of(sip), len(numbers)) for sip in sips)
        described = topology.system.sips
        grid: tuple[int, int] | None = None
        spot: tuple[int, ...] = ()
        if described.topology in GRID_TOPOLOGIES:
            grid = (described.w or 1, described.h or 1)
            spot = tuple(sip % topology.sips_per_node for sip in sips)
        return cls(node, grid, spot, described.topology == "torus_2d", described.reduces_in_switch)

    @classmethod
    def of_cubes(cls, topology: Topology, sips: Sequence[int]) -> Placement:
        """The placement of members that are the cubes of ``sips``, SIP after SIP: a SIP is what a node is otherwise.

        Raises ConfigError if the system's SIPs have no cubes.
        """
        mesh = topology.cube_mesh
        if mesh is None:
            raise ConfigError(f"system {topology.system.name}: its SIPs have no cubes")
        count = mesh.spec.count
        node = np.repeat(np.arange(len(sips)), count)
        return cls(tuple(node.tolist()), (mesh.spec.w, mesh.spec.h), tuple(range(count)) * len(sips))

    @property
    def members(self) -> int:
        """How many members there are."""
        return len(self.node)

    @property
    def nodes(self) -> int:
        """How many nodes they are on."""
        return max(self.node, default=0) + 1

    @cached_property
    def by_node(self) -> tuple[tuple[int, ...], ...]:
        """Members of each node, in order."""
        found: list[list[int]] = [[] for _ in range(self.nodes)]
        for member, node in enumerate(self.node):
            found[node].append(member)
        return tuple(map(tuple, found))

    @cached_property
    def even(self) -> IntArray | None:
        """``[nodes, members of a node]`` member numbers, None if nodes have different numbers of members."""
        sizes = {len(members) for members in self.by_node}
        return np.asarray(self.by_node, dtype=np.int64) if len(sizes) == 1 else None

    @cached_property
    def planes(self) -> tuple[IntArray, ...] | None:
        """Per node ``[rows, columns]`` its members, where they fill a whole rectangle of its grid; None unless all do."""
        if self.grid is None:
            return None
        width = self.grid[0]
        found = []
        for members in self.by_node:
            at = {self.spot[member]: member for member in members}
            columns = sorted({spot % width for spot in at})
            rows = sorted({spot // width for spot in at})
            wanted = [[row * width + column for column in columns] for row in rows]
            if len(at) < len(members) or any(spot not in at for line in wanted for spot in line):
                return None
            found.append(np.asarray([[at[spot] for spot in line] for line in wanted], dtype=np.int64))
        return tuple(found)
