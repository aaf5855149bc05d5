"""What the programs of `scripts/bench space` have in common: tuned as kdgat is, and a step for each line of the input."""

import ctypes
import resource
import sys
import time

import torch

# glibc's mallopt: thresholds above which freed memory is returned, and blocks are mapped anew.
TRIM_THRESHOLD, MMAP_THRESHOLD, LARGEST = -1, -3, 2**31 - 1


def tune(threads):
    """Uses so many threads, and keeps freed memory, as kdgat's allocator does."""
    libc = ctypes.CDLL(None)
    for parameter in (TRIM_THRESHOLD, MMAP_THRESHOLD):
        libc.mallopt(parameter, LARGEST)
    torch.set_num_threads(threads)


def answer(step, *more):
    """Makes a step for each line of the input, and prints its milliseconds, the peak of memory above that before the first step in MiB, and `more`."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in sys.stdin:
        start = time.perf_counter()
        step()
        seconds = time.perf_counter() - start
        print(1e3 * seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, *more, flush=True)
