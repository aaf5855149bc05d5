"""Distillation losses of a student's output and a teacher's targets: the program's formulas (crates/kdgat-distill/src/losses.rs).

``student`` is the student's output, ``[..., width]`` in the shape of the teacher's. ``targets`` is what :class:`kdgat.Teacher` yields, or
a tensor of that shape. The teacher's side carries no gradient. Half-precision outputs are computed in single precision. A loss is the mean
over rows: items, or tokens or nodes; with a mask, over the positions that are true.
"""

from __future__ import annotations

from typing import Tuple, Union

import torch
from torch.nn import functional

from kdgat.rows import BatchTargets, TopK

AnyTargets = Union[torch.Tensor, BatchTargets]

#: Weights of the two terms of decoupled distillation (Zhao et al. 2022).
_TARGET_WEIGHT, _OTHERS_WEIGHT = 1.0, 8.0
#: Most rows of a batch that :func:`relational` compares in pairs.
_MOST_PAIRED_ROWS = 1024

__all__ = ["kl", "dkd", "mse", "relational"]


def kl(student: torch.Tensor, targets: AnyTargets, temperature: float = 1.0) -> torch.Tensor:
    """Soft-label distillation (Hinton et al. 2015): T²·KL(softmax(teacher/T) ‖ softmax(student/T)), mean over rows.

    From top-k targets, the divergence of k + 1 classes: those that are known, and all others as one. It is never above the divergence of
    all classes. ``temperature`` must then be one of those that the teacher's targets were made for.
    """
    _positive(temperature)
    if isinstance(targets, TopK):
        return _kl_top_k(student, targets, temperature)
    student, teacher = _rows(student, targets)
    return _divergence(_log_softmax(student / temperature), _log_softmax(teacher / temperature), temperature)


def dkd(student: torch.Tensor, targets: AnyTargets, labels: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Decoupled distillation (Zhao et al. 2022): TCKD + 8·NCKD, mean over rows, times T².

    ``labels`` are classes in the shape of the rows (``[items]``, or ``[items, tokens]``, of which a mask selects). TCKD is the divergence of
    (p, 1 − p), p being the probability of the label; NCKD that of the distributions over the other classes. Not from top-k targets.
    """
    _positive(temperature)
    mask = targets.mask if isinstance(targets, BatchTargets) else None
    student, teacher = _rows(student, targets)
    label = (labels.reshape(-1) if mask is None else labels.to(mask.device)[mask]).to(student.device).unsqueeze(1)
    classes = student.shape[1]
    if label.shape[0] != student.shape[0]:
        raise ValueError(f"labels of shape {list(labels.shape)}: expected one for each of {student.shape[0]} rows")
    if label.numel() and not 0 <= int(label.min()) <= int(label.max()) < classes:
        raise ValueError(f"labels from {int(label.min())} to {int(label.max())}: expected classes from 0 to {classes - 1}; mask other rows")
    position = torch.arange(classes - 1, device=student.device).unsqueeze(0)
    others = position + (position >= label)
    student, teacher = student / temperature, teacher / temperature

    def label_and_rest(logits: torch.Tensor) -> torch.Tensor:
        logs = _log_softmax(logits)
        return torch.cat([logs.gather(1, label), logs.gather(1, others).logsumexp(1, keepdim=True)], 1)

    target = _divergence(label_and_rest(student), label_and_rest(teacher), temperature)
    among_others = [_log_softmax(logits.gather(1, others)) for logits in (student, teacher)]
    return _TARGET_WEIGHT * target + _OTHERS_WEIGHT * _divergence(among_others[0], among_others[1], temperature)


def mse(student: torch.Tensor, targets: AnyTargets) -> torch.Tensor:
    """Mean squared difference (Kim et al. 2021), over rows and columns. Not from top-k targets."""
    student, teacher = _rows(student, targets)
    return functional.mse_loss(student, teacher)


def relational(student: torch.Tensor, targets: AnyTargets) -> torch.Tensor:
    """Relational distillation (Park et al. 2019; Tung & Mori 2019): mean squared difference between the cosines of all pairs of rows, by
    the student's rows and by the teacher's; over the first 1,024 rows of a larger batch. The widths may differ.
    """
    student, teacher = _rows(student, targets, same_width=False)

    def cosines(rows: torch.Tensor) -> torch.Tensor:
        rows = rows[:_MOST_PAIRED_ROWS]
        rows = rows / rows.norm(2.0, dim=1, keepdim=True).clamp_min(1e-8)
        return rows @ rows.T

    return functional.mse_loss(cosines(student), cosines(teacher))


def _kl_top_k(student: torch.Tensor, targets: TopK, temperature: float) -> torch.Tensor:
    if student.shape[-1] != targets.classes:
        raise ValueError(f"the student has {student.shape[-1]} classes, the teacher {targets.classes}")
    student = _widened(targets.select(student)) / temperature
    rest = targets.rest_at(temperature)
    indices = targets.indices.reshape(-1, targets.indices.shape[-1])
    values = targets.values.reshape(indices.shape).to(student.dtype) / temperature
    total = torch.logaddexp(values.logsumexp(1), rest.to(student.dtype))
    teacher_logs, teacher_rest = values - total.unsqueeze(1), rest - total
    student_total = student.logsumexp(1)
    student_logs = student.gather(1, indices) - student_total.unsqueeze(1)
    divergence = (teacher_logs.exp() * (teacher_logs - student_logs)).sum(1)
    if targets.values.shape[-1] < targets.classes:
        others = student.scatter(1, indices, float("-inf")).logsumexp(1) - student_total
        # Of no mass, such as classes that the teacher excludes by -inf, the logarithm is infinite and its product 0.
        known = torch.where(torch.isneginf(teacher_rest), others.detach(), teacher_rest)
        divergence = divergence + teacher_rest.exp() * (known - others)
    return divergence.sum() * (temperature * temperature / max(1, divergence.shape[0]))


def _divergence(student: torch.Tensor, teacher: torch.Tensor, temperature: float) -> torch.Tensor:
    """T²·KL(teacher ‖ student) of log probabilities ``[rows, classes]``, mean over rows."""
    total = functional.kl_div(student, teacher, reduction="sum", log_target=True)
    return total * (temperature * temperature / max(1, student.shape[0]))


def _rows(student: torch.Tensor, targets: AnyTargets, same_width: bool = True) -> Tuple[torch.Tensor, torch.Tensor]:
    """Rows ``[rows, width]`` of both sides, the teacher's detached."""
    if isinstance(targets, TopK):
        raise ValueError(
            "this loss needs the logits of all classes, and the targets are the top-k; use kdgat.losses.kl, or a Teacher without top_k"
        )
    if not isinstance(targets, BatchTargets):
        targets = BatchTargets(targets)
    student, teacher = targets.select(student), targets.rows().detach()
    if same_width and student.shape != teacher.shape:
        raise ValueError(f"the student's rows have {student.shape[1]} columns, the teacher's {teacher.shape[1]}")
    return _widened(student), _widened(teacher)


def _widened(rows: torch.Tensor) -> torch.Tensor:
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows


def _log_softmax(logits: torch.Tensor) -> torch.Tensor:
    return functional.log_softmax(logits, dim=-1)


def _positive(temperature: float) -> None:
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}: expected a positive number")
