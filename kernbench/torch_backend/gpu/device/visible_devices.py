"""Which GPUs of its node a process sees, and in which order: ``CUDA_VISIBLE_DEVICES``, and what AMD's runtimes have for it.

Sources: CUDA Programming Guide, "CUDA Environment Variables"; ROCm documentation, "GPU isolation techniques". ROCm's lower
runtime reads ``ROCR_VISIBLE_DEVICES``; HIP picks of what that leaves by ``HIP_VISIBLE_DEVICES``, or else by CUDA's variable.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kernbench.topology import Topology

_CUDA = "CUDA_VISIBLE_DEVICES"

VARIABLES: dict[str, tuple[tuple[str, ...], ...]] = {
    "cuda": ((_CUDA,),),
    "hip": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", _CUDA)),
}
"""By Triton's backend: one tuple per selection, each of what the last one has left; of a tuple the first that is set."""

_NAMESPACE = uuid.UUID("6f9c2f52-6a5d-5a0e-9a53-0d6f2f6f4f4e")
_NUMBER = re.compile(r"[+-]?\d+")  # as C's strtoul: `1gpu` is 1


def uuid_of(system: str, sip: int) -> uuid.UUID:
    """Of a SIP of a system: made of its name and the SIP's number, so that it is the same in every run."""
    return uuid.uuid5(_NAMESPACE, f"{system}/{sip}")


class NodeGpus(NamedTuple):
    """The GPUs of a node.

    Attributes:
        per_node: how many.
        system: its name.
        first: SIP of the first one.
        backend: of the device, as Triton has it.
    """

    per_node: int
    system: str = ""
    first: int = 0
    backend: str = "cuda"

    @classmethod
    def of(cls, topology: Topology, node: int = 0) -> NodeGpus:
        """Those of a node of a system."""
        return cls(
            topology.sips_per_node, topology.system.name, topology.sips_of(node)[0], topology.device.target.backend
        )

    def visible(self, environ: Mapping[str, str] = os.environ) -> tuple[int, ...]:
        """Those that a process with this environment sees, by their numbers on the node, in the order of its ordinals.

        Unset, all; else those that are listed before the first that does not exist, and none if one is listed twice. They are
        listed by number, or by the beginning of a UUID (``GPU-8932f937``) that no other has.
        """
        found = tuple(range(self.per_node))
        for _, value in settings(environ, self.backend):
            found = self._listed(value, found)
        return found

    def _listed(self, value: str, among: Sequence[int]) -> tuple[int, ...]:
        found: list[int] = []
        for part in value.split(","):
            index = self._index(part.strip(), among)
            if index is None:
                break
            if among[index] in found:
                return ()
            found.append(among[index])
        return tuple(found)

    def _index(self, word: str, among: Sequence[int]) -> int | None:
        """Where the GPU that a word means is in ``among``; None if there is none, or several."""
        if word.startswith("GPU-"):
            start = word.removeprefix("GPU-").lower()
            fits = [
                index for index, gpu in enumerate(among)
                if str(uuid_of(self.system, self.first + gpu)).startswith(start)
            ]  # fmt: skip
            return fits[0] if len(fits) == 1 else None
        number = _NUMBER.match(word)
        index = int(number[0]) if number and len(number[0]) < 19 else -1
        return index if 0 <= index < len(among) else None


def visible_first(topology: Topology, sips: Sequence[int], environ: Mapping[str, str] = os.environ) -> list[int]:
    """Some SIPs of a system in the order in which ranks drive them: of each node, those that the environment names first."""
    if not settings(environ, topology.device.target.backend):
        return list(sips)
    order = []
    for node in dict.fromkeys(map(topology.node_of, sips)):
        there = topology.sips_of(node)
        named = [there[number] for number in NodeGpus.of(topology, node).visible(environ) if there[number] in sips]
        order += [*named, *(sip for sip in sips if sip in there and sip not in named)]
    return order


def settings(environ: Mapping[str, str], backend: str = "cuda") -> list[tuple[str, str]]:
    """The variables that are set and in force, with their values."""
    in_force = (next((name for name in names if name in environ), None) for names in VARIABLES[backend])
    return [(name, environ[name]) for name in in_force if name is not None]


def words(environ: Mapping[str, str], backend: str = "cuda") -> str:
    """The variables as they would be written on a command line."""
    return " ".join(
        f"{name}={value!r}" if not value else f"{name}={value}" for name, value in settings(environ, backend)
    )
