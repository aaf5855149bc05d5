"""Rows of a teacher's outputs: how they are encoded in a cache, and as what the student gets them.

An output is a tensor with a row for each item (``[items, width]``) or for each token or node of each item. A row is encoded as

- ``f32`` or ``f16``: its numbers, or
- ``top-k``: the k largest logits, less the largest of all, in half precision; their classes; the largest logit; and the logarithm of
  the summed exponentials of all other classes at each of some temperatures, so that a loss knows their mass exactly.

The student gets what the encoding keeps, whether it was computed or read: a loss does not depend on what happens to be cached.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Mapping, Optional, Sequence, Tuple

import numpy
import torch

#: Temperatures at which a top-k encoding keeps the mass of the other classes.
TEMPERATURES = (1.0, 2.0, 4.0)
#: Most numbers of a chunk whose top-k is computed at once: 64 MiB in single precision.
_CHUNK = 1 << 24
#: Least difference from the largest logit: half precision has no smaller number, and its exponential is 0.
_LEAST = -65504.0


@dataclasses.dataclass(frozen=True)
class Encoding:
    """An output in a cache: its name, the numbers of a row, and how many rows an item has.

    ``shape`` is a row's shape (``(classes,)`` of logits). ``many`` is true if an item has a row for each of its tokens or nodes, and
    false if it has one row. ``top_k`` is 0 for dense rows.
    """

    name: str
    shape: Tuple[int, ...]
    many: bool
    precision: str = "f32"
    top_k: int = 0
    temperatures: Tuple[float, ...] = ()

    def __post_init__(self) -> None:
        sizes_are_right = self.shape and all(isinstance(size, int) and 0 < size < 1 << 31 for size in self.shape)
        if not sizes_are_right or numpy.prod(self.shape, dtype=object) >= 1 << 31:
            raise ValueError(f"output '{self.name}': rows of shape {list(self.shape)}; expected positive sizes")
        if self.precision not in ("f32", "f16"):
            raise ValueError(f"precision '{self.precision}': expected 'f32' or 'f16'")
        if self.top_k and (len(self.shape) != 1 or not 0 < self.top_k <= self.shape[0]):
            raise ValueError(
                f"output '{self.name}': top_k={self.top_k} of rows of shape {list(self.shape)}; expected rows of one dimension with at "
                "least as many classes"
            )
        if self.top_k and not (self.temperatures and all(0 < value < 1e6 for value in self.temperatures)):
            raise ValueError(f"temperatures={list(self.temperatures)}: expected one positive number or more")

    @property
    def row(self) -> numpy.dtype:
        """Type of a row in the cache, little-endian."""
        if not self.top_k:
            return numpy.dtype(("<f4" if self.precision == "f32" else "<f2", self.shape))
        index = "<u2" if self.shape[0] <= 1 << 16 else "<u4"
        fields = [
            ("top", "<f4"),
            ("rest", "<f4", (len(self.temperatures),)),
            ("values", "<f2", (self.top_k,)),
            ("indices", index, (self.top_k,)),
        ]
        return numpy.dtype(fields)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in the cache."""
        return self.row.itemsize

    def described(self) -> dict:
        """The encoding as fields of the cache's manifest."""
        fields = {"name": self.name, "shape": list(self.shape), "rows": "many" if self.many else "one"}
        if self.top_k:
            return {**fields, "encoding": "top-k", "top_k": self.top_k, "temperatures": list(self.temperatures)}
        return {**fields, "encoding": self.precision}

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> "Encoding":
        """The encoding that a manifest describes. Raises ``KeyError``, ``TypeError`` or ``ValueError`` if it describes none."""
        if fields["rows"] not in ("one", "many"):
            raise ValueError(f"rows '{fields['rows']}': expected 'one' or 'many'")
        kind = fields["encoding"]
        if kind not in ("f32", "f16", "top-k"):
            raise ValueError(f"encoding '{kind}': expected f32, f16 or top-k")
        is_top_k = kind == "top-k"
        return cls(
            name=str(fields["name"]),
            shape=tuple(fields["shape"]),
            many=fields["rows"] == "many",
            precision="f32" if is_top_k else kind,
            top_k=int(fields["top_k"]) if is_top_k else 0,
            temperatures=tuple(float(value) for value in fields["temperatures"]) if is_top_k else (),
        )

    def encode(self, rows: torch.Tensor) -> numpy.ndarray:
        """Encodes rows ``[rows, *shape]`` of any device as an array ``[rows]`` of :attr:`row` (dense: ``[rows, *shape]``).

        Raises ``ValueError`` for numbers that are not finite or that the encoding cannot represent.
        """
        if self.top_k:
            return self._encode_top_k(rows)
        with torch.no_grad():
            # A copy: the module may use the memory of its output again.
            encoded = rows.detach().to(torch.float32 if self.precision == "f32" else torch.float16, copy=True)
            if not bool(torch.isfinite(encoded).all()):
                is_input = not bool(torch.isfinite(rows).all())
                problem = "NaN or infinity" if is_input else f"numbers beyond 65504, which {self.precision} cannot represent"
                remedy = "check the teacher and its inputs" if is_input else "use precision='f32'"
                raise ValueError(f"the teacher's output '{self.name}' has {problem}; {remedy}")
            return numpy.ascontiguousarray(encoded.cpu().numpy())

    def _encode_top_k(self, rows: torch.Tensor) -> numpy.ndarray:
        encoded = numpy.empty(rows.shape[0], self.row)
        step = max(1, _CHUNK // self.shape[0])
        with torch.no_grad():
            for begin in range(0, rows.shape[0], step):
                logits = rows[begin : begin + step].detach().float()
                if bool(torch.isnan(logits).any()) or bool(torch.isposinf(logits).any()):
                    raise ValueError(f"the teacher's output '{self.name}' has NaN or infinity; check the teacher and its inputs")
                values, indices = logits.topk(self.top_k, dim=-1)
                top = values[:, :1]
                if bool(torch.isneginf(top).any()):
                    raise ValueError(f"the teacher's output '{self.name}' has a row of infinities; check the teacher and its inputs")
                others = (logits - top).scatter_(-1, indices, float("-inf"))
                part = encoded[begin : begin + step]
                part["top"] = top[:, 0].cpu().numpy()
                for column, temperature in enumerate(self.temperatures):
                    part["rest"][:, column] = (others / temperature).logsumexp(-1).cpu().numpy()
                part["values"] = (values - top).clamp_min(_LEAST).half().cpu().numpy()
                part["indices"] = indices.cpu().numpy()
        return encoded

    def decode(self, rows: numpy.ndarray, leading: Sequence[int], device: torch.device, mask: Optional[torch.Tensor]) -> "BatchTargets":
        """Decodes an array of rows as targets of shape ``[*leading, *shape]`` on ``device``, in memory of their own."""

        def tensor(values: numpy.ndarray, trailing: Sequence[int]) -> torch.Tensor:
            values = torch.from_numpy(numpy.array(values)).reshape(*leading, *trailing)
            if device.type == "cuda":
                return values.pin_memory().to(device, non_blocking=True)
            return values.to(device)

        if mask is not None:
            mask = mask.to(device)
        if not self.top_k:
            return BatchTargets(tensor(rows, self.shape).float(), mask)
        index_type = numpy.int32 if rows["indices"].dtype.itemsize == 2 else numpy.int64
        return TopK(
            values=tensor(rows["values"], (self.top_k,)).float(),
            mask=mask,
            indices=tensor(rows["indices"].astype(index_type), (self.top_k,)).long(),
            top=tensor(rows["top"], ()),
            rest=tensor(rows["rest"], (len(self.temperatures),)),
            temperatures=self.temperatures,
            classes=self.shape[0],
        )


@dataclasses.dataclass
class BatchTargets:
    """A teacher's outputs for a batch.

    ``values`` has the shape of the teacher's output, ``[items, width]``, ``[items, tokens, width]`` or ``[nodes, width]``. With a
    ``mask`` (bool ``[items, tokens]``), it has the rows of the positions that are true, one after another: ``[true positions, width]``.
    """

    values: torch.Tensor
    mask: Optional[torch.Tensor] = None

    def select(self, student: torch.Tensor) -> torch.Tensor:
        """The student's rows ``[rows, width]`` that belong to the targets, of its output ``[items, tokens, width]`` or ``[rows, width]``.

        Raises ``ValueError`` if its shape is not that of the targets.
        """
        leading = self.values.shape[:-1] if self.mask is None else self.mask.shape
        if student.shape[:-1] != leading:
            raise ValueError(
                f"the student's output of shape {list(student.shape)} does not fit the teacher's targets: expected "
                f"{list(leading)} before the last dimension"
            )
        return student.reshape(-1, student.shape[-1]) if self.mask is None else student[self.mask]

    def rows(self) -> torch.Tensor:
        """The targets as ``[rows, width]``."""
        return self.values.reshape(-1, self.values.shape[-1])

    def dense(self) -> torch.Tensor:
        """The targets in the shape of the teacher's output; zeros where the mask is false."""
        if self.mask is None:
            return self.values
        full = self.values.new_zeros(*self.mask.shape, self.values.shape[-1])
        full[self.mask] = self.values
        return full

    def to(self, device: Any) -> "BatchTargets":
        """The same targets on another device."""
        moved = {
            field.name: getattr(self, field.name).to(device)
            for field in dataclasses.fields(self)
            if isinstance(getattr(self, field.name), torch.Tensor)
        }
        return dataclasses.replace(self, **moved)


@dataclasses.dataclass
class TopK(BatchTargets):
    """The k largest logits of each row, and the mass of all other classes.

    ``values`` ``[..., k]`` are logits less the largest of the row, descending from 0; ``indices`` ``[..., k]`` their classes; ``top``
    ``[...]`` the largest logit; ``rest`` ``[..., temperatures]`` the logarithm of the other classes' Σ exp((logit − top) / T).
    """

    indices: torch.Tensor = None  # type: ignore[assignment]
    top: torch.Tensor = None  # type: ignore[assignment]
    rest: torch.Tensor = None  # type: ignore[assignment]
    temperatures: Tuple[float, ...] = ()
    classes: int = 0

    def rest_at(self, temperature: float) -> torch.Tensor:
        """Column of ``rest`` ``[rows]`` for a temperature. Raises ``ValueError`` if the cache has none for it."""
        if temperature not in self.temperatures:
            known = ", ".join(f"{value:g}" for value in self.temperatures)
            raise ValueError(
                f"temperature={temperature:g}: the top-k targets have the mass of the other classes at the temperatures {known}; give "
                f"kdgat.Teacher(temperatures=[{temperature:g}]) and a new cache"
            )
        return self.rest.reshape(-1, len(self.temperatures))[:, self.temperatures.index(temperature)]

    def dense(self) -> torch.Tensor:
        """Refuses: the logits of the other classes are not known."""
        raise ValueError("top-k targets have no logits of the other classes; use a Teacher without top_k")
