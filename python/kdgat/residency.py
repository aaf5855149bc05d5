"""Where a teacher's weights are: in host memory, with copies on the device while it computes.

``resident`` copies them once. ``forward`` copies them for a visit, which serves a burst of batches, and frees them. ``layer`` has a ring of
slots, each as large as the largest block of the module's list of blocks (``transformer.h``): a block is copied into a slot while the one
before it computes, for all batches of the burst.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch

from kdgat.device import Device

#: Tensors begin at multiples of this, in bytes, as torch allocates them.
_ALIGNMENT = 256
STRATEGIES = ("resident", "forward", "layer")


class Group:
    """Tensors that are copied together: those of a block, or all that are in none."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = list(tensors)
        self._places: List[Tuple[int, int]] = []
        end = 0
        for tensor in self.tensors:
            size = tensor.numel() * tensor.element_size()
            self._places.append((end, size))
            end += -(-size // _ALIGNMENT) * _ALIGNMENT
        #: Bytes with alignment.
        self.size = end
        self.host: Optional[torch.Tensor] = None
        self._host_data: List[torch.Tensor] = []

    def take_over(self, device: Device) -> None:
        """Moves the tensors into one block of host memory, where they stay."""
        self.host = device.page_locked(self.size)
        for tensor, view in zip(self.tensors, self.views(self.host)):
            view.copy_(tensor.data)
            tensor.data = view
        self._host_data = [tensor.data for tensor in self.tensors]

    def views(self, block: torch.Tensor) -> List[torch.Tensor]:
        """The tensors as views of a block, with their strides."""
        found = []
        for tensor, (start, size) in zip(self.tensors, self._places):
            flat = block[start : start + size].view(tensor.dtype)
            found.append(
                flat.as_strided(tensor.size(), tensor.stride(), flat.storage_offset()) if tensor.numel() else flat.view(tensor.size())
            )
        return found

    def use(self, block: Optional[torch.Tensor]) -> None:
        """Makes the tensors those of a block of the device; ``None``: those in host memory."""
        for tensor, data in zip(self.tensors, self._host_data if block is None else self.views(block)):
            tensor.data = data


class Slot:
    """A block of the ring: memory, the group in it, and events."""

    def __init__(self, block: torch.Tensor, last_read: Any) -> None:
        self.block, self.last_read = block, last_read
        self.group: Optional[int] = None
        self.copied: Any = None


class Weights:
    """The weights of a module: parameters and buffers, once in host memory, and on the device during visits."""

    def __init__(self, module: torch.nn.Module, device: Device, blocks: Sequence[torch.nn.Module], slots: int) -> None:
        self.device, self._blocks, self._most_slots = device, list(blocks), slots
        tensors = _tensors(module)
        block_of: Dict[int, int] = {}
        for number, block in enumerate(self._blocks):
            for tensor in _tensors(block):
                # A tensor of two blocks is loaded for the whole visit.
                block_of[id(tensor)] = -1 if id(tensor) in block_of else number
        # A tensor that something else than its block has, such as tied weights.
        inside = {id(part) for block in self._blocks for part in block.modules()}
        for part in module.modules():
            if id(part) not in inside:
                for tensor in [*part._parameters.values(), *part._buffers.values()]:
                    if tensor is not None:
                        block_of.pop(id(tensor), None)
        chosen = lambda number: [tensor for tensor in tensors if block_of.get(id(tensor), -1) == number]
        self._groups = [Group(chosen(number)) for number in range(-1, len(self._blocks))]
        self._first_devices = [(tensor, tensor.device) for tensor in tensors]
        self._resident: List[Tuple[Group, torch.Tensor]] = []
        self._is_taken_over = False
        #: Bytes copied to the device, and, while ``measures`` is true, the seconds of copying groups.
        self.copied_bytes, self.copy_seconds, self.measures = 0, 0.0, False

    @property
    def bytes(self) -> int:
        """Bytes of all weights."""
        return sum(group.size for group in self._groups)

    @property
    def layer_bytes(self) -> int:
        """Bytes on the device during a visit of ``layer``."""
        return self._groups[0].size + self._slots * self._largest

    @property
    def has_blocks(self) -> bool:
        return bool(self._blocks)

    @property
    def _filled(self) -> List[Group]:
        """Groups that have weights."""
        return [group for group in self._groups if group.size]

    @property
    def _largest(self) -> int:
        return max((group.size for group in self._groups[1:]), default=0)

    @property
    def _slots(self) -> int:
        return min(self._most_slots, len(self._blocks))

    def take_over(self) -> None:
        """Moves the weights into host memory that the device copies from."""
        if self._is_taken_over:
            return
        for tensor, _ in self._first_devices:
            if type(tensor.data) is not torch.Tensor or tensor.layout is not torch.strided:
                raise ValueError(
                    f"the module has a weight of type {type(tensor.data).__name__}, which cannot be moved; use strategy='resident'"
                )
            if not _is_dense(tensor):
                tensor.data = tensor.data.contiguous()
        for group in self._groups:
            group.take_over(self.device)
        self._is_taken_over = True

    def _load(self, group: Group) -> torch.Tensor:
        """Copies a group to new memory of the device. Kernels queued next see it."""
        started = time.perf_counter()
        block = self.device.allocate(group.size)
        self.device.copies_wait(self.device.mark_compute())
        self.device.copy(block, group.host)
        self.device.compute_waits(self.device.mark_copies())
        self.copied_bytes += group.size
        if self.measures:
            self.device.synchronize()
            self.copy_seconds += time.perf_counter() - started
        return block

    @contextlib.contextmanager
    def on_device(self, strategy: str) -> Iterator[Optional["Ring"]]:
        """Has the weights on the device for a visit. Yields the ring of ``layer``."""
        if strategy == "resident":
            self._keep()
            yield None
            return
        self.take_over()
        self.drop()
        if strategy == "layer":
            with self._layer_by_layer() as ring:
                yield ring
            return
        loaded: List[Tuple[Group, torch.Tensor]] = []
        try:
            for group in self._filled:
                loaded.append((group, self._load(group)))
                group.use(loaded[-1][1])
                self.device.reads(loaded[-1][1])
            yield None
        finally:
            for group, block in loaded:
                group.use(None)
                self.device.free(block)

    def _keep(self) -> None:
        """Loads the weights for good. On a device that reads host memory they stay where they are."""
        is_there = not self._is_taken_over and all(tensor.device == self.device.torch_device for tensor, _ in self._first_devices)
        if not self.device.is_separate or (is_there and self.device.torch_device.type != "cpu"):
            return
        if not self._resident:
            self.take_over()
            for group in self._filled:
                self._resident.append((group, self._load(group)))
                group.use(self._resident[-1][1])
        for _, block in self._resident:
            self.device.reads(block)

    def drop(self) -> None:
        """Frees weights that were loaded for good."""
        while self._resident:
            group, block = self._resident.pop()
            group.use(None)
            self.device.free(block)

    @contextlib.contextmanager
    def _layer_by_layer(self) -> Iterator["Ring"]:
        outer = self._load(self._groups[0])
        self._groups[0].use(outer)
        self.device.reads(outer)
        slots: List[Slot] = []
        handles: List[Any] = []
        try:
            for _ in range(self._slots):
                slots.append(Slot(self.device.allocate(self._largest), self.device.mark_compute()))
            ring = Ring(self, slots, self._groups[1:])
            for number, block in enumerate(self._blocks):
                handles.append(block.register_forward_pre_hook(ring.enter(number)))
                handles.append(block.register_forward_hook(ring.leave(number), always_call=True))
            yield ring
        finally:
            for handle in handles:
                handle.remove()
            for slot in slots:
                if slot.copied is not None:
                    self.device.compute_waits(slot.copied)
                if slot.group is not None:
                    self._groups[1 + slot.group].use(None)
                self.device.free(slot.block)
            self._groups[0].use(None)
            self.device.free(outer)

    def restore(self) -> None:
        """Puts the weights where they were found."""
        self.drop()
        if self._is_taken_over:
            for tensor, device in self._first_devices:
                if tensor.device != device:
                    tensor.data = tensor.data.to(device)


class Ring:
    """Slots through which blocks pass, the next one copied while one computes."""

    def __init__(self, weights: Weights, slots: List[Slot], groups: List[Group]) -> None:
        self._weights, self._slots, self._groups = weights, slots, groups
        self._device = weights.device
        self._running: List[int] = []
        #: Lets the other batches of the burst reach the same block.
        self.turn: Callable[[], None] = lambda: None

    def _slot_of(self, number: int) -> Optional[Slot]:
        return next((slot for slot in self._slots if slot.group == number), None)

    def _fetch(self, number: int) -> Slot:
        """Queues the copy of a block into the slot that was read longest ago and that no running block uses."""
        slot = self._slot_of(number)
        if slot is None:
            slot = next((slot for slot in self._slots if slot.group not in self._running), None)
            if slot is None:
                raise RuntimeError(
                    f"blocks {self._running} run inside one another, and {len(self._slots)} slots are too few; use more slots"
                )
            self._slots.remove(slot)
            if slot.group is not None:
                self._groups[slot.group].use(None)
            if slot.last_read is not None:
                self._device.copies_wait(slot.last_read)
            self._device.copy(slot.block[: self._groups[number].size], self._groups[number].host)
            slot.group, slot.copied = number, self._device.mark_copies()
            self._weights.copied_bytes += self._groups[number].size
            self._slots.append(slot)
        return slot

    def enter(self, number: int) -> Callable[..., None]:
        """A hook before a block's forward pass."""

        def hook(module: torch.nn.Module, inputs: Any) -> None:
            self.turn()
            slot = self._fetch(number)
            self._running.append(number)
            self._device.compute_waits(slot.copied)
            self._groups[number].use(slot.block)
            self._device.reads(slot.block)
            if len(self._slots) > 1 and number + 1 < len(self._groups):
                self._fetch(number + 1)

        return hook

    def leave(self, number: int) -> Callable[..., None]:
        """A hook after a block's forward pass."""

        def hook(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            if number in self._running:
                self._running.remove(number)
            slot = self._slot_of(number)
            if slot is not None:
                slot.last_read = self._device.mark_compute()

        return hook


class Turns:
    """Runs several forward passes in threads of which one works at a time; they change at the borders of blocks."""

    def __init__(self, works: Sequence[Callable[[], None]]) -> None:
        self._works = list(works)
        self._may_go = [threading.Semaphore(0) for _ in works]
        self._alive = list(range(len(works)))
        self._now = 0
        self._errors: List[BaseException] = []
        self._is_done = threading.Event()

    def _pass_on(self, ends: bool = False) -> None:
        """Lets the next pass go on; nothing of this one may follow but waiting."""
        place = self._alive.index(self._now)
        following = self._alive[(place + 1) % len(self._alive)]
        if ends:
            self._alive.remove(self._now)
        self._now = following
        self._may_go[following].release()

    def turn(self) -> None:
        """Lets the next pass go on, and returns when it is this one's turn again."""
        number = self._now
        if len(self._alive) > 1:
            self._pass_on()
            self._may_go[number].acquire()
        if self._errors:
            raise _Stopped

    def _run(self, number: int) -> None:
        self._may_go[number].acquire()
        try:
            if not self._errors:
                self._works[number]()
        except _Stopped:
            pass
        except BaseException as error:
            self._errors.append(error)
        finally:
            if len(self._alive) > 1:
                self._pass_on(ends=True)
            else:
                self._is_done.set()

    def run(self) -> None:
        """Runs all of them. Raises the first error after all have ended."""
        threads = [threading.Thread(target=self._run, args=(number,), name=f"kdgat-pass-{number}") for number in range(len(self._works))]
        for thread in threads:
            thread.start()
        self._may_go[0].release()
        self._is_done.wait()
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]


class _Stopped(Exception):
    """Ends a pass after another one's error."""


def find_blocks(module: torch.nn.Module, named: Union[None, str, Sequence[str]]) -> List[torch.nn.Module]:
    """The blocks that are named (the name of a list of modules, or of each), or else the list of modules with the most weights, if its
    modules have more than half of all weights. Raises ``ValueError`` for a name that the module does not have.
    """
    modules = dict(module.named_modules())
    lists = {
        name: found for name, found in modules.items() if isinstance(found, (torch.nn.ModuleList, torch.nn.Sequential)) and len(found) > 1
    }
    if named is None:
        sizes = {name: sum(_size(part) for part in found) for name, found in lists.items()}
        largest = max(sizes, key=sizes.__getitem__, default=None)
        return list(lists[largest]) if largest is not None and 2 * sizes[largest] > _size(module) else []
    names = [named] if isinstance(named, str) else list(named)
    unknown = [name for name in names if name not in modules]
    if unknown:
        known = ", ".join(f"'{name}'" for name in list(lists)[:8]) or "none"
        raise ValueError(f"blocks: the module has no '{unknown[0]}'; its lists of modules: {known}")
    return list(modules[names[0]].children()) if len(names) == 1 and names[0] in lists else [modules[name] for name in names]


def _tensors(module: torch.nn.Module) -> List[torch.Tensor]:
    """Parameters and buffers, each once."""
    found = {id(tensor): tensor for tensor in [*module.parameters(), *module.buffers()]}
    return list(found.values())


def _size(module: torch.nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in _tensors(module))


def _is_dense(tensor: torch.Tensor) -> bool:
    """True if the tensor's numbers lie without gaps, in any order of dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.size()) if size > 1):
        if stride != expected:
            return False
        expected *= size
    return True
