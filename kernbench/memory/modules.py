"""Memory by module of a model: layers that are alike in one row, and what recomputing them would save."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

OUTSIDE = "(in no module)"
ANY = "*"
"""In a name, for the numbers of layers that are alike."""


class ModuleUse:
    """A module that has been called.

    Attributes:
        name: its path from the root once that is known, until then its class.
        input_bytes: memory of the tensors that it was given at its first call.
    """

    __slots__ = ("input_bytes", "name")

    def __init__(self, name: str, input_bytes: int = 0) -> None:
        self.name = name
        self.input_bytes = input_bytes


def layers_of(names: Iterable[str]) -> Callable[[str], str]:
    """A function from names of modules to the name of all that are alike: numbers of modules that have parts become ``*``, as
    they are those of layers (``"GPT.blocks.7.mlp.0"``: ``"GPT.blocks.*.mlp.0"``)."""
    parents = {".".join(parts[:at]) for parts in (name.split(".") for name in names) for at in range(1, len(parts))}

    def alike(name: str) -> str:
        parts = name.split(".")
        return ".".join(
            ANY if part.isdigit() and ".".join(parts[: at + 1]) in parents else part for at, part in enumerate(parts)
        )

    return alike


def by_layer(owners: Mapping[str, int], whole: int) -> dict[str, int]:
    """Bytes by module, layers that are alike in one row and what is in no module in another; largest first."""
    alike = layers_of(owners)
    rows: dict[str, int] = defaultdict(int)
    numbers: dict[str, set[str]] = defaultdict(set)
    for name, nbytes in owners.items():
        rows[alike(name)] += nbytes
        numbers[alike(name)].add(name)
    named = {
        f"{row} ({len(numbers[row])} modules)" if len(numbers[row]) > 1 else next(iter(numbers[row])): nbytes
        for row, nbytes in rows.items()
    }
    outside = whole - sum(owners.values())
    if named and outside > 0:
        named[OUTSIDE] = outside
    return dict(sorted(named.items(), key=lambda row: -row[1]))


@dataclass(frozen=True)
class Recomputation:
    """What is saved if layers keep their inputs alone and are computed again in the backward pass.

    Attributes:
        layers: their common name.
        count: how many there are.
        saved: bytes.
        again: bytes that one of them has again while its backward pass runs, at most.
    """

    layers: str
    count: int
    saved: int
    again: int


def recomputation_of(activations: Mapping[str, int], inputs: Mapping[str, int]) -> Recomputation | None:
    """The layers whose recomputation saves most; None if there are none.

    Args:
        activations: bytes that are kept for the backward pass, by the module that allocated them.
        inputs: bytes of what modules are given, by name.
    """
    alike = layers_of([*activations, *inputs])
    held: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for name, nbytes in activations.items():
        parts, common = name.split("."), alike(name).split(".")
        for at, part in enumerate(common):
            if part == ANY:
                held[".".join(common[: at + 1])][".".join(parts[: at + 1])] += nbytes
    found = [
        Recomputation(
            layers, len(of_layer), sum(max(nbytes - inputs.get(name, 0), 0) for name, nbytes in of_layer.items()),
            max(of_layer.values()),
        )
        for layers, of_layer in held.items() if len(of_layer) > 1
    ]  # fmt: skip
    return max(found, key=lambda each: each.saved, default=None)
