"""Order of an epoch's graphs: that of the program, bit by bit, for the same seed and epoch.

Every decision of the program is a pure function of the seed, its purpose, the epoch and a number, mixed by SplitMix64 (Steele et al. 2014).
`crates/kdgat-base/src/random.rs` and `crates/kdgat-graph/src/shuffle.rs` have the same functions, and a test the same golden orders.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np

#: 2^64 divided by the golden ratio.
GOLDEN = np.uint64(0x9E37_79B9_7F4A_7C15)
_FIRST, _SECOND = np.uint64(0xBF58_476D_1CE4_E5B9), np.uint64(0x94D0_49BB_1331_11EB)
_LOW = np.uint64((1 << 32) - 1)
#: Purposes of decisions.
SHUFFLE, NEIGHBOURS = 1, 10


def finalize(bits: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 for u64 values of any shape, in their memory."""
    shifted = bits >> np.uint64(30)
    bits ^= shifted
    bits *= _FIRST
    np.right_shift(bits, np.uint64(27), out=shifted)
    bits ^= shifted
    bits *= _SECOND
    np.right_shift(bits, np.uint64(31), out=shifted)
    bits ^= shifted
    return bits


def mix(values: np.ndarray) -> np.ndarray:
    """Mixes u64 values of any shape."""
    return finalize(values + GOLDEN)


def check_word(name: str, value: int) -> None:
    """Raises ValueError for a seed or an epoch (``name``) that is no whole number from 0 to 2^64 - 1."""
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{name}={value}: expected a whole number from 0 to 2^64 - 1")


def random_bits(seed: int, purpose: int, epoch: int, index: np.ndarray) -> np.ndarray:
    """The 64 random bits of each decision of a purpose, u64 ``[n]``, for the numbers ``index`` ``[n]``.

    Raises ValueError for a seed or an epoch that is no whole number from 0 to 2^64 - 1.
    """
    key = np.zeros(1, np.uint64)
    for name, value in (("seed", seed), ("purpose", purpose), ("epoch", epoch)):
        check_word(name, value)
        key = mix(key ^ np.uint64(value))
    return mix(key ^ index.astype(np.uint64))


def below(bits: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """Random bits as numbers below ``bound``, u64 of at most 2^32: the high half of their product."""
    low = bits & _LOW
    low *= bound
    low >>= np.uint64(32)
    high = bits >> np.uint64(32)
    high *= bound
    high += low
    high >>= np.uint64(32)
    return high


def shuffled(items: Sequence, seed: int, epoch: int) -> list:
    """The items in random order (Fisher–Yates)."""
    order = list(items)
    if len(order) > 1 << 32:
        raise ValueError(f"{len(order)} items to shuffle; expected at most 2^32")
    last = np.arange(len(order) - 1, 0, -1, dtype=np.uint64)
    chosen = below(random_bits(seed, SHUFFLE, epoch, last), last + np.uint64(1))
    for at, other in zip(range(len(order) - 1, 0, -1), chosen.tolist()):
        order[at], order[other] = order[other], order[at]
    return order


def epoch_order(graphs: np.ndarray, seed: int, epoch: int, block: int = 0, buffer: int = 16_384) -> np.ndarray:
    """The graphs ``[n]`` in the order of an epoch, int64.

    ``block``: number of adjacent graphs that are read together (``--shuffle-block``), 0 to shuffle all graphs at once; ``buffer``: number of
    graphs of several blocks that are shuffled with each other (``--shuffle-buffer``).
    """
    if not block:
        return np.array(shuffled(graphs.tolist(), seed, epoch), np.int64)
    ascending = np.sort(graphs)
    blocks = shuffled([ascending[begin : begin + block] for begin in range(0, len(ascending), block)], seed, epoch)
    order = np.concatenate(blocks).tolist() if blocks else []
    step = max(buffer, block)
    buffers = [order[begin : begin + step] for begin in range(0, len(order), step)]
    # Another seed for each buffer, so that buffers of the same size have different orders.
    seeds = random_bits(seed, SHUFFLE, epoch, np.arange(len(buffers))).tolist()
    return np.array([graph for part, key in zip(buffers, seeds) for graph in shuffled(part, key, epoch)], np.int64)
