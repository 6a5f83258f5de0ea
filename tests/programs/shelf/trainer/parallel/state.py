"""Who this process is, once set up: a global object, and what was computed when the module was imported."""

import os
from typing import ClassVar

import torch.distributed as dist

RANK = int(os.environ["RANK"])
manager = None


class Manager:
    """The groups of this process, in a grid of data-parallel rows and tensor-parallel columns."""

    instances: ClassVar = []

    def __init__(self, tensor: int) -> None:
        world = dist.get_world_size()
        self.tensor, self.data = tensor, world // tensor
        columns = [dist.new_group([*range(first, first + tensor)]) for first in range(0, world, tensor)]
        rows = [dist.new_group([*range(first, world, tensor)]) for first in range(tensor)]
        self.tensor_rank, self.data_rank = RANK % tensor, RANK // tensor
        self.tensor_group, self.data_group = columns[self.data_rank], rows[self.tensor_rank]
        Manager.instances.append(RANK)


def set_up(tensor: int) -> None:
    """Make the groups of this process."""
    global manager
    manager = Manager(tensor)
