"""Items of a batch: their keys in a cache, the rows that belong to each, and batches of some of them.

A batch is a tensor, a tuple, a list or a mapping of tensors with an item in each row, or a batch of PyTorch Geometric. An item's key is
its ID, or the SHA-256 of its inputs: so it is the same after shuffling, in a batch of another size, with another padding, and in another process.
"""

from __future__ import annotations

import dataclasses
import hashlib
import struct
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy
import torch

from kdgat.index import KEY

#: Names of inputs (keys of a mapping, attributes of a graph, positions of a tuple).
Names = Optional[Sequence[Union[str, int]]]
#: A name in the batch, or a function of the batch.
Source = Union[None, str, int, Callable[[Any], Any]]
#: Mixed into the keys of IDs, so that they differ from digests.
_ID = 0x4B44_4741_545F_4944


class BatchError(ValueError):
    """A batch that cannot be divided into items."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """How batches are read: names of the teacher's inputs (default: all), IDs, and the mask of positions that count."""

    inputs: Names = None
    ids: Source = None
    mask: Source = None
    #: True if the teacher is given the batch as it is, by a function of the user.
    whole: bool = False
    #: Inputs with a row for each item, as the first batch has them: a shared input may have as many rows as a later batch has items.
    own: Dict[str, frozenset] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def items(self, batch: Any) -> "Items":
        """The items of a batch. Raises :class:`BatchError` if it has none."""
        if hasattr(batch, "to_data_list") and getattr(batch, "ptr", None) is not None:
            return GraphItems(self, batch)
        return TensorItems(self, batch)

    def part(self, batch: Any, source: Source) -> Any:
        """What a name or a function finds in a batch."""
        if callable(source):
            return source(batch)
        if isinstance(source, str) and not isinstance(batch, Mapping):
            found = getattr(batch, source, None)
            if found is None:
                raise BatchError(f"the batch ({type(batch).__name__}) has no attribute '{source}'")
            return found
        try:
            return batch[source]
        except (KeyError, IndexError, TypeError):
            names = list(batch) if isinstance(batch, Mapping) else list(range(len(batch))) if isinstance(batch, (tuple, list)) else []
            raise BatchError(f"the batch has no '{source}'; it has {names}") from None


class Items:
    """Items of a batch. ``count`` is their number."""

    count: int
    #: Positions of the rows that count, bool ``[items, tokens]``, if a mask was named.
    mask: Optional[torch.Tensor] = None

    def __init__(self, reading: Reading, batch: Any) -> None:
        self._reading, self.batch = reading, batch

    def keys(self) -> numpy.ndarray:
        """A key of each item, ``[items]`` of :data:`kdgat.index.KEY`."""
        if self._reading.ids is None:
            return self.digests()
        keys = keys_of_ids(self._reading.part(self.batch, self._reading.ids))
        if len(keys) != self.count:
            raise BatchError(f"{len(keys)} IDs for a batch of {self.count} items; expected one for each")
        return keys

    def digests(self) -> numpy.ndarray:
        """SHA-256 of each item's inputs, the first 128 bits."""
        raise NotImplementedError

    def inputs(self) -> Any:
        """The batch, or the named inputs of it, for the teacher."""
        raise NotImplementedError

    def select(self, numbers: Sequence[int]) -> Optional["Items"]:
        """A batch of some items; ``None`` if the batch cannot be divided."""
        raise NotImplementedError

    def rows(self, output: torch.Tensor, name: str) -> "OutputRows":
        """Divides an output of the teacher among the items. Raises :class:`BatchError` if it does not fit them."""
        raise NotImplementedError


@dataclasses.dataclass
class OutputRows:
    """An output as rows ``[rows, ...]``, and the number of rows of each item; ``many`` if these are rows of tokens or nodes."""

    values: torch.Tensor
    counts: numpy.ndarray
    many: bool


class TensorItems(Items):
    """Items that are rows of tensors."""

    def __init__(self, reading: Reading, batch: Any) -> None:
        super().__init__(reading, batch)
        self._parts = self._named(batch)
        sizes = {name: len(value) for name, value in self._parts.items() if _has_rows(value)}
        if not sizes:
            raise BatchError(
                f"the batch ({type(batch).__name__}) has no tensor with a row for each item; name the teacher's inputs (inputs=…)"
            )
        self.count = next(iter(sizes.values()))
        # Of other sizes: inputs that all items share.
        found = frozenset(name for name, size in sizes.items() if size == self.count)
        self._own = reading.own.setdefault("names", found)
        for name in self._own - found:
            raise BatchError(
                f"input '{name}' has {sizes.get(name, 'no')} rows for {self.count} items, and in the first batch it had one for each; name "
                "the teacher's inputs (inputs=…) without those that all items share"
            )
        if reading.mask is not None:
            mask = torch.as_tensor(reading.part(batch, reading.mask)) != 0
            if mask.dim() != 2 or len(mask) != self.count:
                raise BatchError(f"a mask of shape {list(mask.shape)}: expected [{self.count}, tokens]")
            self.mask = mask

    def _named(self, batch: Any) -> Dict[Union[str, int], Any]:
        names = self._reading.inputs
        if names is not None:
            return {name: self._reading.part(batch, name) for name in names}
        if isinstance(batch, (Mapping, tuple, list)):
            # IDs are no input of the teacher.
            parts = dict(batch) if isinstance(batch, Mapping) else dict(enumerate(batch))
            return {name: value for name, value in parts.items() if self._reading.ids is None or name != self._reading.ids}
        return {0: batch}

    def digests(self) -> numpy.ndarray:
        shared = hashlib.sha256()
        columns: List[List[bytes]] = []
        mask = None if self.mask is None else self.mask.cpu().numpy()
        for name, value in sorted(self._parts.items(), key=lambda part: str(part[0])):
            title = f"{name}:".encode()
            if name not in self._own:
                shared.update(title + _bytes(name, value))
            elif isinstance(value, (torch.Tensor, numpy.ndarray)):
                array = _array(value)
                is_masked = mask is not None and array.shape[:2] == mask.shape
                kind = title + array.dtype.str.encode()
                rows = [array[item][mask[item]] if is_masked else array[item] for item in range(self.count)]
                columns.append([kind + str(row.shape).encode() + row.tobytes() for row in rows])
            else:
                columns.append([title + _bytes(name, item) for item in value])
        start = shared.digest()
        return _digests([b"".join([start, *parts]) for parts in zip(*columns)])

    def inputs(self) -> Any:
        if self._reading.whole:
            return self.batch
        if isinstance(self.batch, Mapping):
            return dict(self._parts)
        return tuple(self._parts.values()) if isinstance(self.batch, (tuple, list)) or self._reading.inputs is not None else self.batch

    def select(self, numbers: Sequence[int]) -> Optional["Items"]:
        at = torch.as_tensor(list(numbers), dtype=torch.int64)

        def chosen(name: Union[str, int], value: Any) -> Any:
            is_shared = name in self._parts and name not in self._own
            if is_shared or not (_has_rows(value) and len(value) == self.count):
                return value
            if isinstance(value, torch.Tensor):
                return value.index_select(0, at.to(value.device))
            if isinstance(value, numpy.ndarray):
                return value[at.numpy()]
            return [value[number] for number in numbers]

        batch = self.batch
        if isinstance(batch, Mapping):
            batch = {name: chosen(name, value) for name, value in batch.items()}
        elif isinstance(batch, (tuple, list)):
            parts = [chosen(name, value) for name, value in enumerate(batch)]
            batch = type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
        elif isinstance(batch, torch.Tensor):
            batch = chosen(0, batch)
        else:
            return None
        # Functions of a batch may need more than its tensors.
        if callable(self._reading.mask):
            mask = self.mask.index_select(0, at.to(self.mask.device))
            return TensorItems(dataclasses.replace(self._reading, mask=lambda _: mask), batch)
        return TensorItems(self._reading, batch)

    def rows(self, output: torch.Tensor, name: str) -> OutputRows:
        if self.mask is not None and output.shape[:2] == self.mask.shape:
            return OutputRows(output[self.mask.to(output.device)], self.mask.sum(1).cpu().numpy(), many=True)
        if output.dim() < 2 or len(output) != self.count:
            expected = f"[{self.count}, width] or [{self.count}, tokens, width]"
            raise BatchError(
                f"the teacher's output '{name}' has the shape {list(output.shape)}; expected {expected} for {self.count} items"
            )
        if output.dim() == 3:
            return OutputRows(output.flatten(0, 1), numpy.full(self.count, output.shape[1], numpy.int64), many=True)
        return OutputRows(output, numpy.ones(self.count, numpy.int64), many=False)


class GraphItems(Items):
    """Graphs of a batch of PyTorch Geometric."""

    def __init__(self, reading: Reading, batch: Any) -> None:
        super().__init__(reading, batch)
        if reading.mask is not None:
            raise BatchError("mask: not for a batch of graphs; choose rows of nodes in the loss")
        self.nodes = (batch.ptr[1:] - batch.ptr[:-1]).cpu().numpy()
        self.count = len(self.nodes)

    def digests(self) -> numpy.ndarray:
        contents = []
        for graph in self.batch.to_data_list():
            names = sorted(graph.keys()) if self._reading.inputs is None else sorted(map(str, self._reading.inputs))
            parts = [name.encode() + b":" + _bytes(name, self._reading.part(graph, name)) for name in names]
            contents.append(str(graph.num_nodes).encode() + b"".join(parts))
        return _digests(contents)

    def inputs(self) -> Any:
        return self.batch

    def select(self, numbers: Sequence[int]) -> Optional["Items"]:
        graphs = [self.batch.get_example(int(number)) for number in numbers]
        return GraphItems(self._reading, type(self.batch).from_data_list(graphs))

    def rows(self, output: torch.Tensor, name: str) -> OutputRows:
        total = int(self.nodes.sum())
        if output.dim() == 2 and len(output) == self.count != total:
            return OutputRows(output, numpy.ones(self.count, numpy.int64), many=False)
        if output.dim() == 2 and len(output) == total != self.count:
            return OutputRows(output, self.nodes.astype(numpy.int64), many=True)
        if output.dim() == 2 and len(output) == total:
            raise BatchError(
                f"output '{name}': every graph of the batch has one node, so rows of nodes and of graphs look the same; use a "
                "larger batch first"
            )
        raise BatchError(
            f"the teacher's output '{name}' has the shape {list(output.shape)}; expected [{self.count}, width] for graphs or "
            f"[{total}, width] for nodes"
        )


def keys_of_ids(ids: Any) -> numpy.ndarray:
    """Keys of IDs, whole numbers or texts ``[items]``, as ``[items]`` of :data:`kdgat.index.KEY`."""
    if isinstance(ids, torch.Tensor):
        ids = ids.cpu().numpy()
    array = numpy.asarray(ids)
    if array.ndim != 1 or array.dtype.kind not in "iuUO":
        raise BatchError(f"IDs of shape {list(array.shape)} and type {array.dtype}: expected whole numbers or texts, one for each item")
    if array.dtype.kind in "iu":
        keys = numpy.empty(len(array), KEY)
        keys["low"] = array.astype(numpy.int64).view(numpy.uint64)
        keys["high"] = _mixed(keys["low"] ^ numpy.uint64(_ID))
        return keys
    if not all(isinstance(item, str) for item in ids):
        raise BatchError(f"IDs such as {ids[0]!r}: expected whole numbers or texts")
    return _digests([struct.pack("<Q", _ID) + item.encode() for item in ids])


def _mixed(values: numpy.ndarray) -> numpy.ndarray:
    """Finalizer of SplitMix64: spreads numbers over all 64 bits, different ones to different ones."""
    with numpy.errstate(over="ignore"):
        values = (values ^ (values >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return values ^ (values >> numpy.uint64(31))


def _digests(contents: List[bytes]) -> numpy.ndarray:
    return numpy.frombuffer(b"".join(hashlib.sha256(content).digest()[:16] for content in contents), KEY)


def _has_rows(value: Any) -> bool:
    if isinstance(value, (torch.Tensor, numpy.ndarray)):
        return value.ndim > 0
    return isinstance(value, (list, tuple)) and len(value) > 0 and all(isinstance(item, (str, int, float)) for item in value)


def _array(value: Any) -> numpy.ndarray:
    """The bytes of a tensor as an array; of types that NumPy lacks, as whole numbers."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            value = value.view(torch.int16)
        value = value.numpy()
    return numpy.ascontiguousarray(value)


def _bytes(name: Union[str, int], value: Any) -> bytes:
    """The content of an input, with its type and shape."""
    if isinstance(value, (torch.Tensor, numpy.ndarray)):
        array = _array(value)
        return f"{array.dtype.str}{array.shape}".encode() + array.tobytes()
    is_plain = value is None or isinstance(value, (bool, int, float, str))
    if not is_plain and not (isinstance(value, (list, tuple)) and all(isinstance(item, (bool, int, float, str)) for item in value)):
        raise BatchError(
            f"the input '{name}' is a {type(value).__name__}, which has no digest; name the teacher's tensors (inputs=…) or use IDs (ids=…)"
        )
    return repr(value).encode()
