"""A device in software: it counts bytes, runs copies late, and faults where a rule of order is left out.

Kernels run when they are called, as torch's on the CPU. Copies are queued, and run when a kernel has to wait for them: a kernel that does
not wait reads garbage, and :meth:`Simulated.reads` faults. A copy into memory that an earlier kernel may still read faults, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Dict, List, Optional, Set

import torch


class OrderFault(Exception):
    """An operation that nothing orders after one that it depends on."""


@dataclasses.dataclass
class Block:
    size: int
    #: Position of the last kernel that reads it, and copies into it that have not run.
    last_read: int = 0
    pending: int = 0


class Simulated:
    """A device with ``limit`` bytes; ``without`` names operations that do nothing: rules that are left out."""

    is_separate = True
    torch_device = torch.device("cpu")

    def __init__(self, limit: Optional[int] = None, without: Set[str] = frozenset()) -> None:
        self.limit, self.without = limit, set(without)
        self.used = self.peak = self.copied_bytes = self.others = 0
        self.blocks: Dict[int, Block] = {}
        self.queue: List[Any] = []
        # The student's kernels came first.
        self.kernels = 1
        self.copies_done = self.copies_queued = 0
        #: Kernels before this position are over for the stream of copies.
        self.known_kernels = 0
        self.shortages = 0

    def page_locked(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def _grow(self, size: int) -> None:
        if self.limit is not None and self.used + size > self.limit:
            self.shortages += 1
            raise getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)(f"simulated: {self.used} + {size} of {self.limit} bytes")
        self.used += size
        self.peak = max(self.peak, self.used)

    def allocate(self, size: int) -> torch.Tensor:
        self._grow(size)
        # Floating-point numbers of these bytes are NaN.
        block = torch.full((size,), 0xFF, dtype=torch.uint8)
        # Memory of an earlier owner, which kernels queued until now may read.
        self.blocks[block.data_ptr()] = Block(size, last_read=self.kernels)
        return block

    def _block(self, tensor: torch.Tensor) -> Block:
        return self.blocks[tensor.untyped_storage().data_ptr()]

    def free(self, block: torch.Tensor) -> None:
        found = self._block(block)
        if found.pending:
            raise OrderFault("memory goes back to its pool before a copy into it has run")
        del self.blocks[block.untyped_storage().data_ptr()]
        self.used -= found.size

    @contextlib.contextmanager
    def others_memory(self, size: int):
        """Memory of the student's step."""
        self._grow(size)
        yield
        self.used -= size

    def copy(self, block: torch.Tensor, source: torch.Tensor) -> None:
        found = self._block(block)
        if found.last_read > self.known_kernels:
            raise OrderFault("a copy overwrites memory that a kernel may still read")
        found.pending += 1
        self.copies_queued += 1
        self.copied_bytes += source.numel()
        self.queue.append((found, block, source))

    def reads(self, block: torch.Tensor) -> None:
        found = self._block(block)
        self.kernels += 1
        found.last_read = self.kernels
        if found.pending:
            raise OrderFault("a kernel reads memory before a copy into it has run")

    def mark_compute(self) -> int:
        return self.kernels

    def mark_copies(self) -> int:
        return self.copies_queued

    def copies_wait(self, event: int) -> None:
        if "copies_wait" not in self.without:
            self.known_kernels = max(self.known_kernels, event)

    def compute_waits(self, event: int) -> None:
        if "compute_waits" in self.without:
            return
        while self.copies_done < event:
            found, block, source = self.queue.pop(0)
            block.copy_(source)
            found.pending -= 1
            self.copies_done += 1

    def stream(self) -> Any:
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        self.compute_waits(self.copies_queued)

    def free_bytes(self) -> Optional[int]:
        return None if self.limit is None else self.limit - self.used

    def used_bytes(self) -> int:
        return self.used

    def peak_bytes(self, start_again: bool = False) -> int:
        peak = self.peak
        if start_again:
            self.peak = self.used
        return peak

    def give_back(self) -> None:
        pass
