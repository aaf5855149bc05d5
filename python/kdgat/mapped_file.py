"""A file whose arrays are mapped, and read when they are used."""

from __future__ import annotations

import math
import mmap
import os
import pathlib
from typing import Any, Callable, Sequence

import numpy as np

#: Parts of the program's files begin on pages.
PAGE_BYTES = 4096


class StoreError(ValueError):
    """A store or a cache that cannot be read: there is none, or it is damaged, truncated, or of another version or origin."""


def reopened(kind: Callable[..., Any], path: str, settings: Sequence[Any], digest: str) -> Any:
    """The store that another process had open. Raises StoreError if it is another one by now."""
    store = kind(path, *settings)
    if store.digest != digest:
        raise StoreError(f"{path} is another store than before, with the digest {store.digest} instead of {digest}; open it again")
    return store


def whole_pages(size: int) -> int:
    """Bytes of the pages that hold ``size`` bytes."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


class MappedFile:
    """A read-only map of a whole file. Its arrays are views, which keep the map."""

    def __init__(self, path: pathlib.Path) -> None:
        """Maps a file. Raises OSError if it cannot be opened."""
        self.path = path
        with path.open("rb") as file:
            #: Bytes of the file when it was mapped.
            self.size = os.fstat(file.fileno()).st_size
            # A map has at least one byte.
            self._map = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ) if self.size else None

    def is_cut_off(self) -> bool:
        """True if the file has become shorter since: reading beyond its end would end the process."""
        return self._map is not None and self._map.size() < self.size

    def array(self, dtype: "np.dtype", shape: Sequence[int], offset: int) -> np.ndarray:
        """Returns a read-only array over the file. The caller has checked that it lies within."""
        count = math.prod(shape)
        if count == 0 or self._map is None:
            return np.empty(tuple(shape), dtype)
        return np.frombuffer(self._map, dtype, count, offset).reshape(tuple(shape))
