"""A visit: the teacher computes a burst of batches on a thread, and then writes their rows to the cache.

The first visit computes its first batch twice, and half of its items alone, and refuses a module whose outputs differ.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional

import numpy
import torch

from kdgat.items import BatchError, Items, OutputRows
from kdgat.planner import Measured
from kdgat.residency import Turns

if TYPE_CHECKING:
    from kdgat.teacher import Teacher

_OutOfMemory = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)
# Longest time until Ctrl-C is noticed.
NOTICE_SECONDS = 0.2


class Work:
    """A batch to compute, and its rows."""

    def __init__(self, items: Items) -> None:
        self.items = items
        self.answer: Any = None
        #: Rows on the device, without a cache.
        self.tensors: Optional[Dict[str, OutputRows]] = None
        #: Encoded rows of each output, and the number of rows of each item.
        self.arrays: Optional[List[numpy.ndarray]] = None
        self.counts: Optional[List[numpy.ndarray]] = None
        #: Type of the module's outputs.
        self.dtype: Optional[torch.dtype] = None

    @property
    def is_done(self) -> bool:
        return self.arrays is not None or self.tensors is not None

    @property
    def keys(self) -> Optional[numpy.ndarray]:
        """Keys of the items that were computed."""
        if self.answer is None or self.answer.keys is None:
            return None
        return self.answer.keys if self.answer.is_whole else self.answer.keys[self.answer.missing]


class Visit:
    """One visit of a teacher, which serves ``works``."""

    def __init__(self, teacher: "Teacher", works: List[Work]) -> None:
        self._teacher, self._works = teacher, works
        self._done, self._stops = threading.Event(), threading.Event()
        self._error: Optional[BaseException] = None
        self._stream = teacher.device.stream()
        # A new thread would have torch's default; sums are rounded alike only with as many threads.
        self._threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._work, name="kdgat-teacher")
        self.seconds = 0.0

    def run(self) -> None:
        """Starts the thread and waits until the outputs are there. Raises its error."""
        try:
            self._thread.start()
            # Python may take note of Ctrl-C just before it begins to wait, and then acts on it when the wait ends.
            while not self._done.wait(NOTICE_SECONDS):
                pass
        except BaseException:
            # Ctrl-C: the thread ends after the batch that it is computing, and the module is as it was found.
            self._stops.set()
            if self._thread.ident is not None:
                self._thread.join()
            raise
        if self._error is not None:
            self.join()

    def join(self) -> None:
        """Waits until the rows are written, too. Raises the thread's error."""
        self._thread.join()
        error, self._error = self._error, None
        if error is not None and not isinstance(error, _Stopped):
            if hasattr(error, "add_note"):
                error.add_note("raised on the thread of kdgat.Teacher, while it computed a burst of batches")
            raise error

    def _work(self) -> None:
        started = time.perf_counter()
        try:
            torch.set_num_threads(self._threads)
            self._compute()
        except BaseException as error:
            self._error = error
        finally:
            self.seconds = time.perf_counter() - started
            self._done.set()
        # After an error, too: the batches before it are computed.
        try:
            self._write()
        except BaseException as error:
            self._error = self._error or error

    def _write(self) -> None:
        store = self._teacher.store
        for work in self._works:
            # A cache whose writing has failed is left alone.
            if store is not None and work.keys is not None and work.arrays is not None:
                parts = [numpy.split(rows, numpy.cumsum(counts)[:-1]) for rows, counts in zip(work.arrays, work.counts)]
                store.add(work.keys, list(zip(*parts)))

    def _compute(self) -> None:
        teacher = self._teacher
        try:
            self._compute_with(teacher.strategy)
        except _OutOfMemory as error:
            teacher.device.give_back()
            if not teacher._is_auto or not teacher.weights.has_blocks or teacher.strategy == "layer":
                if hasattr(error, "add_note"):
                    error.add_note(
                        f"strategy '{teacher.strategy}' with {teacher.weights.bytes >> 20} MiB of weights; use 'forward' or "
                        "'layer', a smaller burst, or smaller batches"
                    )
                raise
            teacher._log(f"teacher: out of memory with {teacher.strategy}; goes on with layer")
            teacher.strategy, teacher._is_auto = "layer", False
            self._compute_with("layer")

    def _compute_with(self, strategy: str) -> None:
        teacher, device = self._teacher, self._teacher.device
        measures = teacher._is_auto and device.is_separate and not teacher._has_measured
        used = device.used_bytes()
        if measures:
            device.peak_bytes(start_again=True)
        teacher.weights.measures, copied = measures, teacher.weights.copy_seconds
        with self._stream, torch.no_grad(), _evaluation(teacher.module), teacher.weights.on_device(strategy) as ring:
            if not teacher._is_checked:
                self._check(self._works[0])
                teacher._is_checked = True
            works = [work for work in self._works if not work.is_done]
            started = time.perf_counter()
            if ring is not None and len(works) > 1:
                turns = Turns([self._in_thread(work) for work in works])
                ring.turn = turns.turn
                turns.run()
            else:
                for work in works:
                    self._pass(work)
            if measures and works:
                device.synchronize()
                seconds = (time.perf_counter() - started) * len(self._works) / len(works)
        if measures and works:
            weights = teacher.weights
            layers = weights.layer_bytes if weights.has_blocks else None
            copy, peak = weights.copy_seconds - copied, device.peak_bytes(start_again=True)
            teacher._measured, teacher._has_measured = (
                Measured(weights.bytes, layers, None, None, peak - used, copy, copy + seconds, 0.0),
                True,
            )

    def _in_thread(self, work: Work) -> Any:
        stream = self._teacher.device.stream()

        def run() -> None:
            # All of these belong to a thread.
            torch.set_num_threads(self._threads)
            with torch.no_grad(), stream:
                self._pass(work)

        return run

    def _pass(self, work: Work) -> None:
        """Computes a batch."""
        if self._stops.is_set():
            raise _Stopped("the training loop was interrupted")
        self._keep(work, self._outputs(work.items))

    def _outputs(self, items: Items) -> Dict[str, OutputRows]:
        """One forward pass: the selected outputs as rows."""
        teacher = self._teacher
        output = teacher._call(teacher.module, _moved(items.inputs(), teacher.device.torch_device))
        return {name: items.rows(tensor.detach(), name) for name, tensor in teacher._selection.chosen(output).items()}

    def _keep(self, work: Work, outputs: Dict[str, OutputRows]) -> None:
        teacher = self._teacher
        work.dtype = next(iter(outputs.values())).values.dtype
        encodings = teacher._selection.encode_as(outputs)
        if teacher.store is None and not any(encoding.top_k for encoding in encodings):
            # A copy: the module may use the memory of its output again.
            work.tensors = {name: OutputRows(rows.values.clone(), rows.counts, rows.many) for name, rows in outputs.items()}
            return
        if teacher.store is not None:
            teacher.store.settle(encodings)
        arrays = [encoding.encode(outputs[encoding.name].values) for encoding in encodings]
        work.counts = [outputs[encoding.name].counts for encoding in encodings]
        work.arrays = arrays

    def _check(self, work: Work) -> None:
        """Refuses a module whose outputs are not a function of each item alone."""
        teacher, items = self._teacher, work.items
        unfrozen = [name for name, module in teacher.module.named_modules() if _uses_batch_statistics(module)]
        if unfrozen:
            raise ValueError(
                f"the teacher normalises by statistics of the batch ({', '.join(unfrozen[:4])} without running averages): an item's "
                "outputs depend on the others in its batch"
            )
        first = self._outputs(items)
        again = self._outputs(items)
        for name, rows in first.items():
            gap = _gap(rows.values, again[name].values)
            if gap > _tolerance(rows.values.dtype):
                raise ValueError(
                    f"two passes of the teacher over the same batch differ (output '{name}', by {gap:.2g} of its largest number), "
                    "although it is in evaluation "
                    "mode: dropout that ignores `training`, a sampled latent, or random inputs. Its outputs cannot be cached or "
                    "compared; make it deterministic"
                )
        half = items.select(range(items.count // 2)) if items.count > 1 else None
        if half is not None:
            self._check_part(first, half)
        self._keep(work, first)

    def _check_part(self, whole: Dict[str, OutputRows], half: Items) -> None:
        try:
            alone = self._outputs(half)
        except (RuntimeError, ValueError, TypeError) as error:
            self._teacher._divides = False
            self._teacher._log(f"teacher: cannot compute a part of a batch ({error}); a batch with a missing item is computed as a whole")
            return
        for name, rows in whole.items():
            number = len(alone[name].values)
            if not numpy.array_equal(rows.counts[: half.count], alone[name].counts):
                raise BatchError(f"the teacher's output '{name}' has other rows for half of a batch; expected the rows of each item alone")
            gap = _gap(rows.values[:number], alone[name].values)
            if gap > 10 * _tolerance(rows.values.dtype):
                raise ValueError(
                    f"an item's outputs depend on the others in its batch (output '{name}' of half of a batch differs by {gap:.2g} "
                    "of its largest number): statistics "
                    "of the batch, padding that no mask excludes, or inputs that all items share. Name a mask or the inputs, or "
                    "mend the module"
                )


class _Stopped(Exception):
    """Ends a visit after Ctrl-C."""


@contextlib.contextmanager
def _evaluation(module: torch.nn.Module) -> Iterator[None]:
    """Has a module in evaluation mode, and then each of its parts as it was."""
    training = [part for part in module.modules() if part.training]
    if training:
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _moved(value: Any, device: torch.device) -> Any:
    """A batch on the device."""
    if isinstance(value, numpy.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {name: _moved(part, device) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [_moved(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return value.to(device) if hasattr(value, "to") else value


def _uses_batch_statistics(module: torch.nn.Module) -> bool:
    is_batch_norm = isinstance(module, torch.nn.modules.batchnorm._BatchNorm)
    return is_batch_norm and module.running_mean is None and not isinstance(module, torch.nn.modules.instancenorm._InstanceNorm)


def _gap(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest difference, relative to the largest number; infinite for other shapes."""
    if one.shape != other.shape:
        return float("inf")
    if one.numel() == 0:
        return 0.0
    one, other = one.double(), other.double()
    same = (one == other) | (one.isnan() & other.isnan())
    differences = torch.where(same, torch.zeros_like(one), (one - other).abs()).nan_to_num(nan=float("inf"))
    scale = one.abs()[one.isfinite()].max() if bool(one.isfinite().any()) else one.new_ones(())
    return float(differences.max() / scale.clamp_min(1e-30))


def _tolerance(dtype: torch.dtype) -> float:
    """Largest relative difference from rounding in another order."""
    return 2e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-4
