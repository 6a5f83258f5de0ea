"""What each collective does to its members' tensors.

A member brings *inputs* and gets *outputs*, one tensor per chunk of the collective's work buffer that it owns: an
all-gather takes one input and gives n outputs, a reduce-scatter the other way round. Where a collective only copies, the
chunk that arrives is the chunk that was sent whatever the route, so it is copied at once (a test holds this against the
schedule, transfer by transfer); where it reduces, members are folded in the order that the schedule prescribes.

Outputs may be the inputs' own memory, as in-place calls have it: nothing is written before it has been read. They are
given as their ``data``: autograd does not hear of it, as it does not of what a communication library writes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from operator import is_

import numpy as np
import torch

from kernbench.ccl.expressions import Expressions, combine_steps, expressions
from kernbench.ccl.reduce_op import Reduction
from kernbench.ccl.schedule import Schedule
from kernbench.ccl.values import run_all_reduce
from kernbench.collective_kinds import KINDS, CollectiveKind

Tensors = Sequence[torch.Tensor]


def _assign(target: torch.Tensor, source: torch.Tensor) -> None:
    if target.data_ptr() == source.data_ptr() and target.numel() == source.numel() and target.is_contiguous():
        return
    target.copy_(source if source.shape == target.shape else source.reshape(target.shape))


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as ``[count]``: itself or a view where that is possible, else a copy that the caller writes back."""
    return tensor if tensor.dim() == 1 else tensor.reshape(-1)


def _all_reduce(
    schedule: Schedule, inputs: Sequence[Tensors], outputs: Sequence[Tensors], op: Reduction, root: int | None
) -> None:
    # a coalesced all-reduce has several tensors per member
    for sources, targets in zip(zip(*inputs, strict=True), zip(*outputs, strict=True), strict=True):
        flat_targets = [target if target.dim() == 1 else target.reshape(-1) for target in targets]
        same = all(map(is_, sources, targets))
        flat_sources = flat_targets if same else [_flat(source) for source in sources]
        run_all_reduce(schedule, flat_sources, flat_targets, op)
        for target, flat in zip(targets, flat_targets, strict=True):
            if flat is not target and flat.data_ptr() != target.data_ptr():
                target.copy_(flat.view(target.shape))


def fold(parts: Tensors, op: Reduction) -> torch.Tensor:
    """``op(op(parts[0], parts[1]), parts[2]) ...`` as a new tensor of ``parts[0]``'s shape, ``avg`` not yet divided."""
    if len(parts) == 1:
        return parts[0].clone()
    members = len(parts)
    total = torch.empty_like(parts[0], memory_format=torch.contiguous_format)
    first, second = (op.contribution(part, members) for part in parts[:2])
    op.combine(first, second.reshape(first.shape), total)
    for part in parts[2:]:
        op.combine(total, op.contribution(part, members).reshape(total.shape), total)
    return total


def _folded(
    schedule: Schedule, owners: Sequence[int], part: Callable[[int, int], torch.Tensor], op: Reduction
) -> list[torch.Tensor]:
    """Each chunk's reduction as its owner ends with it: new tensors, ``avg`` divided. ``part(member, chunk)``: an input."""
    chains = schedule.chains_at(np.asarray(owners, dtype=np.int64))
    found = expressions(schedule) if chains is None else None
    results = []
    for chunk, owner in enumerate(owners):
        if found is None:
            assert chains is not None
            total = fold([part(member, chunk) for member in chains[chunk].tolist()], op)
        else:
            node = int(found.final[owner, chunk])
            if not found.folds_everybody(node, chunk):
                raise ValueError(
                    f"{schedule.name}: chunk {chunk} of member {owner} does not fold every member exactly once"
                )
            value = combine_steps(found.steps([node]), partial(_leaf, found, part, op, schedule.members), op)
            total = value(node).clone().view(part(owner, chunk).shape)
        op.finish(total, schedule.members)
        results.append(total)
    return results


def _leaf(
    found: Expressions, part: Callable[[int, int], torch.Tensor], op: Reduction, members: int, node: int
) -> torch.Tensor:
    return op.contribution(part(*found.leaf(node)).reshape(-1), members)


def _reduce(
    schedule: Schedule, inputs: Sequence[Tensors], outputs: Sequence[Tensors], op: Reduction, root: int | None
) -> None:
    assert root is not None
    flat = [_flat(source) for (source,) in inputs]
    bounds = schedule.chunk_bounds(flat[0].numel()).tolist()
    totals = _folded(
        schedule, [root] * schedule.chunks, lambda member, chunk: flat[member][bounds[chunk] : bounds[chunk + 1]], op
    )
    _assign(outputs[root][0], totals[0] if len(totals) == 1 else torch.cat(totals))


def _reduce_scatter(
    schedule: Schedule, inputs: Sequence[Tensors], outputs: Sequence[Tensors], op: Reduction, root: int | None
) -> None:
    totals = _folded(schedule, range(schedule.members), lambda member, chunk: inputs[member][chunk], op)
    for (target,), total in zip(outputs, totals, strict=True):
        _assign(target, total)


def _copy(
    kind: CollectiveKind,
    inputs: Sequence[Tensors],
    outputs: Sequence[Tensors],
    root: int | None,
    there: Container[int] | None = None,
) -> None:
    """Every receiver's tensors from those who have them; coalesced calls bring several in place of one."""
    senders = inputs if root is None or kind.root == "gets" else [inputs[root]]
    to_all = [tensor for brought in senders for tensor in brought]
    for receiver in kind.receivers(len(outputs), root):
        if there is not None and receiver not in there:
            continue
        sources = [brought[receiver] for brought in senders] if kind.brings == "each" else to_all
        for target, source in zip(outputs[receiver], sources, strict=True):
            _assign(target, source)


def move_among(
    collective: str,
    inputs: Sequence[Tensors],
    outputs: Mapping[int, Tensors],
    op: Reduction | None,
    root: int | None,
) -> None:
    """Move the values of a collective of which only some members are there to receive; reduced in the members' order.

    Args:
        inputs: per member.
        outputs: by the number of a member that is there.
        collective, op, root: as in :func:`move`.
    """
    kind, members = KINDS[collective], len(inputs)
    with torch.inference_mode():
        if not kind.reduces:
            if kind.gets:
                _copy(kind, inputs, [outputs.get(member, ()) for member in range(members)], root, there=outputs)
            return
        assert op is not None
        totals = []  # all before the first is written: a member may bring, also for others, what it receives into
        for receiver, targets in outputs.items():
            if kind.root and receiver != root:
                continue
            for at, target in enumerate(targets):
                chunk = receiver if kind.gets == "own" else at
                total = fold([brought[chunk] for brought in inputs], op)
                op.finish(total, members)
                totals.append((target, total))
        for target, total in totals:
            _assign(target, total)


def move(
    collective: str,
    schedule: Schedule,
    inputs: Sequence[Tensors],
    outputs: Sequence[Tensors],
    op: Reduction | None,
    root: int | None,
) -> None:
    """Move the values of a collective.

    Args:
        collective: a key of :data:`~kernbench.collective_kinds.KINDS`.
        schedule: whose order of reduction holds.
        inputs, outputs: per member, its tensors; see the module.
        op: how to reduce, None for collectives that copy.
        root: the root's member number, None for collectives without one.
    """
    with torch.inference_mode():
        kind = KINDS[collective]
        if kind.reduces:
            assert op is not None
            reduce = _reduce_scatter if kind.gets == "own" else _reduce if kind.root else _all_reduce
            reduce(schedule, inputs, outputs, op, root)
        elif kind.gets:
            _copy(kind, inputs, outputs, root)
