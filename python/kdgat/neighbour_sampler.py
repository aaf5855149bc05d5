"""Neighbour sampling (GraphSAGE, Hamilton et al. 2017): the samples of the program, bit by bit.

`crates/kdgat-nodes/src/sampler.rs` and `pick.rs` have the same method, and a test the same golden sample: small rows are drawn by Floyd's algorithm (Bentley &
Floyd 1987), long ones independently, and again if two positions coincide. Here all rows of a layer are drawn at once.
"""

from __future__ import annotations

import dataclasses
from typing import List, Optional, Sequence

import numpy as np

from kdgat.epoch_order import GOLDEN, NEIGHBOURS, below, finalize, mix, random_bits
from kdgat.graph_shards import spelled_out

#: Longest row that is drawn by Floyd's algorithm, whatever the number of picks; and the largest number of picks of a longer row that is never drawn by it.
_SHORT_ROW, _FEW = 512, 16
#: Most edges of a layer.
_MOST_EDGES = (1 << 31) - 1


@dataclasses.dataclass(frozen=True)
class Layer:
    """The edges of one layer. Its targets are the first of its sources; each has one self-loop."""

    #: Edges of target ``i`` are ``indptr[i]`` to ``indptr[i + 1]``, i64 ``[targets + 1]``.
    indptr: np.ndarray
    #: Row of the source of each edge in :attr:`Sample.nodes`, i64 ``[edges]``; those of a target ascend by their numbers in the graph.
    sources: np.ndarray
    #: Number of sources, the targets included.
    num_sources: int

    @property
    def num_targets(self) -> int:
        """Number of targets."""
        return len(self.indptr) - 1

    @property
    def edge_index(self) -> np.ndarray:
        """Source and target of each edge, i64 ``[2, edges]``, as rows of the layer's input: what a layer of PyTorch Geometric reads."""
        return np.stack([self.sources, np.repeat(np.arange(self.num_targets), np.diff(self.indptr))])


@dataclasses.dataclass(frozen=True)
class Sample:
    """The neighbourhood of some seeds."""

    #: Number in the graph of each row that the first layer reads, i64 ``[rows]``: the seeds, then other nodes in order of first appearance.
    nodes: np.ndarray
    #: The layers in the order of a network: the first one is the widest, and the last one has the seeds as targets.
    layers: List[Layer]
    #: Row of each seed in the last layer's output, i64 ``[seeds]``: 0, 1, 2…, unless a seed is given twice.
    seed_rows: np.ndarray


class Sampler:
    """Samples neighbourhoods in a graph whose edges are given by target."""

    def __init__(self, indptr: np.ndarray, indices: np.ndarray) -> None:
        """``indptr``: i64 ``[nodes + 1]``; ``indices``: sources, u32 ``[edges]``, ascending for each target."""
        self._indptr, self._indices = indptr, indices

    def sample(self, seeds: np.ndarray, fanouts: Sequence[Optional[int]], seed: int, epoch: int) -> Sample:
        """Samples the neighbourhood of ``seeds``, i64; see :meth:`kdgat.NodeStore.sample`."""
        if any(fanout is not None and fanout < 0 for fanout in fanouts):
            raise ValueError(f"fanouts={list(fanouts)}: expected whole numbers from 0, or None for all neighbours")
        rows = _Rows(len(self._indptr) - 1)
        seed_rows = rows.number(seeds)
        keys = random_bits(seed, NEIGHBOURS, epoch, np.arange(len(fanouts)))
        layers = []
        for fanout, key in zip(fanouts, keys):
            targets = rows.nodes()
            starts = self._indptr[targets]
            lengths = self._indptr[targets + 1] - starts
            edges, counts = _chosen(targets, starts, lengths, fanout, key)
            if len(edges) + len(targets) > _MOST_EDGES:
                raise ValueError(f"{len(edges) + len(targets)} edges in one layer, at most {_MOST_EDGES} are possible: use fewer nodes at a time")
            neighbours = self._indices[edges].astype(np.int64)
            layers.append(_layer(targets, neighbours, counts, rows.number(neighbours), len(rows)))
        return Sample(rows.nodes(), layers[::-1], seed_rows)


class _Rows:
    """Numbers nodes in order of first appearance."""

    def __init__(self, nodes: int) -> None:
        # Memory that is not written takes none.
        self._row, self._is_known = np.empty(nodes, np.int64), np.zeros(nodes, bool)
        self._parts: List[np.ndarray] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def nodes(self) -> np.ndarray:
        """The nodes by number."""
        self._parts = [np.concatenate(self._parts)] if self._parts else [np.zeros(0, np.int64)]
        return self._parts[0]

    def number(self, found: np.ndarray) -> np.ndarray:
        """Rows of these nodes; new ones get the next numbers."""
        new = found[~self._is_known[found]]
        # Of several assignments to a place the last one stays: that of the first appearance.
        places = np.arange(len(new))
        self._row[new[::-1]] = places[::-1]
        new = new[self._row[new] == places]
        self._row[new] = np.arange(self._count, self._count + len(new))
        self._is_known[new] = True
        self._parts.append(new)
        self._count += len(new)
        return self._row[found]


def _layer(targets: np.ndarray, neighbours: np.ndarray, counts: np.ndarray, rows: np.ndarray, num_sources: int) -> Layer:
    """The edges with a self-loop of each target, where its number in the graph belongs."""
    indptr = np.concatenate([[0], np.cumsum(counts + 1)])
    of_edge = np.repeat(np.arange(len(targets)), counts)
    is_above = neighbours > targets[of_edge]
    sources = np.empty(int(indptr[-1]), np.int64)
    # Targets before an edge have one self-loop each, and so has its own, if it is below.
    sources[np.arange(len(neighbours)) + of_edge + is_above] = rows
    below_self = counts - np.bincount(of_edge, is_above, len(targets)).astype(np.int64)
    sources[indptr[:-1] + below_self] = np.arange(len(targets))
    return Layer(indptr, sources, num_sources)


def _chosen(targets: np.ndarray, starts: np.ndarray, lengths: np.ndarray, fanout: Optional[int], key: np.uint64) -> tuple:
    """The chosen edges of all targets, one target after another, and their numbers."""
    counts = lengths if fanout is None else np.minimum(lengths, fanout)
    ends = np.concatenate([[0], np.cumsum(counts)])
    edges = spelled_out(starts, counts, ends)
    drawn = np.flatnonzero(lengths > counts)
    if fanout and len(drawn):
        keys = mix(key ^ targets[drawn].astype(np.uint64))
        picks = _picks(keys, lengths[drawn], fanout)
        edges[ends[drawn][:, None] + np.arange(fanout)] = starts[drawn][:, None] + picks
    return edges, counts


def _picks(keys: np.ndarray, lengths: np.ndarray, count: int) -> np.ndarray:
    """For each row of more than ``count`` positions, so many of them, ascending, i64 ``[rows, count]``."""
    # As `Picker::pick`: up to 64 positions, and up to 512 or with many picks, by Floyd's algorithm.
    if count <= _FEW:
        by_floyd = lengths <= _SHORT_ROW
    else:
        by_floyd = lengths <= max(_SHORT_ROW, count * 64, count * count)
    picks = np.empty((len(keys), count), np.int64)
    for method, rows in ((_by_floyd, np.flatnonzero(by_floyd)), (_independent, np.flatnonzero(~by_floyd))):
        if len(rows):
            picks[rows] = method(keys[rows], lengths[rows], count)
    picks.sort(axis=1)
    return picks


def _draws(keys: np.ndarray, first: int, count: int, bounds: np.ndarray) -> np.ndarray:
    """Draws ``first`` to ``first + count`` of each row's SplitMix64 generator, below ``bounds`` ``[rows, count or 1]``, i64 ``[rows, count]``."""
    steps = np.arange(first + 1, first + count + 1, dtype=np.uint64) * GOLDEN
    return below(finalize(keys[:, None] + steps), bounds.astype(np.uint64)).astype(np.int64)


def _by_floyd(keys: np.ndarray, lengths: np.ndarray, count: int) -> np.ndarray:
    last = lengths[:, None] - count + np.arange(count)
    chosen = _draws(keys, 0, count, last + 1)
    for column in range(1, count):
        # A position that is taken is replaced by the last one, which cannot be taken yet.
        is_taken = (chosen[:, :column] == chosen[:, column, None]).any(1)
        np.copyto(chosen[:, column], last[:, column], where=is_taken)
    return chosen


def _independent(keys: np.ndarray, lengths: np.ndarray, count: int) -> np.ndarray:
    picks = np.empty((len(keys), count), np.int64)
    rows, first = np.arange(len(keys)), 0
    while len(rows):
        drawn = np.sort(_draws(keys[rows], first, count, lengths[rows, None]), axis=1)
        is_distinct = (drawn[:, 1:] != drawn[:, :-1]).all(1)
        picks[rows[is_distinct]] = drawn[is_distinct]
        rows, first = rows[~is_distinct], first + count
    return picks
