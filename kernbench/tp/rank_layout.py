"""How ranks are laid out over the kinds of parallelism: ``order="tp-cp-dp-pp"``, the first varying fastest.

With 16 ranks, TP 2 and PP 4, ranks 0 and 1 are a tensor group, 0 and 2 a data group, 0 4 8 12 a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernbench.tp.errors import PartitionError

DIMENSIONS = ("tp", "cp", "ep", "dp", "pp")


@dataclass(frozen=True)
class RankLayout:
    """Sizes of the dimensions, and their order from fastest to slowest.

    Attributes:
        sizes: ``{"tp": 2, "cp": 1, "dp": 4, "pp": 1}``.
        order: ``"tp-cp-dp-pp"``; a dimension of size 1 may be left out.
    """

    sizes: Mapping[str, int]
    order: str

    def __post_init__(self) -> None:
        names = self.names
        unknown = [name for name in names if name not in DIMENSIONS]
        missing = [name for name, size in self.sizes.items() if size > 1 and name not in names]
        if unknown or missing or len(set(names)) != len(names):
            raise PartitionError(
                f"order {self.order!r}: expected each of {'-'.join(DIMENSIONS)} at most once"
                + (f"; {', '.join(unknown)} is not one" if unknown else "")
                + (f"; {', '.join(missing)} is larger than 1 and must be in it" if missing else "")
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Dimension names, fastest first."""
        return tuple(self.order.split("-"))

    @property
    def world_size(self) -> int:
        """The product of all sizes."""
        return int(np.prod([self.sizes.get(name, 1) for name in self.names]))

    def groups(self, dimensions: str) -> list[list[int]]:
        """The groups along ``dimensions`` (``"tp"``, ``"dp-cp"``): together they hold every rank once, each ascending."""
        slowest_first = self.names[::-1]
        grid = np.arange(self.world_size).reshape([self.sizes.get(name, 1) for name in slowest_first])
        along = [axis for axis, name in enumerate(slowest_first) if name in dimensions.split("-")]
        across = [axis for axis in range(len(slowest_first)) if axis not in along]
        members = int(np.prod([grid.shape[axis] for axis in along]))
        result: list[list[int]] = grid.transpose(across + along).reshape(-1, members).tolist()
        return result
