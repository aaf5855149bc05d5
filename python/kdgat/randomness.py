"""Random numbers of a training loop whose batches are prefetched.

A loop that takes a batch and then a step draws for the loader and for the student in turn. If a burst of batches is taken first, the
student would draw what the loader drew. So the loader draws from a stream of its own from its second batch on (the first one, with which
loaders seed themselves, draws as in a plain loop), and the student finds the state as if only the first batch had been taken: with the
same batches, its random numbers are those of the plain loop. Neither depends on the length of a burst.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any, Iterable, Iterator, List, Optional

import numpy
import torch


def state() -> Any:
    """States of the generators of torch (CPU), Python and NumPy."""
    return torch.get_rng_state(), random.getstate(), numpy.random.get_state()


def restore(found: Any) -> None:
    """Sets the generators to these states."""
    torch.set_rng_state(found[0])
    random.setstate(found[1])
    numpy.random.set_state(found[2])


def equal(one: Any, other: Any) -> bool:
    """True if no generator has drawn between two states."""
    arrays = one[2][0] == other[2][0] and numpy.array_equal(one[2][1], other[2][1]) and one[2][2:] == other[2][2:]
    return torch.equal(one[0], other[0]) and one[1] == other[1] and arrays


def _separate(found: Any) -> Any:
    """States that follow from others, for a stream of their own."""
    content = found[0].numpy().tobytes() + repr(found[1]).encode() + found[2][1].tobytes() + repr(found[2][2:]).encode()
    seed = int.from_bytes(hashlib.sha256(content).digest()[:8], "little")
    generator = torch.Generator()
    generator.manual_seed(seed)
    own, legacy = random.Random(seed), numpy.random.RandomState(seed % (1 << 32))
    return generator.get_state(), own.getstate(), legacy.get_state()


class Bursts:
    """Takes batches of a loader in bursts."""

    def __init__(self, loader: Iterable[Any], burst: int) -> None:
        # As in a plain loop: a DataLoader draws its seed here.
        self._batches = iter(loader)
        self._burst, self._is_first = burst, True
        self._own: Any = None
        self._error: Optional[Exception] = None

    def __iter__(self) -> Iterator[List[Any]]:
        ended = False
        while not ended:
            batches: List[Any] = []
            if self._is_first:
                self._is_first = False
                ended = not self._take(batches)
                self._own = _separate(state())
            if not ended and self._burst > len(batches):
                student = state()
                restore(self._own)
                try:
                    while not ended and len(batches) < self._burst:
                        ended = not self._take(batches)
                finally:
                    self._own = state()
                    restore(student)
            if batches:
                yield batches
        if self._error is not None:
            raise self._error

    def _take(self, batches: List[Any]) -> bool:
        """Appends the next batch; false if there is none. An error waits until the student has had the batches before it."""
        try:
            batches.append(next(self._batches))
        except StopIteration:
            return False
        except Exception as error:
            self._error = error
            return False
        return True
