"""The shards of a store of graphs: safetensors files whose tensors are columns, mapped when a graph of theirs is read."""

from __future__ import annotations

import os
import pathlib
import threading
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np

from kdgat.mapped_file import MappedFile, StoreError
from kdgat.positions import spelled_out
from kdgat.safetensors_file import Place, read_places
from kdgat.store_manifest import Manifest, ShardEntry

#: Shards that are mapped at a time: each map holds a descriptor.
_MOST_MAPPED = 256
#: Most nodes of a graph.
_MOST_NODES = 65_535
#: Kinds of rows: one for each graph, node, edge, listed angle or listed dihedral. Stores without lists have the first three.
GRAPHS, NODES, EDGES, ANGLES, DIHEDRALS = range(5)
#: Names of the kinds that have pointers to the rows of each graph, from :data:`NODES` on.
_POINTED = "node", "edge", "angle", "dihedral"
_FIRST_AND_NEXT = np.array([[0], [1]])


class _Shard:
    """A mapped shard."""

    def __init__(self, file: MappedFile, places: Dict[str, Place]) -> None:
        #: True if the file has become shorter since.
        self.is_cut_off = file.is_cut_off
        self.columns = {name: file.array(place.dtype, place.shape, place.offset) for name, place in places.items()}
        #: The values of each column, row by row: slices of memory views cost less than those of arrays.
        self.values = {name: memoryview(column.reshape(-1)) for name, column in self.columns.items()}


class Shards:
    """All shards of a store. They are mapped when they are needed, in each process and by any thread."""

    def __init__(self, folder: pathlib.Path, manifest: Manifest) -> None:
        """Checks size, header, shapes and pointers of each shard, so that no graph reaches beyond its shard. Raises StoreError."""
        self._folder, self._manifest = folder, manifest
        #: Type, values per row and kind of rows of each column that is read.
        self.layout = _layout(manifest)
        #: Kinds of rows and values per row of all columns, each pair once.
        self.widths = sorted({(kind, width) for _, width, kind in self.layout.values()})
        self.width_columns = np.array(self.widths, np.int64).reshape(-1, 2).T
        features = manifest.features
        #: Number of kinds of rows.
        self.kinds = 3 if features.angles is features.dihedrals is None else 5
        # First graph after each shard: shards without graphs begin where the next one does.
        self._ends = np.array([entry.first_graph + entry.graphs for entry in manifest.shards], np.int64)
        #: First row of each kind of each shard, i64 ``[kinds, shards]``.
        sizes = [_sizes(entry)[: self.kinds] for entry in manifest.shards]
        self.firsts = np.cumsum([[0] * self.kinds, *sizes], axis=0, dtype=np.int64)[:-1].T.copy()
        self._mapped: Dict[int, _Shard] = {}
        self._lock, self._process = threading.Lock(), os.getpid()
        self._opened = _identity(folder)
        checked = [self._checked(number, entry) for number, entry in enumerate(manifest.shards)]
        self._places = [places for places, _ in checked]
        #: First row of each kind of each graph: its number, its first node and its first edge, counted through all shards, and their numbers; i64
        #: ``[kinds, graphs + 1]``.
        self.starts = np.empty((self.kinds, manifest.graphs + 1), np.int64)
        self.starts[GRAPHS] = np.arange(manifest.graphs + 1)
        self.starts[:, -1] = np.sum([[0] * self.kinds, *sizes], axis=0)
        for first, entry, (_, pointers) in zip(self.firsts.T, manifest.shards, checked):
            self.starts[NODES:, entry.first_graph : entry.first_graph + entry.graphs] = np.stack(pointers)[:, :-1] + first[NODES:, None]
        # Columns with one value for each graph that have been read, of all shards.
        self._of_graphs: Dict[str, np.ndarray] = {}

    def damaged(self, number: int, detail: str) -> StoreError:
        """The error that a shard is damaged."""
        path = self._folder / self._manifest.shards[number].name
        return StoreError(f"shard {path} is damaged ({detail}): delete the folder {self._folder}; the program builds it again")

    def content(self, number: int) -> np.ndarray:
        """All bytes of a shard, mapped, u8 ``[bytes]``."""
        file = self._file(number)
        return file.array(np.dtype(np.uint8), (file.size,), 0)

    def counts(self, kind: int, graphs: np.ndarray) -> np.ndarray:
        """Number of :data:`NODES` or :data:`EDGES` of each graph."""
        return self.starts[kind].take(graphs + 1) - self.starts[kind].take(graphs)

    def column(self, name: str, graphs: np.ndarray) -> np.ndarray:
        """Values of a column that has one for each graph. It is kept in memory: at most 4 bytes a graph, where :attr:`starts` has 24."""
        column = self._of_graphs.get(name)
        if column is None:
            parts = [self.mapped([number])[number].columns[name].copy() for number in range(len(self._ends))]
            column = self._of_graphs[name] = np.concatenate(parts) if parts else np.empty(0, self.layout[name][0])
        return column.take(graphs)

    def find(self, graphs: np.ndarray) -> Optional[np.ndarray]:
        """Number of the shard of each graph; ``None`` if there is only one."""
        return None if len(self._ends) < 2 else self._ends.searchsorted(graphs, "right")

    def number_of(self, graph: int) -> int:
        """Number of the shard of a graph."""
        return int(self._ends.searchsorted(graph, "right"))

    def mapped(self, numbers: Iterable[int]) -> Dict[int, _Shard]:
        """These shards by number. Raises StoreError if one has become shorter: reading beyond its end would end the process."""
        found = {}
        for number in numbers:
            shard = found[number] = self._mapped.get(number) or self._map(number)
            if shard.is_cut_off():
                raise self.damaged(number, f"it has fewer bytes than the {self._manifest.shards[number].bytes} of the manifest")
        return found

    def _map(self, number: int) -> _Shard:
        if self._process != os.getpid():
            # A lock that another thread held while the process was forked stays locked.
            self._lock, self._process = threading.Lock(), os.getpid()
        with self._lock:
            shard = self._mapped[number] = _Shard(self._file(number), self._places[number])
            while len(self._mapped) > _MOST_MAPPED:
                del self._mapped[next(iter(self._mapped))]
        return shard

    def _file(self, number: int) -> MappedFile:
        """Maps a shard of the folder that was opened, not of a store that has been built in its place since."""
        entry = self._manifest.shards[number]
        path = self._folder / entry.name
        try:
            if not self._folder.exists():
                raise StoreError(f"{self._folder} is not there any more; open it again")
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

    def _checked(self, number: int, entry: ShardEntry) -> Tuple[Dict[str, Place], List[np.ndarray]]:
        """Places of the columns of a shard, and the pointers of each kind of rows. Raises StoreError if they are not those of the manifest."""
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
        rows = _sizes(entry)
        features = self._manifest.features
        is_there = True, True, features.angles is not None, features.dihedrals is not None
        pointed = [(f"{name}_ptr", last, there) for name, last, there in zip(_POINTED, rows[NODES : self.kinds], is_there)]
        expected = {name: (dtype, (rows[kind], width)[: 1 if width == 1 else 2]) for name, (dtype, width, kind) in self.layout.items()}
        expected.update({name: (np.dtype("<u8"), (entry.graphs + 1,)) for name, _, there in pointed if there})
        places = {}
        for name, (dtype, shape) in expected.items():
            place = found.get(name)
            if place is None:
                raise self.damaged(number, f"it has no tensor {name}")
            if (place.dtype, place.shape) != (dtype, shape):
                raise self.damaged(number, f"{name} is {place.dtype} {list(place.shape)}, expected {dtype} {list(shape)}")
            if place.offset % dtype.itemsize:
                raise self.damaged(number, f"{name} begins at byte {place.offset}, which is not aligned")
            places[name] = place
        pointers = []
        for name, last, there in pointed:
            if not there:
                pointers.append(np.zeros(entry.graphs + 1, np.int64))
                continue
            # Read, not mapped: a mapped page loads its neighbours, too.
            pointers.append(np.fromfile(path, "<i8", entry.graphs + 1, offset=places.pop(name).offset))
            ends = pointers[-1]
            ascends = len(ends) == entry.graphs + 1 and bool((ends[1:] >= ends[:-1]).all())
            if not ascends or ends[0] != 0 or ends[-1] != last:
                raise self.damaged(number, f"{name} does not ascend from 0 to {last}")
        nodes = int(np.diff(pointers[0]).max(initial=0))
        if nodes > _MOST_NODES:
            raise self.damaged(number, f"a graph has {nodes} nodes, at most {_MOST_NODES} are possible")
        return places, pointers


class BatchRows:
    """The rows of some graphs in the columns of their shards, in the order of the graphs."""

    def __init__(self, shards: Shards, graphs: np.ndarray) -> None:
        self._shards, self._graphs = shards, graphs
        # First row of each graph in its shard, and the row after its last one, i64 ``[2, kinds, graphs]``.
        spans = shards.starts.take(graphs + _FIRST_AND_NEXT, 1).swapaxes(0, 1)
        #: Rows of each kind of each graph: 1 of its own, its nodes, its edges, …, i64 ``[kinds, graphs]``; and first row of each, and their number.
        self._counts = spans[1] - spans[0]
        self._ptr = np.zeros((shards.kinds, len(graphs) + 1), np.int64)
        self._counts.cumsum(1, out=self._ptr[:, 1:])
        of = shards.find(graphs)
        if of is not None:
            spans -= shards.firsts.take(of, 1)
        self._starts = spans[0]
        # Numbers of all rows by kind, if they are not read by spans.
        self._rows: Dict[int, np.ndarray] = {}
        # Spans of rows that are read at once: the shard of each; and by kind and values per row, its first value and the value after its last.
        self._numbers: List[int] = [0] if of is None else of.tolist()
        self._spans: Optional[Dict[Tuple[int, int], Tuple[List[int], List[int]]]] = None
        self._mapped = shards.mapped(set(self._numbers)) if len(graphs) else {}
        if len(graphs) == 0 or int(graphs[-1]) - int(graphs[0]) == len(graphs) - 1 and bool((graphs[1:] - graphs[:-1] == 1).all()):
            # Adjacent graphs of a shard are one span.
            is_first = np.zeros(len(graphs) + 1, bool)
            is_first[0] = is_first[-1] = True
            if of is not None:
                is_first[1:-1] = of[1:] != of[:-1]
            borders = np.flatnonzero(is_first)
            first, last = borders[:-1], borders[1:] - 1
            self._numbers = [0] * len(first) if of is None else of.take(first).tolist()
            self._spans = self._of_values(np.stack([spans[0].take(first, 1), spans[1].take(last, 1)]))
        elif of is not None:
            self._spans = self._of_values(spans)

    def _of_values(self, spans: np.ndarray) -> Dict[Tuple[int, int], Tuple[List[int], List[int]]]:
        """First value of each span, and the value after its last, by kind and values per row, of spans of rows ``[2, kinds, spans]``."""
        kinds, widths = self._shards.width_columns
        return dict(zip(self._shards.widths, zip(*(spans.take(kinds, 1) * widths[:, None]).tolist())))

    @property
    def node_counts(self) -> np.ndarray:
        """Nodes of each graph, i64 ``[graphs]``."""
        return self._counts[NODES]

    @property
    def node_ptr(self) -> np.ndarray:
        """First node of each graph, and the number of nodes, i64 ``[graphs + 1]``."""
        return self._ptr[NODES]

    @property
    def edge_ptr(self) -> np.ndarray:
        """First edge of each graph, and the number of edges, i64 ``[graphs + 1]``."""
        return self._ptr[EDGES]

    def gathered(self, *names: str) -> np.ndarray:
        """The rows of a column, or of several columns of one type, one after the other."""
        dtype, width, kind = self._shards.layout[names[0]]
        if (kind, width) == (GRAPHS, 1):
            return self._shards.column(names[0], self._graphs)
        count = len(names) * int(self._ptr[kind, -1])
        shape = (count, width) if width > 1 else count
        if self._spans is not None:
            return np.ndarray(shape, dtype, bytearray().join(self._slices(names, self._spans[kind, width])))
        rows = self._rows.get(kind)
        if rows is None:
            rows = self._rows[kind] = spelled_out(self._starts[kind], self._counts[kind], self._ptr[kind])
        columns = self._mapped[0].columns
        if len(names) == 1:
            return columns[names[0]].take(rows, 0)
        found = np.empty(shape, dtype)
        for name, part in zip(names, found.reshape(len(names), -1)):
            columns[name].take(rows, 0, part, "clip")
        return found

    def _slices(self, names: Sequence[str], span: Tuple[List[int], List[int]]) -> List[memoryview]:
        """The values of the spans, to be joined: a call of NumPy for each shard would take longer, and leave rows in the order of the shards."""
        found: List[memoryview] = []
        for name in names:
            values = {number: shard.values[name] for number, shard in self._mapped.items()}
            found += [values[number][begin:end] for number, begin, end in zip(self._numbers, *span)]
        return found

    def edge_index(self) -> np.ndarray:
        """Source and target of each edge as nodes of the batch, i64 ``[2, edges]``. Raises StoreError if an edge leaves its graph."""
        nodes, edges = self._counts[NODES : EDGES + 1]
        ends = self.gathered("edge_source", "edge_target").reshape(2, -1)
        index = ends.astype(np.int64)
        index += self.node_ptr[:-1].repeat(edges)
        if np.logical_or.reduce(ends >= nodes.astype(np.uint16).repeat(edges), None):
            self._refuse(index)
        return index

    def paths(self, kind: int) -> Tuple[np.ndarray, np.ndarray]:
        """Nodes of each listed path, as nodes of the batch, i64 ``[nodes of a path, paths]``; and first path of each graph, and their number, i64
        ``[graphs + 1]``. Raises StoreError if a path leaves its graph."""
        name, counts = _POINTED[kind - NODES], self._counts[kind]
        nodes = self.gathered(name)
        beyond = (nodes >= self.node_counts.repeat(counts)[:, None]).any(1)
        if beyond.any():
            graph = int(self._graphs.repeat(counts)[beyond.argmax()])
            raise self._shards.damaged(self._shards.number_of(graph), f"graph {graph}: its {name}s have node {int(nodes[beyond.argmax()].max())}")
        return np.ascontiguousarray(nodes.T) + self.node_ptr[:-1].repeat(counts), self._ptr[kind]

    def _refuse(self, index: np.ndarray) -> None:
        """Raises StoreError with the first graph of the batch whose edges leave it."""
        for place, graph in enumerate(self._graphs.tolist()):
            ends = index[:, self.edge_ptr[place] : self.edge_ptr[place + 1]]
            if ends.size and ends.max() >= self.node_ptr[place + 1]:
                node, nodes = int(ends.max() - self.node_ptr[place]), self.node_counts[place]
                raise self._shards.damaged(self._shards.number_of(graph), f"graph {graph}: an edge has node {node} of {nodes}")


def _identity(folder: pathlib.Path) -> Tuple[int, int]:
    """Device and number of a folder."""
    status = folder.stat()
    return status.st_dev, status.st_ino


def _sizes(entry: ShardEntry) -> List[int]:
    """Number of rows of each kind."""
    return [entry.graphs, entry.nodes, entry.edges, entry.angles, entry.dihedrals]


def _layout(manifest: Manifest) -> Dict[str, Tuple[np.dtype, int, int]]:
    features = manifest.features
    columns = [
        ("cell", "<f8", 9 if features.cells else 0, GRAPHS),
        ("can_id", "<u4", 1, NODES),
        ("node_features", "<f4", features.nodes, NODES),
        ("edge_features", "<f4", features.edges, EDGES),
        ("graph_targets", "<f4", features.targets, GRAPHS),
        ("target_rests", "<f4", features.targets if features.exact else 0, GRAPHS),
        ("node_targets", "<f4", features.node_targets, NODES),
        ("position", "<f4", 3 if features.positions else 0, NODES),
        ("force", "<f4", 3 if features.forces else 0, NODES),
        ("angle_parameters", "<f4", features.angles or 0, ANGLES),
        ("dihedral_parameters", "<f4", features.dihedrals or 0, DIHEDRALS),
        ("angle", "<u2", 0 if features.angles is None else 3, ANGLES),
        ("dihedral", "<u2", 0 if features.dihedrals is None else 4, DIHEDRALS),
        ("kind", "<u2", 1 if features.positions else 0, NODES),
        ("edge_source", "<u2", 1, EDGES),
        ("edge_target", "<u2", 1, EDGES),
        ("label", "u1", 1, GRAPHS),
    ]
    return {name: (np.dtype(dtype), width, kind) for name, dtype, width, kind in columns if width}
