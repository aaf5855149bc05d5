"""Positions of graphs and nodes: checked as users give them, and spelled out from spans."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np


def checked_positions(numbers: Any, count: int, unit: str, path: pathlib.Path) -> np.ndarray:
    """Positions of graphs or nodes (``unit``) in a file of ``count`` of them, i64 ``[n]``.

    Raises TypeError for what is no list of whole numbers, and IndexError for a position that there is not.
    """
    positions = np.asarray(numbers)
    if positions.size == 0:
        return np.zeros(0, np.int64)
    if positions.ndim != 1 or positions.dtype.kind not in "iu":
        raise TypeError(f"{unit}s of type {positions.dtype} and shape {list(positions.shape)}: expected positions, whole numbers of shape [{unit}s]")
    outside = positions[(positions < 0) | (positions >= count)]
    if len(outside):
        raise IndexError(f"{unit} {outside[0]} does not exist: {path} has {count} {unit}s (0 to {count - 1})")
    return positions.astype(np.int64)


def ends_of(counts: np.ndarray) -> np.ndarray:
    """Ends of spans of ``counts`` items that follow each other: 0, and the sums of counts, i64 ``[spans + 1]``."""
    ends = np.zeros(len(counts) + 1, np.int64)
    counts.cumsum(out=ends[1:])
    return ends


def spelled_out(starts: np.ndarray, counts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The numbers of all items of spans, one span after another, i64 ``[sum of counts]``; ``ends`` are those of :func:`ends_of` the counts."""
    numbers = (starts - ends[:-1]).repeat(counts)
    numbers += np.arange(len(numbers))
    return numbers
