"""Tensors of a safetensors file as arrays that are mapped from it."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
from typing import Tuple

import numpy as np

from kdgat.mapped_file import MappedFile

_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "U64": "<u8",
    "I64": "<i8",
    "U32": "<u4",
    "I32": "<i4",
    "U16": "<u2",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
#: Bytes of the header's length.
_LENGTH_BYTES = 8
#: Longest header that is read: the format's own limit.
_LONGEST_HEADER_BYTES = 100_000_000


@dataclasses.dataclass(frozen=True)
class Place:
    """A tensor in a file: its type, its shape, and its first byte."""

    dtype: np.dtype
    shape: Tuple[int, ...]
    offset: int


def read_tensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Maps all tensors of a file. Raises ValueError, which names file and tensor, if it is damaged."""
    places = read_places(path)
    file = MappedFile(path)
    return {name: file.array(place.dtype, place.shape, place.offset) for name, place in places.items()}


def read_places(path: pathlib.Path) -> dict[str, Place]:
    """Reads where each tensor of a file is, and checks that it lies within the file. Raises ValueError if the file is damaged."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
            raise ValueError(f"{path}: truncated: a header of {length} bytes in a file of {size}")
        if length > _LONGEST_HEADER_BYTES:
            raise ValueError(f"{path}: no safetensors file: its header cannot have {length} bytes")
        try:
            header = json.loads(file.read(length))
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{path}: no safetensors file: its header is damaged ({error})") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path}: no safetensors file: its header is no table of tensors")
    start = _LENGTH_BYTES + length
    header.pop("__metadata__", None)
    return {name: _place(path, size, start, name, tensor) for name, tensor in header.items()}


def _place(path: pathlib.Path, size: int, start: int, name: str, tensor: dict) -> Place:
    try:
        dtype, shape, (begin, end) = np.dtype(_DTYPES[tensor["dtype"]]), [*tensor["shape"]], tensor["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: the entry of the tensor `{name}` is damaged: {tensor}") from error
    fits = all(isinstance(length, int) and length >= 0 for length in [*shape, begin, end])
    if not fits or end - begin != dtype.itemsize * math.prod(shape) or start + end > size:
        raise ValueError(f"{path}: the tensor `{name}` has bytes {begin} to {end}, its shape is {shape}, and {size - start} bytes are there")
    return Place(dtype, tuple(shape), start + begin)
