"""Batches with a limited number of graphs, nodes and edges: those of the program (`crates/kdgat-graph/src/batch_budget.rs`).

``limits`` are the numbers of nodes or edges of each graph, i64 ``[graphs]``, and the most of a batch. A graph that is larger than a limit is a batch of its
own.
"""

from __future__ import annotations

from typing import List, Sequence, Tuple

import numpy as np

from kdgat.positions import ends_of

#: Newest batches, the ones that may get further graphs when they are packed.
_OPEN_BATCHES = 64

Limits = Sequence[Tuple[np.ndarray, int]]


def cut(graphs: np.ndarray, size: int, limits: Limits) -> List[np.ndarray]:
    """Cuts the graphs, in order, into batches of at most ``size`` graphs within the limits."""
    ends_and_most = [(ends_of(counts), most) for counts, most in limits]
    batches, begin = [], 0
    while begin < len(graphs):
        end = min([begin + size, *(int(ends.searchsorted(ends[begin] + most, "right")) - 1 for ends, most in ends_and_most)])
        end = max(begin + 1, end)
        batches.append(graphs[begin:end])
        begin = end
    return batches


def packed(graphs: np.ndarray, size: int, limits: Limits) -> List[np.ndarray]:
    """Puts each graph, in order, into the first open batch that has room (first fit). Batches are in the order of their first graphs."""
    # Graphs, nodes and edges of each graph; and the room that each batch has for more, [limits + 1, batches].
    needs = np.stack([np.ones(len(graphs), np.int64), *(counts for counts, _ in limits)])
    room = np.empty_like(needs)
    empty = np.array([size, *(most for _, most in limits)], np.int64)
    batches: List[List[int]] = []
    for graph, need in zip(graphs.tolist(), needs.T):
        first, end = max(0, len(batches) - _OPEN_BATCHES), len(batches)
        has_room = (room[:, first:end] >= need[:, None]).all(0)
        found = first + int(has_room.argmax()) if has_room.any() else end
        if found == end:
            batches.append([])
            room[:, end] = empty
        batches[found].append(graph)
        room[:, found] -= need
    return [np.array(batch, np.int64) for batch in batches]
