"""Which of a module's outputs are kept, how they are encoded, and on what they depend."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy
import torch

from kdgat.items import OutputRows
from kdgat.rows import Encoding

#: The output of a module with one.
ONLY = "output"
LOGITS = "logits"


@dataclasses.dataclass
class Selection:
    """The outputs that a user chose, and their encoding."""

    outputs: Union[None, str, Sequence[str], Callable[[Any], Any]]
    top_k: Optional[int]
    temperatures: Tuple[float, ...]
    precision: str
    #: Encodings, from the first outputs on.
    encodings: Optional[List[Encoding]] = None

    def chosen(self, output: Any) -> Dict[str, torch.Tensor]:
        """The outputs by name, of what a module returned. Raises ``ValueError`` if it has none of these."""
        if callable(self.outputs):
            output = self.outputs(output)
        elif isinstance(self.outputs, str):
            output = {self.outputs: _member(output, self.outputs)}
        elif self.outputs is not None:
            output = {name: _member(output, name) for name in self.outputs}
        if isinstance(output, torch.Tensor):
            return {ONLY: output}
        is_named = isinstance(output, Mapping) and output and all(isinstance(value, torch.Tensor) for value in output.values())
        if not is_named:
            have = ", ".join(map(str, output)) if isinstance(output, Mapping) else type(output).__name__
            raise ValueError(
                f"the teacher's outputs are {have}; choose tensors, such as outputs=lambda out: out.logits or outputs='logits'"
            )
        return dict(output)

    def encode_as(self, outputs: Dict[str, OutputRows]) -> List[Encoding]:
        """Encodings of these outputs."""
        top_of = next(iter(outputs)) if len(outputs) == 1 else LOGITS
        if self.top_k is not None and top_of not in outputs:
            raise ValueError(f"top_k={self.top_k}: of several outputs, that named '{LOGITS}'; the outputs are {', '.join(outputs)}")
        found = []
        for name, rows in outputs.items():
            is_top = self.top_k is not None and name == top_of
            shape = tuple(rows.values.shape[1:])
            top_k, temperatures = (self.top_k, self.temperatures) if is_top else (0, ())
            found.append(Encoding(name, shape, rows.many, "f32" if is_top else self.precision, top_k, temperatures))
        if self.encodings is not None and found != self.encodings:
            fields = [[encoding.described() for encoding in encodings] for encodings in (self.encodings, found)]
            raise ValueError(
                f"the teacher's outputs were {fields[0]} and are {fields[1]} now; expected rows of one shape (name a mask for "
                "padded tokens)"
            )
        self.encodings = found
        return found

    def described(self) -> dict:
        """The selection as fields of a cache's key."""
        selection: Any = self.outputs
        if callable(selection):
            selection = _names(selection)
        elif selection is not None and not isinstance(selection, str):
            selection = list(selection)
        return {
            "outputs": selection,
            "top_k": self.top_k,
            "temperatures": list(self.temperatures) if self.top_k else None,
            "precision": self.precision,
        }

    def difference(
        self, encodings: List[Encoding], cached: Tuple[List, List], computed: Tuple[List, List], dtype: Optional[torch.dtype]
    ) -> Optional[str]:
        """Says how computed rows differ from cached ones by more than rounding; ``None`` if they do not."""
        for encoding, old, new, old_counts, new_counts in zip(encodings, cached[0], computed[0], cached[1], computed[1]):
            if not numpy.array_equal(old_counts, new_counts):
                return f"output '{encoding.name}' has {old_counts.tolist()} rows in the cache, and {new_counts.tolist()} now"
            one, other = _numbers(encoding, old), _numbers(encoding, new)
            scale = float(numpy.abs(one).max(initial=1e-30))
            gap = float(numpy.abs(one - other).max(initial=0.0)) / scale
            is_half = dtype in (torch.float16, torch.bfloat16)
            if gap > (5e-2 if is_half else 5e-3 if encoding.top_k or encoding.precision == "f16" else 1e-3):
                return f"output '{encoding.name}' differs by {gap:.2g} of its largest number"
        return None


def _numbers(encoding: Encoding, rows: numpy.ndarray) -> numpy.ndarray:
    """What of encoded rows can be compared, whatever the order of equal logits."""
    if not encoding.top_k:
        return rows.astype(numpy.float64)
    rest = numpy.where(numpy.isfinite(rows["rest"]), rows["rest"], 0)
    values = numpy.maximum(rows["values"].astype(numpy.float64), -100)
    return numpy.concatenate([rows["top"][:, None].astype(numpy.float64), rest.astype(numpy.float64), values], 1)


def _member(output: Any, name: str) -> torch.Tensor:
    found = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    if not isinstance(found, torch.Tensor):
        have = ", ".join(map(str, output)) if isinstance(output, Mapping) else type(output).__name__
        raise ValueError(f"outputs='{name}': the teacher's output ({have}) has no tensor of this name")
    return found


def _names(function: Callable[[Any], Any]) -> str:
    """Names that a function reads, such as ``logits``: they tell selections apart, and are the same in every version of Python."""
    code = getattr(function, "__code__", None)
    if code is None:
        return f"an object of {type(function).__qualname__}"
    texts = [value for value in code.co_consts if isinstance(value, str) and value != function.__doc__ and "<locals>" not in value]
    return "function of " + " ".join([*code.co_names, *texts])


def module_digest(module: torch.nn.Module) -> str:
    """SHA-256 over names, types, shapes and bytes of a module's state."""
    state = {name: tensor for name, tensor in module.state_dict().items() if isinstance(tensor, torch.Tensor)}

    def digest(tensor: torch.Tensor) -> bytes:
        content = tensor.detach().cpu().contiguous()
        return hashlib.sha256(memoryview(content.reshape(-1).view(torch.uint8).numpy())).digest()

    whole = hashlib.sha256()
    # SHA-256 of large buffers runs without the GIL.
    with concurrent.futures.ThreadPoolExecutor(max_workers=8) as pool:
        for (name, tensor), each in zip(state.items(), pool.map(digest, state.values())):
            whole.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode() + each)
    return whole.hexdigest()
