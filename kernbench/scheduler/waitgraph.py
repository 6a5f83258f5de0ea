"""The wait-for graph: which rank waits for which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def find_cycle(waits_for: Mapping[int, Iterable[int]]) -> list[int]:
    """Return one cycle of ranks, smallest first member first, or ``[]`` if the graph has none.

    ``waits_for[r]`` are the ranks that must act before rank ``r`` can go on. The search is deterministic: ranks and
    their successors are visited in increasing order.
    """
    finished: set[int] = set()
    for root in sorted(waits_for):
        if root in finished:
            continue
        path: list[int] = []
        position: dict[int, int] = {}
        stack = [(root, iter(sorted(waits_for[root])))]
        path.append(root)
        position[root] = 0
        while stack:
            node, successors = stack[-1]
            for successor in successors:
                if successor in position:
                    cycle = path[position[successor] :]
                    least = cycle.index(min(cycle))
                    return cycle[least:] + cycle[:least]
                if successor in waits_for and successor not in finished:
                    position[successor] = len(path)
                    path.append(successor)
                    stack.append((successor, iter(sorted(waits_for[successor]))))
                    break
            else:
                stack.pop()
                path.pop()
                del position[node]
                finished.add(node)
    return []
