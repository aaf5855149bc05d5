"""The choice of ``strategy='auto'``: from measured numbers, which it prints."""

from __future__ import annotations

import dataclasses
from typing import Optional, Tuple

#: Share of a device's free memory that weights may take: the rest is for fragments and larger batches.
_SHARE = 0.9
#: Least share of the time that copies must take before weights stay on the device for good.
_WORTH = 0.01


@dataclasses.dataclass(frozen=True)
class Measured:
    """Numbers of a first visit with ``forward`` and of the student's steps after it. Sizes in bytes, times in seconds.

    ``free`` and ``free_at_peak`` are the free memory between visits, and that at the peak of the student's steps; ``None`` on a CPU, whose
    host memory has the weights anyway. ``visit_bytes`` is the peak of a visit: weights and the teacher's activations.
    """

    weights: int
    layer_weights: Optional[int]
    free: Optional[int]
    free_at_peak: Optional[int]
    visit_bytes: int
    copy_seconds: float
    visit_seconds: float
    burst_seconds: float


def choose(measured: Measured) -> Tuple[str, str]:
    """Chooses ``resident``, ``forward`` or ``layer``. Returns it with the reason."""
    if measured.free is None or measured.free_at_peak is None:
        return "resident", f"{_mib(measured.weights)} of weights are in host memory, which the CPU reads"
    total = measured.visit_seconds + measured.burst_seconds
    share = measured.copy_seconds / total if total > 0 else 0.0
    numbers = (
        f"weights {_mib(measured.weights)}, a visit {_mib(measured.visit_bytes)}; free {_mib(measured.free)} between steps, "
        f"{_mib(measured.free_at_peak)} at the student's peak; copies {1e3 * measured.copy_seconds:.1f} ms of a burst's "
        f"{1e3 * total:.0f} ms ({100 * share:.1f} %)"
    )
    if share >= _WORTH and measured.weights <= _SHARE * measured.free_at_peak:
        return "resident", f"{numbers}: the weights fit beside the student"
    if measured.visit_bytes <= _SHARE * measured.free or measured.layer_weights is None:
        why = "copies cost little" if share < _WORTH else "the weights do not fit beside the student's peak, but between its steps"
        if measured.visit_bytes > _SHARE * measured.free:
            why = "too little memory for a visit, but the module has no list of blocks for 'layer'"
        return "forward", f"{numbers}: {why}"
    return "layer", f"{numbers}: a visit does not fit between the student's steps, {_mib(measured.layer_weights)} of blocks do"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"
