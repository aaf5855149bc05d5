"""A teacher around any PyTorch module: on the device only while it computes, and computed once for each item.

    teacher = kdgat.Teacher(big_model, outputs=lambda out: out.logits, cache="targets/", top_k=64)
    for batch, targets in teacher.distill(loader, burst=8):
        loss = kdgat.losses.kl(student(batch).logits, targets, temperature=2.0)

The loop of :meth:`Teacher.distill`:

    for burst of the loader's batches:
        items of the burst that are not cached: one visit of the teacher, on a thread of its own
        for batch of the burst:
            yield batch, targets from the visit and from the cache

The training loop waits during a visit, so the student's activations and the teacher's are never in memory together. The thread writes to
the cache while the student takes its steps. It ends with each visit: idle threads of its OpenMP team would keep the student's cores busy.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
import warnings
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Union

import numpy
import torch

from kdgat import randomness
from kdgat.device import Device, device_of
from kdgat.items import BatchError, Items, Names, Reading, Source
from kdgat.planner import Measured, choose
from kdgat.residency import STRATEGIES, Weights, find_blocks
from kdgat.rows import TEMPERATURES, BatchTargets, Encoding
from kdgat.selection import Selection, module_digest
from kdgat.store import Damaged, FolderStore, MemoryStore
from kdgat.summary import Summary
from kdgat.visit import Visit, Work

#: Hit rate below which the inputs look augmented.
_FEW_HITS = 0.01


class Teacher:
    """A frozen module whose outputs a student learns from.

    :param module: any ``torch.nn.Module``. It is used in evaluation mode and without gradients, and given back as it was found.
    :param outputs: what of the module's output is kept: a function of it, a name (attribute or key), or names. A function returns a tensor or a
        dictionary of tensors, ``[items, width]``, ``[items, tokens, width]``, or ``[nodes, width]`` of graphs. Default: the output itself.
    :param cache: a folder, ``True`` for a cache in memory, or ``None``.
    :param top_k: keep only the k largest logits of each row and the mass of the others (of the output ``logits``, or of the only one).
    :param temperatures: temperatures at which top-k targets keep that mass.
    :param precision: ``'f32'`` or ``'f16'``, of outputs without top-k.
    :param strategy: ``'resident'``, ``'forward'``, ``'layer'`` or ``'auto'``: where the weights are.
    :param blocks: for ``'layer'``: name of the module's list of blocks, or names of blocks. Default: the list with most weights.
    :param slots: for ``'layer'``: blocks that are on the device together.
    :param inputs: names (keys, attributes of graphs, positions of a tuple) of what the module is given, and of what the cache is keyed by. Default: all.
    :param ids: a name or a function of the batch: whole numbers or texts that identify the items, instead of a digest of their inputs.
    :param mask: a name or a function of the batch: ``[items, tokens]``, true where a token counts (``'attention_mask'``).
    :param call: calls the module, ``call(module, batch)``. Default: ``module(**batch)``, ``module(*batch)`` or ``module(batch)``.
    :param device: where the module computes. Default: a GPU if there is one.
    :param log: prints a line.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        outputs: Union[None, str, Sequence[str], Callable[[Any], Any]] = None,
        *,
        cache: Union[None, bool, str, os.PathLike] = None,
        top_k: Optional[int] = None,
        temperatures: Sequence[float] = TEMPERATURES,
        precision: str = "f32",
        strategy: str = "auto",
        blocks: Union[None, str, Sequence[str]] = None,
        slots: int = 2,
        inputs: Names = None,
        ids: Source = None,
        mask: Source = None,
        call: Optional[Callable[[torch.nn.Module, Any], Any]] = None,
        device: Any = None,
        log: Callable[[str], None] = print,
    ) -> None:
        if strategy not in (*STRATEGIES, "auto"):
            raise ValueError(f"strategy '{strategy}': expected one of {', '.join((*STRATEGIES, 'auto'))}")
        if slots < 1 or (top_k is not None and top_k < 1):
            raise ValueError(f"slots={slots}, top_k={top_k}: expected 1 or more")
        if precision not in ("f32", "f16"):
            raise ValueError(f"precision '{precision}': expected 'f32' or 'f16'")
        if isinstance(inputs, (str, int)):
            inputs = [inputs]
        self.module, self._log = module, log
        self._reading = Reading(None if inputs is None else list(inputs), ids, mask, whole=call is not None)
        self._selection = Selection(outputs, top_k, tuple(float(value) for value in temperatures), precision)
        self._call = call or _call
        self.device: Device = device_of(device, module)
        found = find_blocks(module, blocks) if not isinstance(module, torch.jit.ScriptModule) else []
        if strategy == "layer" and not found:
            raise ValueError(
                "strategy 'layer': the module has no list of blocks with most of its weights; name them with blocks=…, or use 'forward'"
            )
        self.weights = Weights(module, self.device, found, slots)
        self._is_auto, self.strategy = strategy == "auto", "forward" if strategy == "auto" else strategy
        self._measured: Optional[Measured] = None
        self._has_measured = False
        self.store = self._open(cache)
        # Records of other processes, or of an earlier run, are compared with the module once.
        self._trusts_store = self.store is None or len(self.store) == 0
        self._versions = _versions(module)
        self._is_checked, self._divides = False, True
        self._visit: Optional[Visit] = None
        self._lock, self._process = threading.RLock(), os.getpid()
        self._counts = Summary()
        self._epochs, self._burst_ended = 0, 0.0
        self._has_warned, self._is_closed = set(), False
        if self._is_auto and not self.device.is_separate:
            self._choose(Measured(self.weights.bytes, None, None, None, 0, 0.0, 0.0, 0.0))

    def _open(self, cache: Union[None, bool, str, os.PathLike]) -> Union[None, MemoryStore, FolderStore]:
        if cache is None or cache is False:
            return None
        if cache is True:
            return MemoryStore()
        names = self._reading.inputs
        key = {
            "weights": module_digest(self.module),
            "module": type(self.module).__qualname__,
            "keys": "ids" if self._reading.ids is not None else "contents",
            "inputs": "all" if names is None else [str(name) for name in names],
            "mask": self._reading.mask is not None,
            **self._selection.described(),
        }
        return FolderStore(cache, key)

    def distill(self, loader: Iterable[Any], *, burst: int = 8) -> Iterator[Tuple[Any, Any]]:
        """Yields each batch of a loader with the teacher's targets: :class:`kdgat.rows.BatchTargets`, or a dictionary of them if there are
        several outputs. The batches of a burst, for which the teacher is called once, are in memory together.
        """
        if burst < 1:
            raise ValueError(f"burst={burst}: expected 1 or more")
        started = dataclasses.replace(self._counts)
        for batches in randomness.Bursts(loader, burst):
            for batch, answer in zip(batches, self._serve(batches)):
                yield batch, self._targets(answer)
        self._epochs += 1
        self._say_if_few_hits(started)

    def targets(self, batch: Any) -> Any:
        """The targets of one batch, for loops of others."""
        [answer] = self._serve([batch])
        return self._targets(answer)

    def summary(self) -> Summary:
        """What the teacher did so far."""
        items = 0 if self.store is None else len(self.store)
        return dataclasses.replace(
            self._counts, strategy=self.strategy, copied_bytes=self.weights.copied_bytes, cached_items=items, warning=self._warning()
        )

    def close(self) -> None:
        """Waits for the thread, syncs the cache, and puts the module back where it was found."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            try:
                self._finish_visit()
            finally:
                self.weights.restore()
                if self.store is not None:
                    self.store.close()
                    self._say_warning()

    def __enter__(self) -> "Teacher":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a Teacher cannot be sent to another process; make one there, with the same folder as its cache")

    # ---- a burst ----

    def _serve(self, batches: Sequence[Any]) -> List["_Answer"]:
        """Computes what is not cached of a burst."""
        if self._is_closed:
            raise RuntimeError("the teacher is closed")
        if os.getpid() != self._process:
            raise RuntimeError("this Teacher belongs to another process; make one here, with the same folder as its cache")
        with self._lock:
            self._finish_visit()
            self._plan()
            answers = [_Answer(self._reading.items(batch)) for batch in batches]
            if self.store is not None:
                self._look_up(answers)
            works = [answer.work for answer in answers if answer.work is not None]
            if works:
                self._run(works)
            return answers

    def _look_up(self, answers: List["_Answer"]) -> None:
        """Finds which items of each batch are cached, here or by another process meanwhile."""
        keys = [answer.items.keys() for answer in answers]
        if not all(self.store.find(each).all() for each in keys):
            self.store.refresh()
        for answer, each in zip(answers, keys):
            answer.keys = each
            found = self.store.find(each)
            if found.any() and not self._trusts_store:
                self._compare_with_store(answer, numpy.flatnonzero(found)[:2])
            answer.missing = numpy.flatnonzero(~found)
            if len(answer.missing) == 0:
                answer.work = None
            elif found.any() and self._divides:
                answer.divide(answer.missing)

    def _run(self, works: List[Work]) -> None:
        """Has the teacher compute, and waits."""
        self._check_versions()
        self._visit = Visit(self, works)
        before = randomness.state()
        started = time.perf_counter()
        try:
            self._visit.run()
        finally:
            # Whatever the module draws, the student's random numbers are its own.
            randomness.restore(before)
            self._counts.wait_seconds += time.perf_counter() - started
            self._burst_ended = time.perf_counter()
        self._counts.visits += 1
        self._counts.visit_seconds += self._visit.seconds

    def _finish_visit(self) -> None:
        """Waits until the thread has written the last burst to the cache, and says what went wrong with that."""
        visit, self._visit = self._visit, None
        if visit is not None:
            visit.join()
        self._say_warning()

    def _targets(self, answer: "_Answer") -> Any:
        """Targets of a batch from its visit and from the cache."""
        computed = answer.items.count if answer.missing is None else len(answer.missing)
        for _ in range(8):
            try:
                found = self._gather(answer)
                break
            except Damaged as damaged:
                # Their records are gone from the index, so they are missing now.
                self._counts.damaged_records += len(damaged.positions)
                computed += len(damaged.positions)
                [answer] = self._serve([answer.items.batch])
        else:
            raise OSError(f"records of the cache {getattr(self.store, 'folder', '')} are damaged again and again; check the disk")
        self._counts.computed_items += computed
        self._counts.cached_hits += answer.items.count - computed
        return found if len(found) > 1 else next(iter(found.values()))

    def _gather(self, answer: "_Answer") -> Dict[str, BatchTargets]:
        work, items, device = answer.work, answer.items, self.device.torch_device
        if work is not None and work.tensors is not None:
            return {
                name: BatchTargets(_shaped(rows.values.float(), items, rows.counts, rows.many), _mask(items, rows.many, device))
                for name, rows in work.tensors.items()
            }
        encodings = self._encodings()
        if work is None:
            arrays, counts = self.store.read(answer.keys)
        elif answer.is_whole:
            arrays, counts = work.arrays, work.counts
        else:
            arrays, counts = self._merged(answer, encodings)
        found = {}
        for encoding, rows, numbers in zip(encodings, arrays, counts):
            leading = _leading(items, numbers, encoding.many)
            found[encoding.name] = encoding.decode(rows, leading, device, _mask(items, encoding.many, device))
        return found

    def _merged(self, answer: "_Answer", encodings: List[Encoding]) -> Tuple[List[numpy.ndarray], List[numpy.ndarray]]:
        """Rows of items of which some were computed and the others are cached."""
        is_cached = numpy.ones(answer.items.count, bool)
        is_cached[answer.missing] = False
        read, read_counts = self.store.read(answer.keys[is_cached])
        arrays, counts = [], []
        for column in range(len(encodings)):
            parts: List[numpy.ndarray] = [None] * answer.items.count  # type: ignore[list-item]
            sources = [
                (numpy.flatnonzero(is_cached), read[column], read_counts[column]),
                (answer.missing, answer.work.arrays[column], answer.work.counts[column]),
            ]
            for places, rows, numbers in sources:
                ends = numpy.cumsum(numbers)
                for place, begin, end in zip(places, ends - numbers, ends):
                    parts[place] = rows[begin:end]
            arrays.append(numpy.concatenate(parts))
            counts.append(numpy.array([len(part) for part in parts], numpy.int64))
        return arrays, counts

    def _encodings(self) -> List[Encoding]:
        known = self._selection.encodings if self.store is None else self.store.encodings
        return known or []

    # ---- checks, plan, reports ----

    def _compare_with_store(self, answer: "_Answer", numbers: numpy.ndarray) -> None:
        """Computes some cached items again, once, and refuses a cache that has other rows for them."""
        self._trusts_store = True
        part = answer.items.select(numbers.tolist()) if self._divides else None
        keys = answer.keys if part is None else answer.keys[numbers]
        if not self.store.find(keys).all():
            return
        work = Work(part or answer.items)
        self._run([work])
        try:
            arrays, counts = self.store.read(keys)
        except Damaged:
            return
        problem = self._selection.difference(self._encodings(), (arrays, counts), (work.arrays, work.counts), work.dtype)
        if problem:
            raise ValueError(
                f"the cache {self.store.folder} has other targets than the teacher computes: {problem}. Was it filled with another "
                "`outputs`, `call`, `mask`, "
                "or other IDs? Name another folder, or remove this one"
            )

    def _check_versions(self) -> None:
        if self.store is not None and _versions(self.module) != self._versions:
            raise RuntimeError(
                "the teacher's weights have changed since its cache was opened; freeze them, or use cache=None for a teacher that learns"
            )

    def _plan(self) -> None:
        """Chooses the strategy of ``auto`` after the first burst's steps."""
        measured, self._measured = self._measured, None
        if measured is None or not self._is_auto:
            return
        free, used, peak = self.device.free_bytes(), self.device.used_bytes(), self.device.peak_bytes()
        at_peak = None if free is None else max(0, free - (peak - used))
        self._choose(dataclasses.replace(measured, free=free, free_at_peak=at_peak, burst_seconds=time.perf_counter() - self._burst_ended))

    def _choose(self, measured: Measured) -> None:
        self.strategy, reason = choose(measured)
        self._log(f"teacher: auto chose {self.strategy}: {reason}")

    def _warning(self) -> Optional[str]:
        return None if self.store is None else self.store.warning

    def _say_warning(self) -> None:
        self._warn(self._warning())

    def _warn(self, text: Optional[str]) -> None:
        if text is not None and text not in self._has_warned:
            self._has_warned.add(text)
            warnings.warn(text, RuntimeWarning, stacklevel=4)

    def _say_if_few_hits(self, before: Summary) -> None:
        """Says that a cache is of no use for inputs that are new in every epoch."""
        hits = self._counts.cached_hits - before.cached_hits
        items = hits + self._counts.computed_items - before.computed_items
        if self.store is not None and self._epochs > 1 and items and hits < _FEW_HITS * items:
            self._counts.few_hits = True
            self._warn(
                f"{hits} of {items} items of this epoch were cached: their inputs are new in every epoch, as with random "
                "augmentation. Augment after the "
                "teacher, name IDs (ids=…) if the targets of an item may be those of another view of it, or use cache=None"
            )


class _Answer:
    """A batch: what is cached of it, and what a visit computes."""

    def __init__(self, items: Items) -> None:
        self.items = items
        self.keys = None
        #: Numbers of the items that are not cached; ``None`` without a cache.
        self.missing: Optional[numpy.ndarray] = None
        self.work: Optional[Work] = Work(items)
        self.work.answer = self

    @property
    def is_whole(self) -> bool:
        """True if the visit computes all items of the batch."""
        return self.work is not None and self.work.items is self.items

    def divide(self, numbers: numpy.ndarray) -> None:
        """Lets the visit compute some items alone, if the batch can be divided."""
        part = self.items.select(numbers.tolist())
        if part is not None:
            self.work.items = part


def _call(module: torch.nn.Module, batch: Any) -> Any:
    if isinstance(batch, dict):
        return module(**batch)
    return module(*batch) if isinstance(batch, (tuple, list)) else module(batch)


def _leading(items: Items, counts: numpy.ndarray, many: bool) -> Tuple[int, ...]:
    """Shape before a row's. Raises :class:`BatchError` if the rows of an item are not those of the batch."""
    total = int(counts.sum())
    if not many:
        return (items.count,)
    expected = items.mask.sum(1).cpu().numpy() if items.mask is not None else getattr(items, "nodes", None)
    if expected is not None:
        wrong = numpy.flatnonzero(expected != counts)
        if len(wrong):
            item = int(wrong[0])
            raise BatchError(
                f"item {item} has {counts[item]} rows in the cache and {expected[item]} in the batch; do IDs name the same items as before?"
            )
        return (total,)
    if len(counts) and (counts != counts[0]).any():
        raise BatchError(
            f"items of {counts.min()} to {counts.max()} tokens in one batch; name the mask of those that count (mask='attention_mask')"
        )
    return (items.count, int(counts[0]) if len(counts) else 0)


def _shaped(values: torch.Tensor, items: Items, counts: numpy.ndarray, many: bool) -> torch.Tensor:
    return values.reshape(*_leading(items, counts, many), *values.shape[1:])


def _mask(items: Items, many: bool, device: torch.device) -> Optional[torch.Tensor]:
    return items.mask.to(device) if many and items.mask is not None else None


def _versions(module: torch.nn.Module) -> int:
    """A number that grows with each change of a weight in place."""
    return sum(tensor._version for tensor in [*module.parameters(), *module.buffers()] if not tensor.is_inference())
