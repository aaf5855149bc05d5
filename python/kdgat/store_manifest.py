"""``store.json``, the manifest of a store of graphs: its files, sets and features."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from typing import List, Optional, Sequence, Tuple

import numpy as np

from kdgat.mapped_file import StoreError

_NAME, _VERSION = "store.json", 1
#: Features of nodes in a store, by set. Those of the profile set are computed by the program.
_NODE_FEATURES = {"window": 10, "rich": 35, "profile": 0}
_EDGE_FEATURES = 11
#: Letters of the sets that a dataset itself assigns its graphs to.
_LETTERS = {"train": b"t", "validation": b"v", "test": b"x"}


@dataclasses.dataclass(frozen=True)
class Features:
    """Columns of a store: numbers of features and targets, and what else there is."""

    name: str
    nodes: int
    edges: int
    targets: int = 0
    node_targets: int = 0
    exact: bool = False
    positions: bool = False
    cells: bool = False
    forces: bool = False
    #: Parameters of listed angles and dihedrals; ``None`` if they are not listed.
    angles: Optional[int] = None
    dihedrals: Optional[int] = None
    #: ``classification``, ``multi-label`` or ``regression``; empty for CAN windows.
    task: str = ""

    @property
    def is_can(self) -> bool:
        """True for CAN windows."""
        return self.name != "columns"

    @classmethod
    def of(cls, fields: object, schema: Optional[dict]) -> "Features":
        """The features that a manifest describes. Raises ValueError, KeyError or TypeError if it describes none."""
        if isinstance(fields, str):
            return cls(fields, _NODE_FEATURES[fields], _EDGE_FEATURES)
        if not isinstance(fields, dict) or not isinstance(schema, dict):
            raise TypeError("its features have no schema")
        columns = fields["columns"]
        if schema["task"] == "classification" and columns["targets"] + columns["node_targets"] != 1:
            raise ValueError("it has classes, and not one target")
        space = columns.get("space") or {}
        paths = {name: _count(count) for name, count in (space.get("paths") or {}).items() if name in ("angles", "dihedrals")}
        numbers = {name: _count(columns[name]) for name in ("nodes", "edges", "targets", "node_targets")}
        return cls(
            "columns",
            **numbers,
            **paths,
            exact=columns.get("exact_targets", False) is True,
            positions=space.get("positions", False) is True,
            cells=space.get("cells", False) is True,
            forces=space.get("forces", False) is True,
            task=str(schema["task"]),
        )


@dataclasses.dataclass(frozen=True)
class ShardEntry:
    """A shard in the manifest: its name, its graphs, nodes, edges and listed paths, its bytes and its checksum."""

    name: str
    first_graph: int
    graphs: int
    nodes: int
    edges: int
    bytes: int
    blake3: str
    angles: int = 0
    dihedrals: int = 0

    @classmethod
    def of(cls, fields: dict) -> "ShardEntry":
        """The shard that a manifest describes. Raises ValueError, KeyError or TypeError if it describes none."""
        if fields["name"] != pathlib.PurePath(fields["name"]).name:
            raise ValueError(f"the shard {fields['name']!r} is not in its folder")
        numbers = {name: _count(fields[name]) for name in ("first_graph", "graphs", "nodes", "edges", "bytes")}
        paths = fields.get("paths") or {}
        numbers.update({name: _count(paths.get(name, 0)) for name in ("angles", "dihedrals")})
        return cls(name=fields["name"], blake3=str(fields["blake3"]), **numbers)


@dataclasses.dataclass(frozen=True)
class Log:
    """A log of CAN frames: its folder, its graphs, and their ranges in the store by set."""

    folder: str
    first_graph: int
    graphs: int
    ranges: dict

    @classmethod
    def of(cls, fields: dict) -> "Log":
        """The log that a manifest describes. Raises ValueError, KeyError or TypeError if it describes none."""
        first, graphs = _count(fields["first_graph"]), _count(fields["graphs"])
        if fields["role"] == "test":
            ranges = {"test": [(first, first + graphs)]}
        else:
            ranges = {name: [(first + begin, first + end) for begin, end in _ranges(fields["split"][name])] for name in ("train", "validation")}
        if any(end > first + graphs for parts in ranges.values() for _, end in parts):
            raise ValueError(f"{fields['name']} has {graphs} graphs, and sets beyond them")
        return cls(str(fields["folder"]), first, graphs, ranges)


class Manifest:
    """The parts of a manifest that readers of graphs need."""

    def __init__(self, fields: dict) -> None:
        """Takes the fields over. Raises ValueError, KeyError or TypeError if they do not fit each other."""
        self.name = str(fields["dataset"])
        self.digest = str(fields["digest"])
        self.schema: Optional[dict] = fields.get("schema")
        self.features = Features.of(fields["features"], self.schema)
        self.vocabulary: List[int] = [_count(number) for number in fields["vocabulary"]]
        self.shards = [ShardEntry.of(entry) for entry in fields["shards"]]
        self.graphs = _count(fields["totals"]["graphs"])
        self._logs = [Log.of(entry) for entry in fields["files"]]
        self._dropped = _ranges(fields["duplicates"]["dropped"])
        self._traceless = _ranges(fields["traceless"])
        self._given: Optional[str] = fields.get("given_splits")
        if self.vocabulary != sorted(set(self.vocabulary)):
            raise ValueError("its vocabulary does not ascend")
        self._check_positions()

    @classmethod
    def read(cls, folder: pathlib.Path) -> "Manifest":
        """Reads the manifest of a store. Raises StoreError if there is none, of another version, or a damaged one."""
        path = folder / _NAME
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            found = "" if folder.exists() else ", nor such a folder"
            raise StoreError(
                f"{folder} holds no graph store (there is no {_NAME}{found}): name a folder of `stores/`; `kdgat data build` and trainings make them"
            ) from None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from error
        try:
            fields = json.loads(content)
            version = fields["format_version"]
            if version == _VERSION:
                return cls(fields)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            detail = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise StoreError(f"{path} is damaged ({detail}): delete the folder {folder}; the program builds it again") from error
        raise StoreError(f"the store {folder} has format version {version}, this kdgat reads version {_VERSION}: build it again with `kdgat data build`")

    def select(self, split: str, folder: Optional[str]) -> np.ndarray:
        """Positions of the graphs of a set, ascending; see :meth:`kdgat.Store.select`."""
        if split not in _LETTERS:
            raise ValueError(f"split={split!r}: expected {', '.join(map(repr, _LETTERS))}")
        if self._given is not None:
            letters = np.frombuffer(self._given.encode(), "S1")
            return np.flatnonzero(letters == _LETTERS[split])
        if not self.features.is_can:
            raise ValueError(
                f"the dataset {self.name} assigns its graphs to no sets; a run divides them by its seed and fold: choose positions yourself"
            )
        ranges = [part for log in self._logs if folder in (None, log.folder) for part in log.ranges.get(split, [])]
        if folder is not None and not any(log.folder == folder for log in self._logs):
            raise ValueError(f"folder={folder!r}: expected {', '.join(sorted({repr(log.folder) for log in self._logs}))}")
        wanted = _marked(ranges, self.graphs) & ~_marked(self._traceless, self.graphs)
        if split == "train":
            wanted &= ~_marked(self._dropped, self.graphs)
        return np.flatnonzero(wanted)

    def _check_positions(self) -> None:
        """Checks that shards and logs follow each other without gaps, and that sets have a letter for each graph."""
        end = 0
        for shard in self.shards:
            if shard.first_graph != end:
                raise ValueError(f"{shard.name} begins at graph {shard.first_graph}, expected {end}")
            end += shard.graphs
        end_of_logs = 0
        for log in self._logs:
            if log.first_graph != end_of_logs:
                raise ValueError(f"a log begins at graph {log.first_graph}, expected {end_of_logs}")
            end_of_logs += log.graphs
        if not end == end_of_logs == self.graphs:
            raise ValueError(f"shards hold {end} graphs, files {end_of_logs}, but the totals have {self.graphs}")
        if self._given is not None and len(self._given) != self.graphs:
            raise ValueError(f"it assigns {len(self._given)} of {self.graphs} graphs to sets")


def _count(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 62:
        raise ValueError(f"{number!r} where a number of things is expected")
    return number


def _ranges(entries: Sequence[dict]) -> List[Tuple[int, int]]:
    return [(_count(entry["start"]), _count(entry["end"])) for entry in entries]


def _marked(ranges: List[Tuple[int, int]], count: int) -> np.ndarray:
    """True for the numbers below ``count`` that are in one of the ranges."""
    marked = np.zeros(count, bool)
    for begin, end in ranges:
        marked[begin:end] = True
    return marked
