"""Tokens in the order of the experts that they are for, as grouped products take them: in whole blocks of one expert each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

Tensor = torch.Tensor


def fill_blocks(
    chosen: Sequence[int], experts: Iterable[tuple[int, int]], block_size: int, places: Tensor, numbers: Tensor
) -> list[int]:
    """Write the places in ``chosen`` by expert, each expert's filled up to whole blocks with a place that is none.

    Args:
        chosen: experts of the tokens.
        experts: in order, as they are chosen, and the number that their blocks have.
        block_size: places of a block.
        places: is written.
        numbers: the expert of each block, is written; ``-1`` behind the last.

    Returns:
        Where the places of each expert end.
    """
    found: list[int] = []
    blocks: list[int] = []
    ends: list[int] = []
    for expert, number in experts:
        mine = [place for place, each in enumerate(chosen) if each == expert]
        found += mine + [len(chosen)] * (-len(mine) % block_size)
        blocks += [number] * -(-len(mine) // block_size)
        ends.append(len(found))
    places.fill_(len(chosen))[: len(found)] = torch.tensor(found, dtype=places.dtype)
    numbers.fill_(-1)[: len(blocks)] = torch.tensor(blocks, dtype=numbers.dtype)
    return ends
