"""The device that a teacher computes on: memory, a stream of copies, and the order between both streams.

Copies of weights are queued on a stream of their own; forward passes on the stream of the training loop. Rules of order, none of which
makes the host wait:

1. Write after read: a copy into memory waits for the last reader of that memory (:meth:`Device.copies_wait`).
2. Read after write: a forward pass waits for the copy of its weights (:meth:`Device.compute_waits`).
3. Use after forward: targets are computed on the training loop's own stream.
4. Return to the last user: memory goes back to the pool of the training loop's stream after both streams are done with it: the computing
   stream waits for every copy, also for one whose weights were not read.
"""

from __future__ import annotations

import contextlib
from typing import Any, ContextManager, Optional, Protocol

import torch

Event = Any


class Device(Protocol):
    """Operations of a device. Simulated by the tests."""

    #: torch's device.
    torch_device: torch.device
    #: True if weights in host memory cannot be read by the device's kernels.
    is_separate: bool

    def page_locked(self, size: int) -> torch.Tensor:
        """Host memory, ``uint8[size]``, page-locked if the device copies from it."""

    def allocate(self, size: int) -> torch.Tensor:
        """Memory of the device, ``uint8[size]``, in the pool of the computing stream."""

    def free(self, block: torch.Tensor) -> None:
        """Says that a block will not be used again. The caller drops its references."""

    def copy(self, block: torch.Tensor, source: torch.Tensor) -> None:
        """Queues a copy from host memory on the stream of copies."""

    def reads(self, block: torch.Tensor) -> None:
        """Says that kernels queued next read a block."""

    def mark_compute(self) -> Event:
        """An event after all kernels queued so far."""

    def mark_copies(self) -> Event:
        """An event after all copies queued so far."""

    def copies_wait(self, event: Event) -> None:
        """Makes later copies wait for kernels before an event."""

    def compute_waits(self, event: Event) -> None:
        """Makes later kernels wait for copies before an event."""

    def stream(self) -> ContextManager[Any]:
        """Makes the training loop's stream, at the time of the call, the current one of another thread."""

    def synchronize(self) -> None:
        """Waits for all kernels and copies, without the GIL."""

    def free_bytes(self) -> Optional[int]:
        """Bytes that can be allocated now; ``None`` for the host."""

    def used_bytes(self) -> int:
        """Bytes in use now; 0 for the host."""

    def peak_bytes(self, start_again: bool = False) -> int:
        """Most bytes in use since the last start; 0 for the host."""

    def give_back(self) -> None:
        """Gives cached memory back after a failed allocation."""


class Host:
    """The CPU. Copies are done when they are queued."""

    torch_device = torch.device("cpu")
    is_separate = False

    def page_locked(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def allocate(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    def free(self, block: torch.Tensor) -> None:
        pass

    def copy(self, block: torch.Tensor, source: torch.Tensor) -> None:
        block.copy_(source)

    def reads(self, block: torch.Tensor) -> None:
        pass

    def mark_compute(self) -> Event:
        return None

    def mark_copies(self) -> Event:
        return None

    def copies_wait(self, event: Event) -> None:
        pass

    def compute_waits(self, event: Event) -> None:
        pass

    def stream(self) -> ContextManager[Any]:
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        pass

    def free_bytes(self) -> Optional[int]:
        return None

    def used_bytes(self) -> int:
        return 0

    def peak_bytes(self, start_again: bool = False) -> int:
        return 0

    def give_back(self) -> None:
        pass


class Cuda:
    """An NVIDIA GPU (or an AMD one, under torch's name)."""

    is_separate = True

    def __init__(self, device: torch.device) -> None:
        index = torch.cuda.current_device() if device.index is None else device.index
        self.torch_device = torch.device("cuda", index)
        self._copies = torch.cuda.Stream(self.torch_device)
        self._pins = True

    def page_locked(self, size: int) -> torch.Tensor:
        if self._pins:
            try:
                return torch.empty(size, dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:
                self._pins = False
                print(f"teacher: weights are in pageable memory, whose copies are slower: {error}")
        return torch.empty(size, dtype=torch.uint8)

    def allocate(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.torch_device)

    def free(self, block: torch.Tensor) -> None:
        pass

    def copy(self, block: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._copies):
            block.copy_(source, non_blocking=True)

    def reads(self, block: torch.Tensor) -> None:
        pass

    def mark_compute(self) -> Event:
        return torch.cuda.current_stream(self.torch_device).record_event()

    def mark_copies(self) -> Event:
        return self._copies.record_event()

    def copies_wait(self, event: Event) -> None:
        self._copies.wait_event(event)

    def compute_waits(self, event: Event) -> None:
        torch.cuda.current_stream(self.torch_device).wait_event(event)

    def stream(self) -> ContextManager[Any]:
        return torch.cuda.stream(torch.cuda.current_stream(self.torch_device))

    def synchronize(self) -> None:
        torch.cuda.current_stream(self.torch_device).synchronize()

    def free_bytes(self) -> Optional[int]:
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        cached = torch.cuda.memory_reserved(self.torch_device) - torch.cuda.memory_allocated(self.torch_device)
        return free + cached

    def used_bytes(self) -> int:
        return torch.cuda.memory_allocated(self.torch_device)

    def peak_bytes(self, start_again: bool = False) -> int:
        peak = torch.cuda.max_memory_allocated(self.torch_device)
        if start_again:
            torch.cuda.reset_peak_memory_stats(self.torch_device)
        return peak

    def give_back(self) -> None:
        torch.cuda.empty_cache()


def device_of(device: Optional[Any], module: torch.nn.Module) -> Device:
    """The device that was named, or else that of the module's weights if it is a GPU, or a GPU if there is one, or the CPU."""
    if device is not None and not isinstance(device, (str, int, torch.device)):
        return device
    if device is None:
        placed = next((tensor.device for tensor in module.parameters() if tensor.device.type == "cuda"), None)
        device = placed or ("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(device)
    if device.type == "cpu":
        return Host()
    if device.type != "cuda":
        raise ValueError(f"device '{device}': expected 'cpu' or 'cuda'")
    if not torch.cuda.is_available():
        raise ValueError(f"device '{device}': torch finds no GPU (torch.cuda.is_available() is false); use device='cpu'")
    return Cuda(device)
