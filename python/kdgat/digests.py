"""The checksums of the program's files: BLAKE3 (O'Connor et al. 2020) and CRC-32C, of many pieces of the bytes at once."""

from __future__ import annotations

import functools
from typing import Union

import numpy as np

_INITIAL = np.array(
    [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19], np.uint32
)[:, None]
_PERMUTATION = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8]
_CHUNK_START, _CHUNK_END, _PARENT, _ROOT = 1, 2, 4, 8
_CHUNK_BYTES, _BLOCK_BYTES = 1024, 64
#: Chunks that are compressed at once: their state stays in the processor's caches.
_CHUNKS = 4096
#: Bytes of a strip, and strips whose CRC is computed at once.
_STRIP_BYTES, _STRIPS = 512, 4096
#: CRC-32C's polynomial (Castagnoli), reflected.
_POLYNOMIAL = 0x82F63B78

Bytes = Union[bytes, memoryview, np.ndarray]


def blake3_hex(content: Bytes) -> str:
    """BLAKE3 of some bytes, as 64 hexadecimal digits. An array is hashed as it is in memory."""
    data = np.frombuffer(np.ascontiguousarray(content) if isinstance(content, np.ndarray) else content, np.uint8)
    # The last chunk may be cut off, and is a node of its own.
    whole = max(0, (len(data) - 1) // _CHUNK_BYTES)
    words = data[: whole * _CHUNK_BYTES].view("<u4").reshape(whole, 16, 16)
    nodes = [_chunks(words[begin : begin + _CHUNKS], begin) for begin in range(0, whole, _CHUNKS)]
    last = _last_chunk(data[whole * _CHUNK_BYTES :].tobytes(), whole)
    if not nodes:
        return last.astype("<u4").tobytes().hex()
    level = np.concatenate([*nodes, last], axis=1)
    while level.shape[1] > 1:
        pairs = level.shape[1] // 2
        blocks = np.concatenate([level[:, 0 : 2 * pairs : 2], level[:, 1 : 2 * pairs : 2]])
        flags = _PARENT | (_ROOT if level.shape[1] == 2 else 0)
        parents = _compress(np.repeat(_INITIAL, pairs, axis=1), blocks, np.zeros(pairs, np.uint64), _BLOCK_BYTES, flags)
        level = np.concatenate([parents, level[:, 2 * pairs :]], axis=1)
    return level.astype("<u4").tobytes().hex()


def _chunks(words: np.ndarray, first: int) -> np.ndarray:
    """Chaining values ``[8, chunks]`` of whole chunks ``[chunks, blocks, 16]``, of which there are others after them."""
    numbers = np.arange(first, first + len(words), dtype=np.uint64)
    values = np.repeat(_INITIAL, len(words), axis=1)
    for block in range(16):
        flags = (_CHUNK_START if block == 0 else 0) | (_CHUNK_END if block == 15 else 0)
        values = _compress(values, np.ascontiguousarray(words[:, block].T), numbers, _BLOCK_BYTES, flags)
    return values


def _last_chunk(content: bytes, number: int) -> np.ndarray:
    """Chaining value ``[8, 1]`` of the last chunk, which is the root if it is the only one."""
    values = _INITIAL
    starts = range(0, max(1, len(content)), _BLOCK_BYTES)
    for start in starts:
        block = content[start : start + _BLOCK_BYTES]
        flags = (_CHUNK_START if start == 0 else 0) | (_CHUNK_END | (0 if number else _ROOT) if start == starts[-1] else 0)
        words = np.frombuffer(block.ljust(_BLOCK_BYTES, b"\0"), "<u4").reshape(16, 1)
        values = _compress(values, words, np.array([number], np.uint64), len(block), flags)
    return values


def _compress(values: np.ndarray, block: np.ndarray, numbers: np.ndarray, length: int, flags: int) -> np.ndarray:
    """The compression of blocks ``[16, n]`` into chaining values ``[8, n]``."""
    rows = np.repeat(_INITIAL[:4], values.shape[1], axis=1)
    last = np.empty_like(rows)
    last[0], last[1], last[2], last[3] = numbers & np.uint64(0xFFFFFFFF), numbers >> np.uint64(32), length, flags
    a, b, c, d = values[:4].astype(np.uint32), values[4:].astype(np.uint32), rows, last
    block = block.astype(np.uint32)
    for turn in range(7):
        a, b, c, d = _mixed(a, b, c, d, block[0:8:2], block[1:8:2])
        b, c, d = np.roll(b, -1, 0), np.roll(c, -2, 0), np.roll(d, -3, 0)
        a, b, c, d = _mixed(a, b, c, d, block[8:16:2], block[9:16:2])
        b, c, d = np.roll(b, 1, 0), np.roll(c, 2, 0), np.roll(d, 3, 0)
        if turn < 6:
            block = block[_PERMUTATION]
    return np.concatenate([a ^ c, b ^ d])


def _mixed(a: np.ndarray, b: np.ndarray, c: np.ndarray, d: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple:
    """The quarter-round on four columns at once, each ``[4, n]``."""
    for words, after_d, after_b in ((first, 16, 12), (second, 8, 7)):
        a = a + b + words
        d = _rotated(d ^ a, after_d)
        c = c + d
        b = _rotated(b ^ c, after_b)
    return a, b, c, d


def _rotated(values: np.ndarray, bits: int) -> np.ndarray:
    return (values >> np.uint32(bits)) | (values << np.uint32(32 - bits))


def crc32c(content: Bytes) -> int:
    """CRC-32C of some bytes."""
    data = np.frombuffer(content, np.uint8)
    # Zeros before the data change no CRC that begins with 0, and one that begins with ones is that of data whose first bits are flipped.
    # The head, at the end of two strips, has all 4 bytes that are flipped; of shorter data the rest of the ones is left over.
    head = (len(data) - 4) % _STRIP_BYTES + 4 if len(data) > 4 else len(data)
    first = np.zeros(2 * _STRIP_BYTES, np.uint8)
    begin = len(first) - head
    first[begin:] = data[:head]
    first[begin : begin + 4] ^= np.uint8(255)
    rest = 0xFFFFFFFF >> 8 * min(4, len(data))
    strips = data[head:].view("<u4").reshape(-1, _STRIP_BYTES // 4)
    remainders = [_of_strips(first.view("<u4").reshape(2, -1))]
    remainders += [_of_strips(strips[begin : begin + _STRIPS]) for begin in range(0, len(strips), _STRIPS)]
    level = np.concatenate(remainders)
    level = np.concatenate([np.zeros((1 << (len(level) - 1).bit_length()) - len(level), np.uint32), level])
    shift = _past_a_strip()
    while len(level) > 1:
        level = _applied(shift, level[::2]) ^ level[1::2]
        shift = _applied(shift, shift)
    return int(level[0]) ^ rest ^ 0xFFFFFFFF


@functools.lru_cache(None)
def _tables() -> tuple:
    """Remainders of the low and the high half of a word, followed by the rest of the word, ``[65536]`` each."""
    table = np.arange(1 << 16, dtype=np.uint32)
    halves = []
    for _ in range(2):
        for _ in range(16):
            table = np.where(table & np.uint32(1), (table >> np.uint32(1)) ^ np.uint32(_POLYNOMIAL), table >> np.uint32(1))
        halves.append(table)
    return halves[1], halves[0]


def _of_strips(words: np.ndarray) -> np.ndarray:
    """Remainders ``[strips]`` of strips ``[strips, words]``, each on its own."""
    low, high = _tables()
    state = np.zeros(len(words), np.uint32)
    for column in np.ascontiguousarray(words.T):
        state = state ^ column
        state = low[state & np.uint32(0xFFFF)] ^ high[state >> np.uint32(16)]
    return state


@functools.lru_cache(None)
def _past_a_strip() -> np.ndarray:
    """Remainder of each single bit after a strip of zeros, ``[32]``."""
    low, high = _tables()
    state = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for _ in range(_STRIP_BYTES // 4):
        state = low[state & np.uint32(0xFFFF)] ^ high[state >> np.uint32(16)]
    return state


def _applied(matrix: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A linear map of bits, ``[32]``, on values ``[n]``."""
    result = np.zeros_like(values)
    for bit in range(32):
        result ^= np.where((values >> np.uint32(bit)) & np.uint32(1), matrix[bit], np.uint32(0))
    return result
