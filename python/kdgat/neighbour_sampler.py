"""Neighbour sampling (GraphSAGE, Hamilton et al. 2017): the samples of the program, bit by bit.

Wheels have the program's own sampler, compiled (`crates/kdgat-python`). Without it, NumPy draws the same: `crates/kdgat-node-store/src/sampler.rs` and `pick.rs`
have the same method, and a test the same golden sample. Small rows are drawn by Floyd's algorithm (Bentley & Floyd 1987), long ones independently, and again if
two positions coincide. Here all rows of a layer are drawn at once.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import pathlib
from typing import List, Optional, Sequence

import numpy as np

from kdgat.epoch_order import GOLDEN, NEIGHBOURS, below, check_word, finalize, mix, random_bits
from kdgat.mapped_file import reopened
from kdgat.positions import ends_of, spelled_out

#: Longest row that is drawn by Floyd's algorithm, whatever the number of picks; and the largest number of picks of a longer row that is never drawn by it.
_SHORT_ROW, _FEW = 512, 16
#: Draws that are made at once: their numbers stay in the processor's caches.
_DRAWS_AT_ONCE = 1 << 14
#: Most edges of a layer.
_MOST_EDGES = (1 << 31) - 1
#: Largest fan-out of the compiled sampler; no node has more neighbours.
_MOST_NEIGHBOURS = (1 << 32) - 1
#: The compiled module, if this package has it: that of a wheel has, a checkout has not.
_native = importlib.import_module("kdgat._native") if importlib.util.find_spec("kdgat._native") else None


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


def _check_fanouts(fanouts: Sequence[Optional[int]]) -> None:
    if any(fanout is not None and fanout < 0 for fanout in fanouts):
        raise ValueError(f"fanouts={list(fanouts)}: expected whole numbers from 0, or None for all neighbours")


class ProgramSampler:
    """The program's own sampler of a store, which gathers rows of features, too. Other threads run meanwhile."""

    #: True if this package has it.
    is_available = _native is not None

    def __init__(self, path: pathlib.Path, digest: str) -> None:
        """Maps the store again. Raises StoreError if it is another one by now than that with ``digest``."""
        self._graph = reopened(_native.Graph, str(path), [], digest)

    def sample(self, seeds: np.ndarray, fanouts: Sequence[Optional[int]], seed: int, epoch: int) -> Sample:
        """Samples the neighbourhood of ``seeds``, i64; see :meth:`kdgat.NodeStore.sample`."""
        _check_fanouts(fanouts)
        check_word("seed", seed)
        check_word("epoch", epoch)
        limits = [fanout if fanout is None else min(fanout, _MOST_NEIGHBOURS) for fanout in fanouts]
        nodes, seed_rows, layers = self._graph.sample(seeds, limits, seed, epoch)
        return Sample(nodes, [Layer(*layer) for layer in layers], seed_rows)

    def gather(self, nodes: np.ndarray, rows: np.ndarray) -> None:
        """Writes the features of ``nodes``, i64, to ``rows``, f32 ``[nodes, features]``."""
        self._graph.gather(nodes, rows)


class Sampler:
    """Samples neighbourhoods in a graph whose edges are given by target, by NumPy."""

    def __init__(self, indptr: np.ndarray, indices: np.ndarray) -> None:
        """``indptr``: i64 ``[nodes + 1]``; ``indices``: sources, u32 ``[edges]``, ascending for each target."""
        self._indptr, self._indices = indptr, indices

    def sample(self, seeds: np.ndarray, fanouts: Sequence[Optional[int]], seed: int, epoch: int) -> Sample:
        """Samples the neighbourhood of ``seeds``, i64; see :meth:`kdgat.NodeStore.sample`."""
        _check_fanouts(fanouts)
        keys = random_bits(seed, NEIGHBOURS, epoch, np.arange(len(fanouts)))
        rows = _Rows(len(self._indptr) - 1)
        seed_rows = rows.number(seeds)
        layers = []
        for fanout, key in zip(fanouts, keys):
            targets = rows.nodes()
            starts = self._indptr.take(targets)
            lengths = self._indptr.take(targets + 1) - starts
            edges, counts = _chosen(targets, starts, lengths, fanout, key)
            if len(edges) + len(targets) > _MOST_EDGES:
                raise ValueError(f"{len(edges) + len(targets)} edges in one layer, at most {_MOST_EDGES} are possible: use fewer nodes at a time")
            neighbours = self._indices.take(edges).astype(np.int64)
            layers.append(_layer(targets, neighbours, counts, rows.number(neighbours), len(rows)))
        return Sample(rows.nodes(), layers[::-1], seed_rows)


class _Rows:
    """Numbers nodes in order of first appearance."""

    def __init__(self, nodes: int) -> None:
        # 1 more than the row of each node, 0 for a node without one.
        self._next = np.zeros(nodes, np.uint32)
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
        rows = self._next.take(found)
        new = found[rows == 0]
        # Of several assignments to a place the last one stays: that of the first appearance.
        places = np.arange(len(new), 0, -1, dtype=np.uint32)
        self._next[new[::-1]] = places
        new = new[self._next.take(new) == places[::-1]]
        self._next[new] = np.arange(self._count + 1, self._count + len(new) + 1)
        self._parts.append(new)
        self._count += len(new)
        rows = self._next.take(found).astype(np.int64)
        rows -= 1
        return rows


def _layer(targets: np.ndarray, neighbours: np.ndarray, counts: np.ndarray, rows: np.ndarray, num_sources: int) -> Layer:
    """The edges with a self-loop of each target, where its number in the graph belongs."""
    ends = ends_of(counts)
    indptr = ends + np.arange(len(ends))
    is_below = np.zeros(len(neighbours) + 1, np.int64)
    np.cumsum(neighbours < targets.repeat(counts), out=is_below[1:])
    loops = indptr[:-1] + is_below.take(ends[1:]) - is_below.take(ends[:-1])
    is_edge = np.ones(len(neighbours) + len(targets), bool)
    is_edge[loops] = False
    sources = np.empty(len(is_edge), np.int64)
    sources[is_edge] = rows
    sources[loops] = np.arange(len(targets))
    return Layer(indptr, sources, num_sources)


def _chosen(targets: np.ndarray, starts: np.ndarray, lengths: np.ndarray, fanout: Optional[int], key: np.uint64) -> tuple:
    """The chosen edges of all targets, one target after another, and their numbers."""
    counts = lengths if fanout is None else np.minimum(lengths, fanout)
    ends = ends_of(counts)
    edges = spelled_out(starts, counts, ends)
    drawn = np.flatnonzero(lengths > counts)
    if fanout and len(drawn):
        keys = mix(key ^ targets[drawn].astype(np.uint64))
        picks = _picks(keys, lengths[drawn], fanout)
        picks += starts[drawn, None]
        edges[ends[drawn, None] + np.arange(fanout)] = picks
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
    """Draws ``first`` to ``first + count`` of each row's SplitMix64 generator, below ``bounds`` ``[count or 1, rows]``, i64 ``[count, rows]``."""
    steps = np.arange(first + 1, first + count + 1, dtype=np.uint64)[:, None] * GOLDEN
    bounds = np.broadcast_to(bounds, (count, len(keys)))
    found = np.empty((count, len(keys)), np.int64)
    rows = max(1, _DRAWS_AT_ONCE // max(1, count))
    for begin in range(0, len(keys), rows):
        part = slice(begin, begin + rows)
        found[:, part] = below(finalize(keys[part] + steps), bounds[:, part].astype(np.uint64))
    return found


def _by_floyd(keys: np.ndarray, lengths: np.ndarray, count: int) -> np.ndarray:
    last = lengths - count + np.arange(count)[:, None]
    chosen = _draws(keys, 0, count, last + 1)
    if lengths.max() <= 1 << 16:
        chosen, last = chosen.astype(np.uint16), last.astype(np.uint16)
    for column in range(1, count):
        # A position that is taken is replaced by the last one, which cannot be taken yet.
        is_taken = (chosen[:column] == chosen[column]).any(0)
        np.copyto(chosen[column], last[column], where=is_taken)
    return chosen.T


def _independent(keys: np.ndarray, lengths: np.ndarray, count: int) -> np.ndarray:
    picks = np.empty((len(keys), count), np.int64)
    rows, first = np.arange(len(keys)), 0
    while len(rows):
        drawn = np.sort(_draws(keys[rows], first, count, lengths[rows]).T, axis=1)
        is_distinct = (drawn[:, 1:] != drawn[:, :-1]).all(1)
        picks[rows[is_distinct]] = drawn[is_distinct]
        rows, first = rows[~is_distinct], first + count
    return picks
