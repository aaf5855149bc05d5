"""The store of one large graph, as the program wrote it (`NAME.kdgat-nodes`): mapped, and read in place.

The file begins with a header in JSON, whose checksum covers it, and which lists the arrays with theirs. Each array begins on a page
(`crates/kdgat-node-store/src/store/header.rs`).
"""

from __future__ import annotations

import json
import os
import pathlib
import struct
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from kdgat.digests import crc32c
from kdgat.mapped_file import MappedFile, StoreError, reopened, whole_pages
from kdgat.neighbour_sampler import ProgramSampler, Sample, Sampler
from kdgat.positions import checked_positions, ends_of, spelled_out

#: Magic, version, CRC-32C and bytes of the description.
_PREFACE = struct.Struct("<8sIIQ")
_CHECKSUM = slice(12, 16)
_MAGIC, _VERSION = b"kdgnodes", 2
_DTYPES = {"u64": "<u8", "u32": "<u4", "i32": "<i4", "f32": "<f4", "f16": "<f2", "u8": "u1"}
#: Numbers of the sets that a source itself assigns nodes to.
_SETS = {"train": 1, "validation": 2, "test": 3}
#: Size from which opening trusts the arrays; :meth:`NodeStore.verify` reads them.
_CHECKED_BYTES = 32 << 20
#: Sparse values that are gathered at once: their numbers stay in the processor's caches.
_VALUES_AT_ONCE = 1 << 15
#: Mean values of a row from which rows are copied one by one.
_LONG_ROW = 64


class NodeStore:
    """One graph of many nodes: its edges, features, labels and sets, mapped from its file; and :meth:`sample`.

    The arrays are views of the file. A store may be used by several threads, in processes that are forked, and, pickled, in others.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Opens a store's file. Raises StoreError, with what was found and what to do, if it is none, damaged, truncated, or of another version.

        Below 32 MiB the checksums of all arrays are compared, too, as :meth:`verify` does for a store of any size.
        """
        self.path = pathlib.Path(path).absolute()
        try:
            self._file = MappedFile(self.path)
        except OSError as error:
            raise StoreError(f"cannot open {self.path}: {error.strerror}") from error
        header, self._begin = self._read_header()
        #: Name of the dataset.
        self.name: str = header["name"]
        #: Digest of the graph's contents. Caches of targets belong to it.
        self.digest: str = header["digest"]
        #: Number of nodes.
        self.num_nodes: int = header["num_nodes"]
        #: Number of directed edges: an undirected edge counts twice.
        self.num_edges: int = header["num_edges"]
        #: Number of classes.
        self.num_classes: int = header["classes"]
        #: Number of features of a node.
        self.num_features: int = header["columns"]
        #: ``dense`` (f32), ``half`` (f16) or ``sparse``.
        self.feature_kind: str = header["features"]
        self._sections = self._placed_sections(header["sections"])
        #: Edges by target: those that lead to node ``i`` are ``indptr[i]`` to ``indptr[i + 1]``, i64 ``[nodes + 1]``.
        self.indptr: np.ndarray = self._array("indptr").view(np.int64)
        #: The node that each edge comes from, u32 ``[edges]``, ascending for each target, without self-loops.
        self.indices: np.ndarray = self._array("indices")
        #: Class of each node, i32 ``[nodes]``, -1 for a node without one.
        self.labels: np.ndarray = self._array("labels")
        #: The set that the source assigns each node to, u8 ``[nodes]``: 0 none, 1 training, 2 validation, 3 test; ``None`` if it assigns none.
        self.split: Optional[np.ndarray] = self._array("split") if "split" in self._sections else None
        #: Number of each node in its source, u64 ``[nodes]``; ``None`` if all nodes of the source are here, in its order.
        self.original: Optional[np.ndarray] = self._array("original") if "original" in self._sections else None
        self._check_ends("indptr", self.indptr, self.num_edges)
        if self.feature_kind == "sparse":
            self._check_ends("feature_indptr", self._array("feature_indptr").view(np.int64), len(self._array("feature_values")))
        if self._file.size < _CHECKED_BYTES:
            self.verify()
        #: What draws samples and gathers features: ``program``, compiled, which wheels have; or ``numpy``, which does the same more slowly.
        self.sampler: str = "program" if ProgramSampler.is_available else "numpy"
        self._sampler: Union[ProgramSampler, Sampler, None] = None

    def __len__(self) -> int:
        return self.num_nodes

    def __repr__(self) -> str:
        return f"NodeStore({str(self.path)!r}, {self.name}, {self.num_nodes} nodes, {self.num_edges} edges)"

    def __reduce__(self) -> Tuple[Any, ...]:
        return reopened, (NodeStore, str(self.path), [], self.digest)

    @property
    def features(self) -> np.ndarray:
        """Features of all nodes as the file has them, ``[nodes, features]``, f32 or f16. Raises ValueError for sparse ones: use :meth:`x`."""
        if self.feature_kind == "sparse":
            raise ValueError(f"the features of {self.path} are sparse: use x(nodes), or sparse_features")
        return self._array("features").reshape(self.num_nodes, self.num_features)

    @property
    def sparse_features(self) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Sparse features of all nodes, by rows: ends of rows i64 ``[nodes + 1]``, columns u32 and values f32, as of `scipy.sparse.csr_array`."""
        if self.feature_kind != "sparse":
            raise ValueError(f"the features of {self.path} are {self.feature_kind}: use features, or x(nodes)")
        return self._array("feature_indptr").view(np.int64), self._array("feature_indices"), self._array("feature_values")

    def x(self, nodes: Optional[Sequence[int]] = None) -> np.ndarray:
        """Features of these nodes, by default of all, f32 ``[nodes, features]``: a copy. Raises IndexError for a node that there is not."""
        self._check_size()
        positions = np.arange(self.num_nodes) if nodes is None else checked_positions(nodes, self.num_nodes, "node", self.path)
        sampler = self._drawn_by()
        if isinstance(sampler, ProgramSampler):
            rows = np.empty((len(positions), self.num_features), np.float32)
            sampler.gather(positions, rows)
            return rows
        if self.feature_kind != "sparse":
            return self.features.take(positions, 0).astype(np.float32, copy=False)
        ends, columns, values = self.sparse_features
        starts = ends.take(positions)
        counts = ends.take(positions + 1) - starts
        sums = ends_of(counts)
        rows = np.zeros((len(positions), self.num_features), np.float32)
        flat, first = rows.reshape(-1), np.arange(len(positions)) * self.num_features
        # Long rows are copied one by one, short ones value by value.
        gather = _by_rows if sums[-1] >= _LONG_ROW * len(positions) else _by_values
        step = max(1, _VALUES_AT_ONCE * len(positions) // max(1, int(sums[-1])))
        for begin in range(0, len(positions), step):
            part = slice(begin, begin + step)
            part_columns, part_values = gather((columns, values), starts[part], counts[part])
            flat[first[part].repeat(counts[part]) + part_columns] = part_values
        return rows

    def edge_index(self) -> np.ndarray:
        """Source and target of all edges, i64 ``[2, edges]``, as PyTorch Geometric has them: a copy."""
        self._check_size()
        index = np.empty((2, self.num_edges), np.int64)
        index[0] = self.indices
        index[1] = np.repeat(np.arange(self.num_nodes), np.diff(self.indptr))
        return index

    def select(self, split: str) -> np.ndarray:
        """The nodes of a set, ``"train"``, ``"validation"`` or ``"test"``, i64, ascending. Raises ValueError if the source assigns no sets."""
        if split not in _SETS:
            raise ValueError(f"split={split!r}: expected {', '.join(map(repr, _SETS))}")
        if self.split is None:
            raise ValueError(f"the source of {self.path} assigns its nodes to no sets; a run divides them by its seed: choose nodes yourself")
        return np.flatnonzero(self.split == _SETS[split])

    def node_counts(self) -> np.ndarray:
        """Numbers of nodes of the records in a cache of targets: 1 each, i64 ``[nodes]``."""
        return np.ones(self.num_nodes, np.int64)

    def sample(self, seeds: Sequence[int], fanouts: Sequence[Optional[int]], seed: int = 0, epoch: int = 0) -> Sample:
        """Samples the neighbourhood of some nodes: the neighbours that the program draws for the same seed and epoch.

        ``fanouts``: for each layer, from the seeds outwards, the most neighbours of a node, drawn without replacement; ``None`` for all.
        What a node draws depends on seed, epoch, layer and node alone, not on the other seeds. Raises IndexError for a node that there is not.
        """
        self._check_size()
        return self._drawn_by().sample(checked_positions(seeds, self.num_nodes, "node", self.path), fanouts, seed, epoch)

    def _drawn_by(self) -> Union[ProgramSampler, Sampler]:
        if self._sampler is None:
            self._sampler = ProgramSampler(self.path, self.digest) if self.sampler == "program" else Sampler(self.indptr, self.indices)
        return self._sampler

    def verify(self) -> None:
        """Reads all of the file and compares the checksum of each array. Raises StoreError with the first one that differs."""
        self._check_size()
        for name, section in self._sections.items():
            size = whole_pages(section["bytes"])
            content = self._file.array(np.dtype(np.uint8), (size,), self._begin + section["offset"])
            if crc32c(content) != section["crc32c"]:
                raise self._damaged(f"the checksum of array {name} is wrong")

    def _check_size(self) -> None:
        if self._file.is_cut_off():
            raise self._damaged("it has become shorter")

    def _damaged(self, detail: str) -> StoreError:
        return StoreError(f"{self.path} is damaged ({detail}): delete it; it is built again from its source")

    def _read_header(self) -> Tuple[dict, int]:
        """The description, and the bytes of the header."""
        size = self._file.size
        start = self._file.array(np.dtype(np.uint8), (min(size, _PREFACE.size),), 0).tobytes()
        if start[: len(_MAGIC)] != _MAGIC:
            raise self._damaged("it does not begin as a store of a graph's nodes")
        if len(start) < _PREFACE.size:
            raise self._damaged("its header is cut off")
        _, version, checksum, length = _PREFACE.unpack(start)
        if version != _VERSION:
            raise StoreError(f"{self.path} has format version {version}, this kdgat reads version {_VERSION}: build it again with `kdgat data build`")
        end = whole_pages(_PREFACE.size + length)
        if end > size:
            raise self._damaged("its header is cut off")
        header = self._file.array(np.dtype(np.uint8), (end,), 0).tobytes()
        if crc32c(header[: _CHECKSUM.start] + header[_CHECKSUM.stop :]) != checksum:
            raise self._damaged("the checksum of its header is wrong")
        try:
            fields = json.loads(header[_PREFACE.size : _PREFACE.size + length])
            numbers = [fields[name] for name in ("num_nodes", "num_edges", "classes", "columns")]
            numbers += [section[name] for section in fields["sections"] for name in ("offset", "bytes", "crc32c")]
            fits = all(isinstance(number, int) and 0 <= number < 1 << 62 for number in numbers)
            texts = [fields[name] for name in ("name", "digest", "features")] + [section["name"] for section in fields["sections"]]
            if not fits or not all(isinstance(text, str) for text in texts):
                raise ValueError("numbers or names of arrays")
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(f"its header: {error}") from error
        return fields, end

    def _placed_sections(self, sections: List[dict]) -> Dict[str, dict]:
        """The arrays by name. They follow each other, without gaps, to the end of the file, with the sizes of the graph. Raises StoreError if not."""
        stored = {section["name"]: section for section in sections}
        layout = self._layout(stored)
        offset = 0
        for section in sections:
            name = section["name"]
            found = layout.get(name)
            if found is None:
                raise self._damaged(f"array {name} is unknown")
            dtype, count = found
            bytes_expected = count * np.dtype(_DTYPES[dtype]).itemsize
            if (section["dtype"], section["bytes"], section["offset"]) != (dtype, bytes_expected, offset):
                raise self._damaged(
                    f"array {name} has {section['bytes']} bytes of {section['dtype']} at {section['offset']}, expected {bytes_expected} bytes of "
                    f"{dtype} at {offset}"
                )
            offset += whole_pages(bytes_expected)
        if offset != self._file.size - self._begin:
            raise self._damaged(f"{self._file.size - self._begin} bytes of arrays, expected {offset}")
        required = {"indptr", "indices", "labels"} | set(layout) - {"split", "original", "node_hashes"}
        missing = sorted(required - set(stored))
        if missing:
            raise self._damaged(f"it has no array {missing[0]}")
        return stored

    def _layout(self, stored: Dict[str, dict]) -> Dict[str, Tuple[str, int]]:
        """Type and number of values of each array of this graph."""
        nodes, edges, columns = self.num_nodes, self.num_edges, self.num_features
        layout = {"indptr": ("u64", nodes + 1), "indices": ("u32", edges), "labels": ("i32", nodes), "split": ("u8", nodes)}
        layout.update(node_hashes=("u64", nodes), original=("u64", nodes))
        if self.feature_kind == "dense":
            layout["features"] = ("f32", nodes * columns)
        elif self.feature_kind == "half":
            layout["features"] = ("f16", nodes * columns)
        elif self.feature_kind == "sparse":
            # As many values as columns, in any number.
            values = [stored[name]["bytes"] // 4 if name in stored else 0 for name in ("feature_values", "feature_indices")]
            layout.update(feature_indptr=("u64", nodes + 1), feature_indices=("u32", values[0]), feature_values=("f32", values[1]))
        else:
            raise self._damaged(f"its features are {self.feature_kind}")
        return layout

    def _array(self, name: str) -> np.ndarray:
        section = self._sections[name]
        dtype = np.dtype(_DTYPES[section["dtype"]])
        return self._file.array(dtype, (section["bytes"] // dtype.itemsize,), self._begin + section["offset"])

    def _check_ends(self, name: str, pointers: np.ndarray, end: int) -> None:
        if (int(pointers[0]), int(pointers[-1])) != (0, end):
            raise self._damaged(f"{name} goes from {pointers[0]} to {pointers[-1]}, expected 0 to {end}")


def _by_values(arrays: Sequence[np.ndarray], starts: np.ndarray, counts: np.ndarray) -> List[np.ndarray]:
    """Values of spans of several arrays, one span after another."""
    places = spelled_out(starts, counts, ends_of(counts))
    return [array.take(places) for array in arrays]


def _by_rows(arrays: Sequence[np.ndarray], starts: np.ndarray, counts: np.ndarray) -> List[np.ndarray]:
    """The same by slices of memory views, which cost less than those of arrays."""
    spans = [slice(begin, end) for begin, end in zip(starts.tolist(), (starts + counts).tolist())]
    views = [memoryview(array) for array in arrays]
    return [np.ndarray(int(counts.sum()), array.dtype, bytearray().join([view[span] for span in spans])) for array, view in zip(arrays, views)]
