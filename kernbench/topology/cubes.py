"""The level inside a SIP: cubes in a mesh, die-to-die links between them, and the IO die.

Passing from a cube to its neighbour costs the die-to-die hop and one pass through the neighbour's crossbar. Traffic
that leaves or enters the SIP passes the IO die, which is attached to one cube.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

from kernbench.topology.device import Cubes
from kernbench.topology.links import Link, Route
from kernbench.topology.wiring import grid


class CubeMesh:
    """The cubes of one SIP as a graph. Cube ``y * w + x`` stands in column ``x`` of row ``y``."""

    def __init__(self, cubes: Cubes) -> None:
        self.spec = cubes
        self._wiring = grid(cubes.w, cubes.h, wrap=False)
        self.io_cube = cubes.io_die.y * cubes.w + cubes.io_die.x
        ends = [(f"cube{a}", f"cube{b}") for a, b in self._wiring.joints]
        ends += [(f"cube{self.io_cube}", "io"), ("io", f"cube{self.io_cube}")]
        self.links: tuple[Link, ...] = tuple(
            Link(index, f"{src}->{dst}", src, dst, *self._figures(src, dst), "die")
            for index, (src, dst) in enumerate(ends)
        )
        self._index = {(link.src, link.dst): link.index for link in self.links}

    def _figures(self, src: str, dst: str) -> tuple[float, float]:
        spec = self.spec
        if "io" in (src, dst):
            return spec.io_die.bandwidth, spec.io_die.latency
        return spec.die_to_die.bandwidth, spec.die_to_die.latency + spec.noc.latency

    def route(self, src: int, dst: int) -> Route:
        """The way between two cubes, columns before rows. Within one cube: its crossbar, no link."""
        return self._along([f"cube{cube}" for cube in self._wiring.path(src, dst)])

    def to_io(self, cube: int) -> Route:
        """The way from a cube's PEs to the IO die."""
        return self._along([*(f"cube{at}" for at in self._wiring.path(cube, self.io_cube)), "io"])

    def from_io(self, cube: int) -> Route:
        """The way from the IO die to a cube's PEs."""
        return self._along(["io", *(f"cube{at}" for at in self._wiring.path(self.io_cube, cube))])

    def _along(self, vertices: list[str]) -> Route:
        indices = tuple(self._index[pair] for pair in pairwise(vertices))
        latency = self.spec.noc.latency + sum(self.links[index].latency for index in indices)
        return Route(indices, latency, min((self.links[index].bandwidth for index in indices), default=float("inf")))

    @cached_property
    def egress_latency(self) -> float:
        """Mean over the cubes of the latency from a PE to the IO die; the way in costs the same."""
        count = self.spec.count
        return sum(self.to_io(cube).latency for cube in range(count)) / count
