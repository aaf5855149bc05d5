"""A teacher's outputs as the program caches them (`--teacher-cache disk`): one file, with a record for each graph of a store or each node of a graph.

The file is read at offsets and never mapped, as the program does: one that is cut off while it is in use is an error of a call, not a signal that ends
the process. A record is believed only if its checksum, which covers its number, is right.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import struct
import weakref
import zlib
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from kdgat.digests import blake3_hex
from kdgat.mapped_file import PAGE_BYTES, StoreError, whole_pages
from kdgat.positions import checked_positions, ends_of, spelled_out

#: Magic, version, bytes and CRC-32 of the header, 0.
_PREFIX = struct.Struct("<8s4I")
_MAGIC, _VERSION = b"KDGATTGT", 1
_LONGEST_HEADER_BYTES = 1 << 20
_CHECKSUM_BYTES = 4
_KEY = ("teacher_weights", "architecture", "dataset", "features", "targets", "precision", "node_counts")
_OUTPUT = re.compile(r"(.+) \[(nodes|graphs), (\d+)\]")
_VIEWS = re.compile(r"(\d+) views with ")
#: Most views of a graph that are looked for.
_MOST_VIEWS = 1 << 12


@dataclasses.dataclass(frozen=True)
class Output:
    """An output of the teacher: its name, its row unit (``"nodes"`` or ``"graphs"``) and the numbers of a row."""

    name: str
    per: str
    columns: int


class Targets:
    """Cached outputs of a teacher: ``targets.rows(graphs)`` are f32 ``[graphs, columns]``, or ``[nodes, columns]`` of an output of nodes.

    May be used by several threads, in processes that are forked, and, pickled, in others; the program may fill the file meanwhile.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"], store: Any = None) -> None:
        """Opens a file of targets (``stores/targets/NAME.targets``).

        ``store``: the :class:`kdgat.Store` or :class:`kdgat.NodeStore` whose graphs or nodes it has; then it is checked that the file belongs to it.
        Outputs of nodes and files with several views of each graph need it: it has the numbers of nodes and graphs. Raises StoreError if the file is no
        cache, damaged, truncated, of another version, or of another store, and ValueError without a store that it needs.
        """
        self.path = pathlib.Path(path).absolute()
        self._store = store
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a folder, expected a file such as stores/targets/NAME.targets; what kdgat.Teacher has cached in a folder is read by Teacher.targets(batch)")
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(f"cannot open the cache of targets {self.path}: {error.strerror}") from error
        weakref.finalize(self, os.close, self._file)
        #: The cache's key: digests of weights, architecture, dataset and numbers of nodes, and the precision.
        self.key: Dict[str, str] = {}
        header_end = self._read_header()
        #: The outputs in the order of a record.
        self.outputs: List[Output] = self._described_outputs()
        self._dtype = np.dtype("<f4" if self.key["precision"] == "f32" else "<f2")
        #: Numbers of a record by node and by graph.
        self._widths = {per: sum(output.columns for output in self.outputs if output.per == per) for per in ("nodes", "graphs")}
        self._table = whole_pages(header_end)
        self._size = os.fstat(self._file).st_size
        #: First node of each record, and their number, i64 ``[records + 1]``; ``None`` if no output has rows of nodes.
        self._node_starts: Optional[np.ndarray] = None
        self._graphs, self.views = self._checked_size()
        self._records = whole_pages(self._table + len(self) * self.views)
        self._filled = self._read_filled()

    def __len__(self) -> int:
        """Number of graphs, or of nodes of one large graph."""
        return self._graphs

    def __repr__(self) -> str:
        outputs = " + ".join(f"{output.name} [{output.per}, {output.columns}]" for output in self.outputs)
        return f"Targets({str(self.path)!r}, {outputs}, {int(self._filled.sum())} of {len(self._filled)} records)"

    def __reduce__(self) -> Tuple[Any, ...]:
        return Targets, (str(self.path), self._store)

    def has(self, graphs: Sequence[int], view: int = 0) -> np.ndarray:
        """True for the graphs that have a record by now, ``[graphs]``."""
        return self._has(self._numbers(graphs, view))

    def rows(self, graphs: Sequence[int], output: Optional[str] = None, view: int = 0) -> np.ndarray:
        """Rows of an output for these graphs, one graph after another: f32 ``[graphs, columns]`` or ``[nodes, columns]``.

        ``output``: its name, if there are several. ``view``: of a teacher that sees training graphs in several views. Raises StoreError if a graph has no
        record, or a damaged one.
        """
        names = [known.name for known in self.outputs]
        if output is None and len(names) > 1:
            raise ValueError(f"{self.path} has several outputs: name one of {', '.join(map(repr, names))}")
        if output is not None and output not in names:
            raise ValueError(f"output={output!r}: expected {' or '.join(map(repr, names))}")
        return self._read(graphs, view)[output or names[0]]

    def __getitem__(self, graphs: Any) -> Dict[str, np.ndarray]:
        """Rows of all outputs by name, for one graph or several; see :meth:`rows`."""
        if isinstance(graphs, slice):
            graphs = range(*graphs.indices(len(self)))
        return self._read(graphs if np.ndim(graphs) else [graphs], 0)

    def _read(self, graphs: Sequence[int], view: int) -> Dict[str, np.ndarray]:
        numbers = self._numbers(graphs, view)
        found = self._has(numbers)
        if not found.all():
            raise StoreError(
                f"{self.path} has no targets of {self._unit} {int(np.asarray(graphs)[~found][0])}, but of {int(found.sum())} of the {len(found)} that are "
                "read; a training with `--teacher-cache disk`, or `kdgat teachers cache`, adds those that it needs"
            )
        nodes = self._nodes_before(numbers + 1) - self._nodes_before(numbers)
        sizes = (nodes * self._widths["nodes"] + self._widths["graphs"]) * self._dtype.itemsize + _CHECKSUM_BYTES
        ends = ends_of(sizes)
        content = self._content(self._offsets(numbers), sizes, ends)
        self._check(content, ends.tolist(), numbers.tolist())
        values, first = content.view(self._dtype), ends[:-1] // self._dtype.itemsize
        rows = {}
        for output in self.outputs:
            counts = (nodes if output.per == "nodes" else np.ones(len(numbers), np.int64)) * output.columns
            places = spelled_out(first, counts, ends_of(counts))
            rows[output.name] = values.take(places).astype(np.float32).reshape(-1, output.columns)
            first = first + counts
        return rows

    def _content(self, offsets: np.ndarray, sizes: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Bytes of the records, one after another; neighbours in the file are read in one call."""
        # Zeros, so that what is missing from a file that has become shorter fails its checksum.
        content = np.zeros(int(ends[-1]), np.uint8)
        begins = [0, *(np.flatnonzero(offsets[1:] != offsets[:-1] + sizes[:-1]) + 1).tolist()] if len(offsets) else []
        for begin, end in zip(begins, [*begins[1:], len(offsets)]):
            self._read_into(content[ends[begin] : ends[end]], int(offsets[begin]))
        return content

    def _read_into(self, part: np.ndarray, offset: int) -> None:
        try:
            while len(part):
                # At most 2 GiB a call.
                read = os.preadv(self._file, [part], offset)
                if read == 0:
                    break
                part, offset = part[read:], offset + read
        except OSError as error:
            raise StoreError(f"cannot read the cache of targets {self.path}: {error.strerror}") from error

    def _check(self, content: np.ndarray, ends: List[int], numbers: List[int]) -> None:
        """Compares the checksum of each record, the only loop over graphs."""
        view, crc32, pack = memoryview(content), zlib.crc32, struct.Struct("<Q").pack
        for number, begin, end in zip(numbers, ends, ends[1:]):
            end -= _CHECKSUM_BYTES
            if crc32(view[begin:end], crc32(pack(number))) != int.from_bytes(view[end : end + _CHECKSUM_BYTES], "little"):
                raise StoreError(
                    f"the record of {self._unit} {number % max(1, len(self))} in {self.path} is damaged (its checksum is wrong); a training with this "
                    "cache, or `kdgat teachers cache`, computes it again"
                )

    @property
    def _unit(self) -> str:
        return "node" if hasattr(self._store, "indptr") else "graph"

    def _numbers(self, graphs: Sequence[int], view: int) -> np.ndarray:
        """Numbers of records of graphs in a view."""
        positions = checked_positions(graphs, len(self), self._unit, self.path)
        if not 0 <= view < self.views:
            raise ValueError(f"view={view}: {self.path} has {self.views} views of each graph (0 to {self.views - 1})")
        return positions + view * len(self)

    def _has(self, numbers: np.ndarray) -> np.ndarray:
        """True for the records that are written by now."""
        if not self._filled[numbers].all():
            # Another process may have written it since.
            self._filled = self._read_filled()
        return self._filled[numbers]

    def _nodes_before(self, numbers: np.ndarray) -> np.ndarray:
        return np.zeros(len(numbers), np.int64) if self._node_starts is None else self._node_starts[numbers]

    def _offsets(self, numbers: np.ndarray) -> np.ndarray:
        """First byte of each record."""
        values = self._nodes_before(numbers) * self._widths["nodes"] + numbers * self._widths["graphs"]
        return self._records + values * self._dtype.itemsize + numbers * _CHECKSUM_BYTES

    def _damaged(self, what: str) -> StoreError:
        return StoreError(f"the cache of targets {self.path} is damaged: {what}; delete the file to compute the targets again")

    def _read_header(self) -> int:
        """Reads the key. Returns the end of the header in bytes."""
        prefix = os.pread(self._file, _PREFIX.size, 0)
        if len(prefix) < _PREFIX.size:
            raise self._damaged("it is shorter than a header")
        magic, version, length, checksum, _ = _PREFIX.unpack(prefix)
        if magic != _MAGIC:
            raise self._damaged("it does not begin like a cache of targets")
        if version != _VERSION:
            raise self._damaged(f"it has format version {version}, this kdgat reads {_VERSION}")
        if length > _LONGEST_HEADER_BYTES:
            raise self._damaged(f"its header claims {length} bytes")
        header = os.pread(self._file, length, _PREFIX.size)
        if len(header) < length:
            raise self._damaged("its header is cut off")
        if zlib.crc32(header) != checksum:
            raise self._damaged("its header fails its checksum")
        try:
            self.key = {name: str(value) for name, value in json.loads(header).items()}
        except (ValueError, AttributeError) as error:
            raise self._damaged(f"its header does not parse: {error}") from error
        missing = [name for name in _KEY if name not in self.key]
        if missing or self.key["precision"] not in ("f32", "f16"):
            raise self._damaged(f"its key has no {missing[0]}" if missing else f"its precision is {self.key['precision']}")
        return _PREFIX.size + length

    def _described_outputs(self) -> List[Output]:
        matches = [_OUTPUT.fullmatch(text) for text in self.key["targets"].split(" + ")]
        outputs = [Output(match[1], match[2], int(match[3])) for match in matches if match]
        if len(outputs) < len(matches) or any(not 0 < output.columns < 1 << 24 for output in outputs):
            raise self._damaged(f"its targets are '{self.key['targets']}'")
        return outputs

    def _checked_size(self) -> Tuple[int, int]:
        """Number of graphs, and views of each, that the file has by its length."""
        if self._store is None:
            return self._graphs_by_size(), 1
        if self._store.digest != self.key["dataset"]:
            raise StoreError(
                f"the cache of targets {self.path} was made for something else: dataset (cache: {self.key['dataset'][:12]}…, store: "
                f"{self._store.digest[:12]}…); open the store that the training read"
            )
        counts = self._store.node_counts()
        starts = ends_of(counts)
        sizes = [self._expected_size(views * len(counts), views * int(starts[-1])) for views in range(1, _MOST_VIEWS)]
        if self._size not in sizes:
            raise self._damaged(f"its length is {self._size} bytes, expected {sizes[0]}")
        views = sizes.index(self._size) + 1
        of_records = np.tile(counts, views)
        if blake3_hex(of_records.astype("<u4")) != self.key["node_counts"]:
            raise StoreError(f"the cache of targets {self.path} was made for something else: its graphs have other numbers of nodes than the store's")
        if self._widths["nodes"]:
            self._node_starts = ends_of(of_records)
        return len(counts), views

    def _graphs_by_size(self) -> int:
        if self._widths["nodes"]:
            raise ValueError(f"{self.path} has rows of nodes: give the store, kdgat.Targets(path, store), which knows how many nodes a graph has")
        views = _VIEWS.search(self.key["features"])
        if views is not None and int(views[1]) > 1:
            raise ValueError(f"{self.path} has several views of each graph: give the store, kdgat.Targets(path, store), which knows how many graphs there are")
        record = self._widths["graphs"] * self._dtype.itemsize + _CHECKSUM_BYTES
        # Whole pages before the records leave a few numbers to try.
        most = max(0, self._size - self._table) // (record + 1)
        for graphs in range(most, max(-1, most - PAGE_BYTES // (record + 1) - 2), -1):
            if self._expected_size(graphs, 0) == self._size:
                return graphs
        raise self._damaged(f"its length is {self._size} bytes, which no number of graphs gives")

    def _expected_size(self, records: int, nodes: int) -> int:
        values = nodes * self._widths["nodes"] + records * self._widths["graphs"]
        return whole_pages(self._table + records) + values * self._dtype.itemsize + records * _CHECKSUM_BYTES

    def _read_filled(self) -> np.ndarray:
        """True for each record that is written."""
        table = os.pread(self._file, len(self) * self.views, self._table)
        if len(table) < len(self) * self.views:
            raise self._damaged("it is cut off")
        return np.frombuffer(table, np.uint8) == 1
