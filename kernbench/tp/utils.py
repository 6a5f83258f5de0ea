"""Splitting sizes and tensors over ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kernbench.tp import comm
from kernbench.tp.errors import PartitionError


def whoami(layer: str = "") -> str:
    """How messages name the place: ``rank 3, ColumnParallelLinear 'fc1'``."""
    return f"rank {comm.world_rank()}" + (f", {layer}" if layer else "")


def ensure_divisibility(numerator: int, denominator: int, what: str = "", layer: str = "") -> None:
    """Raise :class:`PartitionError` unless ``numerator`` is a multiple of ``denominator``."""
    if denominator < 1 or numerator % denominator:
        raise PartitionError(
            f"{whoami(layer)}: {what or 'size'} {numerator} is not divisible by {denominator}"
            + (f" (remainder {numerator % denominator})" if denominator > 0 else "")
        )


def divide(numerator: int, denominator: int, what: str = "", layer: str = "") -> int:
    """``numerator // denominator``, which must be exact. ``what`` and ``layer`` are for the error."""
    ensure_divisibility(numerator, denominator, what, layer)
    return numerator // denominator


def split_tensor_along_last_dim(
    tensor: torch.Tensor, num_partitions: int, contiguous_split_chunks: bool = False
) -> Sequence[torch.Tensor]:
    """``tensor`` ``[..., n]`` as ``num_partitions`` views ``[..., n / num_partitions]`` (copies when contiguous)."""
    size = divide(tensor.size(-1), num_partitions, f"last dimension of {tuple(tensor.shape)}")
    parts = torch.split(tensor, size, dim=-1)
    return tuple(part.contiguous() for part in parts) if contiguous_split_chunks else parts


class VocabUtility:
    """Which words of the vocabulary a rank holds: ``[first, last)``."""

    @staticmethod
    def vocab_range_from_per_partition_vocab_size(
        per_partition_vocab_size: int, rank: int, world_size: int
    ) -> tuple[int, int]:
        """Of a rank that holds ``per_partition_vocab_size`` words."""
        first = rank * per_partition_vocab_size
        return first, first + per_partition_vocab_size

    @staticmethod
    def vocab_range_from_global_vocab_size(global_vocab_size: int, rank: int, world_size: int) -> tuple[int, int]:
        """Of a vocabulary that is divided evenly."""
        size = divide(global_vocab_size, world_size, "vocabulary size")
        return VocabUtility.vocab_range_from_per_partition_vocab_size(size, rank, world_size)
