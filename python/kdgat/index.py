"""An index of records by 128-bit keys, in memory: 40 bytes for each record, and lookups of a batch at once."""

from __future__ import annotations

import threading
from typing import Dict, Tuple

import numpy

#: A key of an item: 128 bits, as two numbers.
KEY = numpy.dtype([("high", "<u8"), ("low", "<u8")])
#: A record's key, and where it is: number of its file, bytes, and offset in the file.
ENTRY = numpy.dtype([("high", "<u8"), ("low", "<u8"), ("offset", "<u8"), ("size", "<u4"), ("file", "<u4")])
#: Entries that are looked up in a dictionary before they are sorted.
_MOST_RECENT = 1 << 16


class Index:
    """Records by key. The first record of a key wins. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries = numpy.empty(1024, ENTRY)
        self._count = 0
        # Keys of the first entries in ascending order, and the entries' numbers; later entries are in a dictionary.
        self._sorted = numpy.empty(0, KEY)
        self._order = numpy.empty(0, numpy.int64)
        self._recent: Dict[Tuple[int, int], int] = {}

    def __len__(self) -> int:
        return self._count

    def find(self, keys: numpy.ndarray) -> numpy.ndarray:
        """Numbers of the entries of ``keys`` ``[n]`` as ``int64[n]``; −1 for those that have none."""
        with self._lock:
            return self._find(keys)

    def _find(self, keys: numpy.ndarray) -> numpy.ndarray:
        found = numpy.full(len(keys), -1, numpy.int64)
        if len(self._sorted):
            highs = self._sorted["high"]
            at = numpy.minimum(numpy.searchsorted(highs, keys["high"]), len(highs) - 1)
            is_equal = (highs[at] == keys["high"]) & (self._sorted["low"][at] == keys["low"])
            found[is_equal] = self._order[at[is_equal]]
            # Different keys with the same upper half are next to each other.
            for number in numpy.flatnonzero((highs[at] == keys["high"]) & ~is_equal):
                place = at[number]
                while place < len(highs) and highs[place] == keys["high"][number]:
                    if self._sorted["low"][place] == keys["low"][number]:
                        found[number] = self._order[place]
                        break
                    place += 1
        if self._recent:
            for number in numpy.flatnonzero(found < 0):
                found[number] = self._recent.get((int(keys["high"][number]), int(keys["low"][number])), -1)
        return found

    def add(self, entries: numpy.ndarray) -> None:
        """Adds entries ``[n]`` of :data:`ENTRY` whose keys are not there yet."""
        with self._lock:
            new = entries[self._find(entries) < 0] if self._count else entries
            if self._count + len(new) > len(self._entries):
                room = numpy.empty(max(2 * len(self._entries), self._count + len(new)), ENTRY)
                room[: self._count] = self._entries[: self._count]
                self._entries = room
            self._entries[self._count : self._count + len(new)] = new
            if len(self._recent) + len(new) > _MOST_RECENT:
                self._count += len(new)
                self._sort()
                return
            for entry in new:
                key = (int(entry["high"]), int(entry["low"]))
                if key not in self._recent:
                    self._recent[key] = self._count
                    self._entries[self._count] = entry
                    self._count += 1

    def _sort(self) -> None:
        entries = self._entries[: self._count]
        # Stable: of equal keys, the first entry comes first and is found.
        order = numpy.lexsort((entries["low"], entries["high"]))
        keys = numpy.empty(self._count, KEY)
        keys["high"], keys["low"] = entries["high"][order], entries["low"][order]
        self._sorted, self._order, self._recent = keys, order, {}

    def entries(self, numbers: numpy.ndarray) -> numpy.ndarray:
        """Entries of these numbers."""
        with self._lock:
            return self._entries[numbers]

    def forget(self, key: numpy.void) -> None:
        """Removes the record of a key, which is damaged, so that another can take its place."""
        with self._lock:
            number = int(self._find(numpy.array([key], KEY))[0])
            if number < 0:
                return
            pair = (int(key["high"]), int(key["low"]))
            if self._recent.pop(pair, None) is None:
                place = int(numpy.flatnonzero(self._order == number)[0])
                # No item has this key, and the order of the upper halves stays.
                self._sorted["low"][place] = ~self._sorted["low"][place]
            self._entries["low"][number] = ~self._entries["low"][number]
