"""Who this process is, once set up: a global object, and what was computed when the module was imported."""

import os
from typing import ClassVar

import torch.distributed as dist

RANK = int(os.environ["RANK"])
manager = None


class Manager:
    """The groups of this process, in a grid of data, pipeline, context and tensor parallelism (the last one is innermost)."""

    instances: ClassVar = []

    def __init__(self, tensor: int, pipeline: int, context: int) -> None:
        sizes = {"data": dist.get_world_size() // (tensor * pipeline * context), "pipeline": pipeline,
                 "context": context, "tensor": tensor}  # fmt: skip
        self.sizes, self.ranks, self.groups, self.members = sizes, {}, {}, {}
        step = 1
        for name in reversed(sizes):
            self.ranks[name] = RANK // step % sizes[name]
            for first in range(dist.get_world_size()):
                if first // step % sizes[name] == 0:
                    members = [first + place * step for place in range(sizes[name])]
                    group = dist.new_group(members)
                    if RANK in members:
                        self.groups[name], self.members[name] = group, members
            step *= sizes[name]
        Manager.instances.append(RANK)

    def neighbour(self, name: str, by: int) -> int:
        """The rank that is ``by`` places further along a dimension, around its end."""
        members = self.members[name]
        return members[(self.ranks[name] + by) % len(members)]

    def part(self, name: str, size: int) -> slice:
        """This rank's part of something of ``size`` that is split along a dimension."""
        each = size // self.sizes[name]
        return slice(self.ranks[name] * each, (self.ranks[name] + 1) * each)


def set_up(tensor: int, pipeline: int, context: int) -> None:
    """Make the groups of this process."""
    global manager
    manager = Manager(tensor, pipeline, context)
