"""A cache of a teacher's outputs in a folder: one record for each item, in any order, by any number of processes (docs/store.md).

``cache.json`` is the manifest: what the rows depend on, and their encodings. Each process that writes appends to a file of its own,
``NAME.rows``, and then to ``NAME.index``, where the records are. A record carries its key and a checksum, and is believed only if both
are right, so a torn record, or a wrong entry of an index, is computed again and never read as another item's. The files are read at offsets and never
mapped: one that is truncated while it is in use is an error of a call, not a signal that ends the process.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import pathlib
import secrets
import struct
import threading
import zlib
from typing import Dict, List, Optional, Sequence, Tuple

import numpy

from kdgat.index import ENTRY, Index
from kdgat.rows import Encoding

FORMAT, VERSION = "kdgat targets", 1
MANIFEST = "cache.json"
#: Start of a file of rows: magic, version, 0, SHA-256 of the manifest.
_HEAD = struct.Struct("<8sII32s")
_MAGIC = b"KDGATROW"
#: Start of a record: magic, bytes of the record, key.
_RECORD = struct.Struct("<4sI16s")
_RECORD_MAGIC = b"KDRW"
#: Key, offset and bytes of a record, and 0.
_INDEX = numpy.dtype([("high", "<u8"), ("low", "<u8"), ("offset", "<u8"), ("size", "<u4"), ("zero", "<u4")])


class CacheError(ValueError):
    """A cache that cannot be used: of other weights or outputs, damaged, or of another version."""


class Damaged(Exception):
    """Records that are not what was written. ``positions`` are their places among those that were read."""

    def __init__(self, positions: List[int]) -> None:
        super().__init__(f"{len(positions)} damaged records")
        self.positions = positions


#: Rows of some items: an array of all rows for each output, and the number of rows of each item, ``[outputs][items]``.
Rows = Tuple[List[numpy.ndarray], List[numpy.ndarray]]


class MemoryStore:
    """A cache in memory, which ends with its teacher."""

    def __init__(self) -> None:
        self.encodings: Optional[List[Encoding]] = None
        self.warning: Optional[str] = None
        self._rows: Dict[Tuple[int, int], List[numpy.ndarray]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def settle(self, encodings: List[Encoding]) -> None:
        """Fixes the encodings of the outputs. Raises :class:`CacheError` if they are fixed already, to others."""
        self.encodings = _settled(self.encodings, encodings, "the cache in memory")

    def refresh(self) -> None:
        """Looks for records of other processes, of which there are none."""

    def find(self, keys: numpy.ndarray) -> numpy.ndarray:
        """True for the keys ``[n]`` that have a record."""
        return numpy.array([(int(key["high"]), int(key["low"])) in self._rows for key in keys], bool)

    def read(self, keys: numpy.ndarray) -> Rows:
        """Rows of these items, all of which have a record."""
        parts = [self._rows[int(key["high"]), int(key["low"])] for key in keys]
        columns = range(len(self.encodings or []))
        counts = [numpy.array([len(part[column]) for part in parts], numpy.int64) for column in columns]
        return [numpy.concatenate([part[column] for part in parts]) for column in columns], counts

    def add(self, keys: numpy.ndarray, items: Sequence[Sequence[numpy.ndarray]]) -> None:
        """Adds records: for each key the rows of each output."""
        for key, rows in zip(keys, items):
            self._rows.setdefault((int(key["high"]), int(key["low"])), [numpy.array(part) for part in rows])

    def close(self) -> None:
        """Does nothing."""


class FolderStore:
    """A cache in a folder, made for ``key``: JSON-like fields on which its rows depend."""

    def __init__(self, folder: os.PathLike, key: Dict[str, object]) -> None:
        self.folder = pathlib.Path(folder)
        self.encodings: Optional[List[Encoding]] = None
        #: Why rows are no longer written, if they are not.
        self.warning: Optional[str] = None
        self._key = key
        self._digest = b""
        self._index = Index()
        # Files of rows by name, their descriptors, and the bytes of their indexes that were read.
        self._names: List[str] = []
        self._files: List[int] = []
        self._consumed: Dict[str, int] = {}
        self._own: Optional[_Writer] = None
        # Guards the list of files: one thread reads while another adds rows.
        self._lock = threading.Lock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise CacheError(f"{self.folder} is not a folder; name a folder for the cache") from None
        manifest = self._manifest()
        if manifest is not None:
            self._adopt(manifest)
            self.refresh()

    def __len__(self) -> int:
        return len(self._index)

    def _manifest(self) -> Optional[bytes]:
        try:
            return (self.folder / MANIFEST).read_bytes()
        except FileNotFoundError:
            return None

    def _adopt(self, manifest: bytes) -> None:
        """Takes over a manifest that is there. Refuses one of another key, and names the fields that differ."""
        path = self.folder / MANIFEST
        try:
            fields = json.loads(manifest)
            is_cache = fields["format"] == FORMAT
            version, key = fields["version"], fields["key"]
            encodings = [Encoding.of_fields(output) for output in fields["outputs"]]
            if not is_cache or not encodings or not isinstance(key, dict):
                raise ValueError(f"format '{fields['format']}'")
        except (ValueError, KeyError, TypeError) as error:
            raise CacheError(f"{path} is not the manifest of a cache ({error}); name another folder, or remove the file") from error
        if version != VERSION:
            raise CacheError(f"{path} has version {version}, and this kdgat reads version {VERSION}; use another folder")
        here = json.loads(json.dumps(self._key))
        differences = [
            f"{name}: {_short(key.get(name))} in the cache, {_short(here.get(name))} here"
            for name in sorted({*key, *here})
            if key.get(name) != here.get(name)
        ]
        if differences:
            raise CacheError(
                f"{self.folder} is the cache of another teacher: {'; '.join(differences)}; name another folder, or remove this one"
            )
        self.encodings = _settled(self.encodings, encodings, str(self.folder))
        self._digest = hashlib.sha256(manifest).digest()

    def settle(self, encodings: List[Encoding]) -> None:
        """Fixes the encodings of the outputs, and writes the manifest. Raises :class:`CacheError` if they are fixed already, to others."""
        if self.encodings is not None:
            _settled(self.encodings, encodings, str(self.folder))
            return
        fields = {"format": FORMAT, "version": VERSION, "key": self._key, "outputs": [encoding.described() for encoding in encodings]}
        content = (json.dumps(fields, indent=1, sort_keys=True) + "\n").encode()
        try:
            with open(self.folder / ".lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                found = self._manifest()
                if found is None:
                    partial = self.folder / f".{MANIFEST}.partial"
                    with open(partial, "wb") as file:
                        file.write(content)
                        file.flush()
                        os.fsync(file.fileno())
                    os.replace(partial, self.folder / MANIFEST)
        except OSError as error:
            self._stop(error)
            self.encodings = encodings
            return
        self._adopt(found or content)
        _settled(self.encodings, encodings, str(self.folder))
        self.refresh()

    def refresh(self) -> None:
        """Reads the entries that other processes have added to their indexes."""
        if not self._digest:
            manifest = self._manifest()
            if manifest is None:
                return
            self._adopt(manifest)
        with self._lock:
            for path in sorted(self.folder.glob("*.index")):
                consumed = self._consumed.get(path.name, 0)
                try:
                    if path.stat().st_size < consumed + _INDEX.itemsize:
                        continue
                    with open(path, "rb") as file:
                        file.seek(consumed)
                        content = file.read()
                    self._take(path.stem, content[: len(content) // _INDEX.itemsize * _INDEX.itemsize])
                except FileNotFoundError:
                    continue

    def _take(self, name: str, content: bytes) -> None:
        """Adds the entries of an index to this process's."""
        if name not in self._names:
            path = self.folder / f"{name}.rows"
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            head = os.pread(descriptor, _HEAD.size, 0)
            if head != _HEAD.pack(_MAGIC, VERSION, 0, self._digest):
                os.close(descriptor)
                raise CacheError(f"{path} does not belong to {self.folder / MANIFEST}; remove the file, or the whole folder")
            self._names.append(name)
            self._files.append(descriptor)
        self._consumed[f"{name}.index"] = self._consumed.get(f"{name}.index", 0) + len(content)
        number = self._names.index(name)
        read = numpy.frombuffer(content, _INDEX)
        size = os.fstat(self._files[number]).st_size
        smallest = _RECORD.size + 8
        is_inside = (read["size"] >= smallest) & (read["size"] <= size) & (read["offset"] >= _HEAD.size)
        is_inside &= read["offset"] <= size - numpy.minimum(read["size"], size)
        read = read[is_inside]
        entries = numpy.empty(len(read), ENTRY)
        for field in ("high", "low", "offset", "size"):
            entries[field] = read[field]
        entries["file"] = number
        self._index.add(entries)

    def find(self, keys: numpy.ndarray) -> numpy.ndarray:
        """True for the keys ``[n]`` that have a record."""
        return self._index.find(keys) >= 0

    def read(self, keys: numpy.ndarray) -> Rows:
        """Rows of these items, all of which have a record. Raises :class:`Damaged` for records that are not what was written."""
        entries = self._index.entries(self._index.find(keys))
        sizes = entries["size"].astype(numpy.int64)
        ends = numpy.cumsum(sizes)
        starts = ends - sizes
        # Zeros, so that what is missing from a file that has become shorter fails its checksum.
        buffer = numpy.zeros(int(ends[-1]) if len(ends) else 0, numpy.uint8)
        content = memoryview(buffer)
        # Neighbours in a file are read in one call.
        is_next = (entries["file"][1:] == entries["file"][:-1]) & (
            entries["offset"][1:] == entries["offset"][:-1] + sizes[:-1].astype("<u8")
        )
        borders = [0, *(numpy.flatnonzero(~is_next) + 1).tolist(), len(entries)] if len(entries) else [0]
        starts, ends = starts.tolist(), ends.tolist()
        files, offsets = entries["file"].tolist(), entries["offset"].tolist()
        for begin, end in zip(borders[:-1], borders[1:]):
            os.preadv(self._files[files[begin]], [content[starts[begin] : ends[end - 1]]], offsets[begin])
        records = [content[start:end] for start, end in zip(starts, ends)]
        if len(records) > 1 and bool((sizes == sizes[0]).all()):
            equal = self._equal_rows(buffer.reshape(len(records), -1), records, keys)
            if equal is not None:
                return equal
        known = keys.tobytes()
        damaged = [number for number, record in enumerate(records) if not self._is_whole(record, known[16 * number : 16 * number + 16])]
        if damaged:
            for number in damaged:
                self._index.forget(keys[number])
            raise Damaged(damaged)
        return self._rows(records)

    def _equal_rows(self, table: numpy.ndarray, records: List[memoryview], keys: numpy.ndarray) -> Optional[Rows]:
        """Rows of records of one size ``[records, bytes]``, without a loop but for their checksums; ``None`` if one is damaged."""
        encodings, (number, size) = self.encodings or [], table.shape
        first = _RECORD.size + 4 * len(encodings)
        start = records[0][_RECORD.size : first]
        counts = struct.unpack(f"<{len(encodings)}I", start)
        if size != _record_bytes(len(encodings), sum(count * encoding.row_bytes for count, encoding in zip(counts, encodings))):
            return None
        expected = numpy.empty((number, first), numpy.uint8)
        expected[:] = numpy.frombuffer(_RECORD.pack(_RECORD_MAGIC, size, bytes(16)) + bytes(start), numpy.uint8)
        expected[:, _RECORD.size - 16 : _RECORD.size] = numpy.frombuffer(keys.tobytes(), numpy.uint8).reshape(number, 16)
        stored = table[:, size - 4 :].copy().view("<u4")[:, 0].tolist()
        crc32 = zlib.crc32
        if not numpy.array_equal(table[:, :first], expected) or [crc32(record[: size - 4]) for record in records] != stored:
            return None
        arrays = []
        for count, encoding in zip(counts, encodings):
            end = first + count * encoding.row_bytes
            arrays.append(numpy.frombuffer(table[:, first:end].copy(), encoding.row))
            first = end
        return arrays, [numpy.full(number, count, numpy.int64) for count in counts]

    def _is_whole(self, record: memoryview, key: bytes) -> bool:
        """True if these bytes are the record of ``key``: header, checksum, and the size that its numbers of rows require."""
        size = len(record)
        if record[: _RECORD.size] != _RECORD.pack(_RECORD_MAGIC, size, key):
            return False
        if zlib.crc32(record[: size - 4]) != int.from_bytes(record[size - 4 :], "little"):
            return False
        encodings = self.encodings or []
        counts = struct.unpack_from(f"<{len(encodings)}I", record, _RECORD.size)
        rows = sum(count * encoding.row_bytes for count, encoding in zip(counts, encodings))
        return size == _record_bytes(len(encodings), rows)

    def _rows(self, records: List[memoryview]) -> Rows:
        """Rows of whole records, by output."""
        encodings = self.encodings or []
        first = _RECORD.size + 4 * len(encodings)
        counts = [struct.unpack_from(f"<{len(encodings)}I", record, _RECORD.size) for record in records]
        starts = [first] * len(records)
        arrays, numbers = [], []
        for column, encoding in enumerate(encodings):
            parts = []
            for number, record in enumerate(records):
                end = starts[number] + counts[number][column] * encoding.row_bytes
                parts.append(record[starts[number] : end])
                starts[number] = end
            arrays.append(numpy.frombuffer(bytearray().join(parts), encoding.row))
            numbers.append(numpy.array([count[column] for count in counts], numpy.int64))
        return arrays, numbers

    def add(self, keys: numpy.ndarray, items: Sequence[Sequence[numpy.ndarray]]) -> None:
        """Appends records to this process's file: for each key the rows of each output. Keys that have a record are left out.

        If the disk is full or the folder cannot be written, writing stops, ``warning`` says why, and all earlier records stay in use.
        """
        if self.warning is not None or not self._digest:
            return
        is_new = ~self.find(keys)
        records = [_record(key.tobytes(), rows) for key, rows, new in zip(keys, items, is_new) if new]
        if not records:
            return
        try:
            if self._own is None:
                self._own = _Writer(self.folder, _HEAD.pack(_MAGIC, VERSION, 0, self._digest))
                # What an ended process has written to the file since the last look.
                self.refresh()
            entries = self._own.append(keys[is_new], records)
        except OSError as error:
            self._stop(error)
            return
        with self._lock:
            self._take(self._own.name, entries)

    def _stop(self, error: OSError) -> None:
        advice = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "check the folder"
        self.warning = f"cannot write to the cache {self.folder}: {error.strerror or error}; {len(self)} items stay cached, others are computed ({advice})"

    def close(self) -> None:
        """Syncs and closes the files."""
        if self._own is not None:
            try:
                self._own.close()
            except OSError as error:
                self._stop(error)
            self._own = None
        with self._lock:
            for descriptor in self._files:
                os.close(descriptor)
            self._files, self._names, self._consumed, self._index = [], [], {}, Index()


class _Writer:
    """The files that one process appends to: those of a process that has ended, or new ones."""

    def __init__(self, folder: pathlib.Path, head: bytes) -> None:
        for path in [*sorted(folder.glob("*.rows")), folder / f"{os.getpid()}-{secrets.token_hex(4)}.rows"]:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                # Held until the process ends, however it ends.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            try:
                # A start that is torn, or of another cache, is no file to append to, unless it is a new one.
                found = os.pread(descriptor, len(head), 0)
                if found and found != head:
                    os.close(descriptor)
                    continue
                if not found:
                    _write(descriptor, head, 0)
                self.name, self._rows = path.stem, descriptor
                self._index = os.open(path.with_suffix(".index"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                break
            except BaseException:
                os.close(descriptor)
                raise
        # A record or an entry that a kill tore is overwritten.
        self._end = -(-os.fstat(self._rows).st_size // 8) * 8
        self._index_end = os.fstat(self._index).st_size // _INDEX.itemsize * _INDEX.itemsize

    def append(self, keys: numpy.ndarray, records: List[bytes]) -> bytes:
        """Writes records, and then their entries. Returns all entries of the index that were not read yet."""
        entries = numpy.zeros(len(records), _INDEX)
        sizes = numpy.array([len(record) for record in records], numpy.int64)
        entries["high"], entries["low"] = keys["high"], keys["low"]
        entries["size"], entries["offset"] = sizes, self._end + numpy.cumsum(sizes) - sizes
        _write(self._rows, b"".join(records), self._end)
        content = entries.tobytes()
        _write(self._index, content, self._index_end)
        self._end += int(sizes.sum())
        self._index_end += len(content)
        return content

    def close(self) -> None:
        """Syncs the files, whose lock then ends."""
        try:
            os.fsync(self._rows)
            os.fsync(self._index)
        finally:
            os.close(self._rows)
            os.close(self._index)


def _write(descriptor: int, content: bytes, offset: int) -> None:
    """Writes all bytes, or none: what a full disk leaves is cut off again."""
    rest = memoryview(content)
    try:
        while len(rest):
            written = os.pwrite(descriptor, rest, offset + len(content) - len(rest))
            rest = rest[written:]
    except BaseException:
        os.ftruncate(descriptor, offset)
        raise


def _record_bytes(outputs: int, rows: int) -> int:
    """Bytes of a record with its checksum, a multiple of 8."""
    return -(-(_RECORD.size + 4 * outputs + rows + 4) // 8) * 8


def _record(key: bytes, rows: Sequence[numpy.ndarray]) -> bytes:
    """A record: header, number of rows of each output, rows, zeros up to a multiple of 8, CRC-32 of all of that."""
    content = b"".join(array.tobytes() for array in rows)
    size = _record_bytes(len(rows), len(content))
    start = _RECORD.pack(_RECORD_MAGIC, size, key) + struct.pack(f"<{len(rows)}I", *(len(array) for array in rows))
    record = (start + content).ljust(size - 4, b"\0")
    return record + zlib.crc32(record).to_bytes(4, "little")


def _settled(known: Optional[List[Encoding]], found: List[Encoding], where: str) -> List[Encoding]:
    """The encodings, if they are those that are known. Raises :class:`CacheError` with the difference."""
    if known is not None and known != found:
        texts = [", ".join(f"{encoding.name} {_short(encoding.described())}" for encoding in encodings) for encodings in (known, found)]
        raise CacheError(
            f"{where} has the outputs {texts[0]}, and the teacher gives {texts[1]}; name another folder for the cache, or mend `outputs`"
        )
    return found


def _short(value: object) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 200 else text[:200] + "…"
