"""Writes tensors in the safetensors format, without further packages."""

import json
import struct

import numpy as np


def save(path, tensors):
    header, data, offset = {}, [], 0
    for name, tensor in sorted(tensors.items()):
        array = tensor.detach().contiguous().numpy()
        kind = {np.dtype("float32"): "F32", np.dtype("int64"): "I64"}[array.dtype]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        data.append(array.tobytes())
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data))
