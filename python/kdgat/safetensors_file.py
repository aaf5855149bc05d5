"""Tensors of a safetensors file as arrays that are mapped from it."""

from __future__ import annotations

import json
import math
import pathlib

import numpy as np

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?"}
#: Bytes of the header's length.
_LENGTH_BYTES = 8


def read_tensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Maps all tensors of a file. Raises ValueError, which names file and tensor, if it is damaged."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if size < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
            raise ValueError(f"{path}: truncated: a header of {length} bytes in a file of {size}")
        try:
            header = json.loads(file.read(length))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: no safetensors file: its header is damaged ({error})") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path}: no safetensors file: its header is no table of tensors")
    start = _LENGTH_BYTES + length
    header.pop("__metadata__", None)
    return {name: _tensor(path, size, start, name, tensor) for name, tensor in header.items()}


def _tensor(path: pathlib.Path, size: int, start: int, name: str, tensor: dict) -> np.ndarray:
    try:
        dtype, shape, (begin, end) = np.dtype(_DTYPES[tensor["dtype"]]), [*tensor["shape"]], tensor["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: the entry of the tensor `{name}` is damaged: {tensor}") from error
    fits = all(isinstance(length, int) and length >= 0 for length in [*shape, begin, end])
    if not fits or end - begin != dtype.itemsize * math.prod(shape) or start + end > size:
        raise ValueError(f"{path}: the tensor `{name}` has bytes {begin} to {end}, its shape is {shape}, and {size - start} bytes are there")
    if begin == end:
        return np.empty(shape, dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=start + begin, shape=tuple(shape))
