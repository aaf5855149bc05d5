"""The shards of a store of graphs: safetensors files whose tensors are columns, mapped when a graph of theirs is read."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import threading
from typing import Dict, List, Optional, Tuple, Union

import numpy as np

from kdgat.mapped_file import MappedFile, StoreError
from kdgat.safetensors_file import Place, read_places
from kdgat.store_manifest import Manifest, ShardEntry

#: Shards that are mapped at a time: each map holds a descriptor.
_MOST_MAPPED = 256
#: Rows of a column: a range where they are adjacent, else their numbers.
Rows = Union[slice, np.ndarray]


class _Shard:
    """A mapped shard."""

    def __init__(self, file: MappedFile, places: Dict[str, Place]) -> None:
        self.file = file
        self.columns = {name: file.array(place.dtype, place.shape, place.offset) for name, place in places.items()}


class _Loaded:
    """The columns of all shards in memory, as those of one shard."""

    def __init__(self, columns: Dict[str, np.ndarray]) -> None:
        self.columns = columns


@dataclasses.dataclass(frozen=True)
class _Part:
    """The graphs of a batch that are in one shard, where graphs are sorted by shard: ``begin..end`` of these."""

    number: int
    shard: Union[_Shard, _Loaded]
    begin: int
    end: int


class Shards:
    """All shards of a store. They are mapped when they are needed, in each process and by any thread."""

    def __init__(self, folder: pathlib.Path, manifest: Manifest) -> None:
        """Checks size, header, shapes and pointers of each shard, so that no graph reaches beyond its shard. Raises StoreError."""
        self._folder, self._manifest = folder, manifest
        self._first = np.array([entry.first_graph for entry in manifest.shards], np.int64)
        # Shards without graphs begin where the next one does.
        self._ends = np.array([entry.first_graph + entry.graphs for entry in manifest.shards], np.int64)
        self._mapped: Dict[int, _Shard] = {}
        self._lock, self._process = threading.Lock(), os.getpid()
        self._layout = _layout(manifest)
        self._opened = _identity(folder)
        self._places = [self._checked(number, entry) for number, entry in enumerate(manifest.shards)]
        self._loaded: Optional[_Loaded] = None

    def load(self) -> None:
        """Copies all columns that are read to memory."""
        if self._loaded is not None or not self._manifest.shards:
            return
        columns = {}
        for name, (_, _, kind) in self._layout.items():
            parts = [self._shard(number).columns[name] for number in range(len(self._manifest.shards))]
            if kind == "ends":
                before = np.cumsum([0] + [int(part[-1]) for part in parts[:-1]]).astype(np.uint64)
                parts = [part[:-1] + first for part, first in zip(parts, before)] + [parts[-1][-1:] + before[-1]]
            columns[name] = np.concatenate(parts)
        self._loaded = _Loaded(columns)
        self._mapped.clear()

    def damaged(self, number: int, detail: str) -> StoreError:
        """The error that a shard is damaged."""
        path = self._folder / self._manifest.shards[number].name
        return StoreError(f"shard {path} is damaged ({detail}): delete the folder {self._folder}; the program builds it again")

    def content(self, number: int) -> np.ndarray:
        """All bytes of a shard, mapped, u8 ``[bytes]``."""
        file = self._shard(number).file
        return file.array(np.dtype(np.uint8), (file.size,), 0)

    def counts(self, pointers: str, graphs: np.ndarray) -> np.ndarray:
        """Number of nodes (``node_ptr``) or edges (``edge_ptr``) of each graph."""
        sorted_graphs = _Sorted(self, graphs)
        return sorted_graphs.in_order(sorted_graphs.spans_of(pointers)[1])

    def column(self, name: str, graphs: np.ndarray) -> np.ndarray:
        """Rows of a column that has one for each graph."""
        return _Sorted(self, graphs).of_graphs(name)

    def rows(self, graphs: np.ndarray) -> "BatchRows":
        """The rows of these graphs in all columns."""
        return BatchRows(self, graphs)

    def empty(self, name: str, count: int) -> np.ndarray:
        """Uninitialised rows of a column."""
        dtype, width, _ = self._layout[name]
        return np.empty((count, width) if width > 1 else count, dtype)

    def parts(self, of: np.ndarray) -> List[_Part]:
        """The parts of graphs that are in these shards, ascending."""
        begins = [0, *(np.flatnonzero(of[1:] != of[:-1]) + 1).tolist()] if len(of) else []
        numbers = of[begins].tolist() if begins else []
        return [_Part(*part) for part in zip(numbers, map(self._shard, numbers), begins, [*begins[1:], len(of)])]

    def only(self) -> Union[_Shard, _Loaded, None]:
        """The shard that has all graphs, if there is one."""
        return self._loaded or (self._shard(0) if len(self._ends) == 1 else None)

    def find(self, graphs: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Shard of each graph, and its position there."""
        of = np.searchsorted(self._ends, graphs, "right")
        return of, graphs - self._first[of] if len(graphs) else graphs

    def number_of(self, graph: int) -> int:
        """Number of the shard of a graph."""
        return int(np.searchsorted(self._ends, graph, "right"))

    def _shard(self, number: int) -> _Shard:
        if self._process != os.getpid():
            # A lock that another thread held while the process was forked stays locked.
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:
            shard = self._mapped.pop(number, None)
            if shard is None:
                shard = _Shard(self._file(number), self._places[number])
            # The last one of the dictionary is the one used last.
            self._mapped[number] = shard
            while len(self._mapped) > _MOST_MAPPED:
                del self._mapped[next(iter(self._mapped))]
        if shard.file.is_cut_off():
            raise self.damaged(number, f"it has fewer bytes than the {self._manifest.shards[number].bytes} of the manifest")
        return shard

    def _file(self, number: int) -> MappedFile:
        """Maps a shard of the folder that was opened, not of a store that has been built in its place since."""
        entry = self._manifest.shards[number]
        path = self._folder / entry.name
        try:
            if _identity(self._folder) != self._opened:
                raise StoreError(f"{self._folder} has been replaced since it was opened; open it again")
            file = MappedFile(path)
        except FileNotFoundError:
            raise self.damaged(number, "the file is missing") from None
        except OSError as error:
            raise StoreError(f"cannot map {path}: {error.strerror}") from error
        if file.size != entry.bytes:
            raise self.damaged(number, f"it has {file.size} bytes, the manifest says {entry.bytes}")
        return file

    def _checked(self, number: int, entry: ShardEntry) -> Dict[str, Place]:
        """Places of the columns of a shard. Raises StoreError if they are not those of the manifest."""
        path = self._folder / entry.name
        try:
            size = path.stat().st_size
            if size != entry.bytes:
                raise self.damaged(number, f"it has {size} bytes, the manifest says {entry.bytes}")
            found = read_places(path)
        except FileNotFoundError:
            raise self.damaged(number, "the file is missing") from None
        except OSError as error:
            raise self.damaged(number, f"it cannot be read: {error.strerror}") from error
        except StoreError:
            raise
        except ValueError as error:
            raise self.damaged(number, str(error)) from error
        rows = {"ends": entry.graphs + 1, "graphs": entry.graphs, "nodes": entry.nodes, "edges": entry.edges}
        places = {}
        for name, (dtype, width, kind) in self._layout.items():
            shape = (rows[kind],) if width == 1 else (rows[kind], width)
            place = found.get(name)
            if place is None:
                raise self.damaged(number, f"it has no tensor {name}")
            if (place.dtype, place.shape) != (dtype, shape):
                raise self.damaged(number, f"{name} is {place.dtype} {list(place.shape)}, expected {dtype} {list(shape)}")
            if place.offset % dtype.itemsize:
                raise self.damaged(number, f"{name} begins at byte {place.offset}, which is not aligned")
            places[name] = place
        for name, last in (("node_ptr", entry.nodes), ("edge_ptr", entry.edges)):
            # Read, not mapped: a mapped page loads its neighbours, too.
            pointers = np.fromfile(path, "<u8", entry.graphs + 1, offset=places[name].offset)
            ascends = len(pointers) == entry.graphs + 1 and bool((pointers[1:] >= pointers[:-1]).all())
            if not ascends or pointers[0] != 0 or pointers[-1] != last:
                raise self.damaged(number, f"{name} does not ascend from 0 to {last}")
        return places


class _Sorted:
    """Graphs sorted by shard, so that each shard is read once and shards with many graphs cost no more than those with one."""

    def __init__(self, shards: Shards, graphs: np.ndarray) -> None:
        self.shards = shards
        #: Position in the batch of each sorted graph; ``None`` if the batch is sorted.
        self.order: Optional[np.ndarray] = None
        only = shards.only() if len(graphs) else None
        if only is not None:
            self.graphs, self.parts = graphs, [_Part(0, only, 0, len(graphs))]
        else:
            of, self.graphs = shards.find(graphs)
            if bool((of[1:] < of[:-1]).any()):
                self.order = np.argsort(of, kind="stable")
                of, self.graphs = of[self.order], self.graphs[self.order]
            self.parts = shards.parts(of)
        # The places of the ends of each graph in a column of pointers.
        self._pairs = self.graphs[:, None] + np.arange(2)
        #: True for adjacent graphs of one shard, whose rows are ranges.
        self.is_range = len(self.parts) == 1 and bool((self.graphs[1:] - self.graphs[:-1] == 1).all())

    def in_order(self, values: np.ndarray) -> np.ndarray:
        """Values of sorted graphs in the order of the batch."""
        if self.order is None:
            return values
        result = np.empty_like(values)
        result[self.order] = values
        return result

    def of_graphs(self, name: str) -> np.ndarray:
        """Rows of a column with one for each graph, in the order of the batch."""
        borders = [part.begin for part in self.parts] + [len(self.graphs)]
        return self.in_order(self.gathered(name, self.graphs, borders))

    def spans_of(self, pointers: str) -> Tuple[np.ndarray, np.ndarray]:
        """First item in the shard, and number of items, of each sorted graph."""
        ends = np.empty((len(self.graphs), 2), np.uint64)
        for part in self.parts:
            part.shard.columns[pointers].take(self._pairs[part.begin : part.end], 0, ends[part.begin : part.end], "clip")
        ends = ends.view(np.int64)
        return ends[:, 0], ends[:, 1] - ends[:, 0]

    def gathered(self, name: str, rows: Rows, borders: List[int]) -> np.ndarray:
        """Rows of a column; those of a part's graphs are ``rows[borders[i]:borders[i + 1]]``, numbers in its shard."""
        if len(self.parts) == 1:
            column = self.parts[0].shard.columns[name]
            # A copy: the file stays as it is, whatever is done with a batch.
            return column[rows].copy() if isinstance(rows, slice) else column.take(rows, 0)
        result = self.shards.empty(name, borders[-1])
        for part, begin, end in zip(self.parts, borders, borders[1:]):
            part.shard.columns[name].take(rows[begin:end], 0, result[begin:end], "clip")
        return result


class _Items:
    """Nodes or edges of the graphs of a batch."""

    def __init__(self, graphs: _Sorted, pointers: str) -> None:
        starts, counts = graphs.spans_of(pointers)
        #: Number of items of each graph of the batch.
        self.counts = graphs.in_order(counts)
        #: First item of each graph of the batch, and their number.
        self.ptr = _ends(self.counts)
        self._graphs = graphs
        # Items of the sorted graphs, and where those of each graph of the batch are among them.
        ends = self.ptr if graphs.order is None else _ends(counts)
        self._borders = [int(ends[part.begin]) for part in graphs.parts] + [int(ends[-1])]
        first = int(starts[0]) if graphs.is_range else 0
        self._rows: Rows = slice(first, first + self._borders[-1]) if graphs.is_range else spelled_out(starts, counts, ends)
        self._order = None if graphs.order is None else spelled_out(graphs.in_order(ends[:-1]), self.counts, self.ptr)

    def gathered(self, name: str) -> np.ndarray:
        """Rows of a column in the order of the batch."""
        rows = self._graphs.gathered(name, self._rows, self._borders)
        return rows if self._order is None else rows.take(self._order, 0)


class BatchRows:
    """The rows of some graphs in the columns of their shards, in the order of the graphs."""

    def __init__(self, shards: Shards, graphs: np.ndarray) -> None:
        self._shards, self._graphs = shards, graphs
        self._sorted = _Sorted(shards, graphs)
        self._nodes, self._edges = _Items(self._sorted, "node_ptr"), _Items(self._sorted, "edge_ptr")
        #: Nodes of each graph, i64 ``[graphs]``.
        self.node_counts = self._nodes.counts
        #: First node and first edge of each graph, and their numbers, i64 ``[graphs + 1]``.
        self.node_ptr, self.edge_ptr = self._nodes.ptr, self._edges.ptr

    def of_graphs(self, name: str) -> np.ndarray:
        """Rows of a column with one for each graph."""
        return self._sorted.of_graphs(name)

    def of_nodes(self, name: str) -> np.ndarray:
        """Rows of a column with one for each node."""
        return self._nodes.gathered(name)

    def of_edges(self, name: str) -> np.ndarray:
        """Rows of a column with one for each edge."""
        return self._edges.gathered(name)

    def edge_index(self) -> np.ndarray:
        """Source and target of each edge as nodes of the batch, i64 ``[2, edges]``. Raises StoreError if an edge leaves its graph."""
        index = np.empty((2, int(self.edge_ptr[-1])), np.int64)
        # A graph has at most 65535 nodes; one without nodes must have no edges.
        last = (self.node_counts - 1).astype(np.uint16).repeat(self._edges.counts)
        first = self.node_ptr[:-1].repeat(self._edges.counts)
        sources, targets = self.of_edges("edge_source"), self.of_edges("edge_target")
        np.add(first, sources, out=index[0])
        np.add(first, targets, out=index[1])
        if (np.maximum(sources, targets) > last).any() or self._edges.counts[self.node_counts == 0].any():
            self._refuse(index)
        return index

    def _refuse(self, index: np.ndarray) -> None:
        """Raises StoreError with the first graph of the batch whose edges leave it."""
        for place, graph in enumerate(self._graphs.tolist()):
            ends = index[:, self.edge_ptr[place] : self.edge_ptr[place + 1]]
            if ends.size and ends.max() >= self.node_ptr[place + 1]:
                node, nodes = int(ends.max() - self.node_ptr[place]), self.node_counts[place]
                raise self._shards.damaged(self._shards.number_of(graph), f"graph {graph}: an edge has node {node} of {nodes}")


def spelled_out(starts: np.ndarray, counts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The numbers of all items of spans, i64 ``[sum of counts]``; ``ends``: 0, and the sums of counts."""
    numbers = (starts - ends[:-1]).repeat(counts)
    numbers += np.arange(len(numbers))
    return numbers


def _identity(folder: pathlib.Path) -> Tuple[int, int]:
    """Device and number of a folder."""
    status = folder.stat()
    return status.st_dev, status.st_ino


def _layout(manifest: Manifest) -> Dict[str, Tuple[np.dtype, int, str]]:
    """Type, values per row and kind of rows of each column that is read."""
    features = manifest.features
    columns = [
        ("node_ptr", "<u8", 1, "ends"),
        ("edge_ptr", "<u8", 1, "ends"),
        ("cell", "<f8", 9 if features.cells else 0, "graphs"),
        ("can_id", "<u4", 1, "nodes"),
        ("node_features", "<f4", features.nodes, "nodes"),
        ("edge_features", "<f4", features.edges, "edges"),
        ("graph_targets", "<f4", features.targets, "graphs"),
        ("target_rests", "<f4", features.targets if features.exact else 0, "graphs"),
        ("node_targets", "<f4", features.node_targets, "nodes"),
        ("position", "<f4", 3 if features.positions else 0, "nodes"),
        ("force", "<f4", 3 if features.forces else 0, "nodes"),
        ("kind", "<u2", 1 if features.positions else 0, "nodes"),
        ("edge_source", "<u2", 1, "edges"),
        ("edge_target", "<u2", 1, "edges"),
        ("label", "u1", 1, "graphs"),
    ]
    return {name: (np.dtype(dtype), width, kind) for name, dtype, width, kind in columns if width}


def _ends(counts: np.ndarray) -> np.ndarray:
    ends = np.zeros(len(counts) + 1, np.int64)
    counts.cumsum(out=ends[1:])
    return ends
