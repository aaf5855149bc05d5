"""A dataset's store of graphs, as the program wrote it (docs/store.md): mapped, read in place, and assembled to batches."""

from __future__ import annotations

import collections
import concurrent.futures
import operator
import os
import pathlib
from typing import Any, Iterator, List, Optional, Sequence, Tuple, Union

import numpy as np

from kdgat.batch_budget import cut, packed
from kdgat.digests import blake3_hex
from kdgat.epoch_order import epoch_order
from kdgat.graph_batch import FORMS, GraphBatch
from kdgat.graph_shards import ANGLES, DIHEDRALS, EDGES, NODES, BatchRows, Shards
from kdgat.mapped_file import StoreError, reopened
from kdgat.positions import checked_positions
from kdgat.store_manifest import Manifest

#: Standard CAN IDs have 11 bits.
_STANDARD_IDS = 1 << 11
#: A selection of graphs: positions, or true for each selected one.
Graphs = Union[Sequence[int], np.ndarray, range, slice]


class Store:
    """The graphs of a dataset: ``len(store)``, ``store[3]`` and ``store[[5, 0, 7]]``, and :meth:`batches`.

    The files are mapped, so a store of any size can be open. A store may be used by several threads, in processes that are forked, and, pickled, in
    others.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"], form: str = "numpy") -> None:
        """Opens a store's folder. ``form``: what batches are, one of ``"numpy"``, ``"torch"`` and ``"pyg"`` (PyTorch Geometric).

        Raises StoreError, with what was found and what to do, for a folder that is no store, another version, and files that are missing, damaged
        or truncated. Contents are not compared with their checksums; :meth:`verify` does that.
        """
        _check_form(form)
        self.path = pathlib.Path(path).absolute()
        #: Form of batches.
        self.form = form
        self._manifest = Manifest.read(self.path)
        self._shards = Shards(self.path, self._manifest)
        #: Known CAN IDs, ascending; the one with number ``i`` is ``vocabulary[i - 1]``. Empty for graphs that are no CAN windows.
        self.vocabulary: np.ndarray = np.array(self._manifest.vocabulary, np.int64)
        # The number of each standard ID, and of all others, if no other one is known.
        self._standard: Optional[np.ndarray] = None
        if not len(self.vocabulary) or self.vocabulary[-1] < _STANDARD_IDS:
            self._standard = np.zeros(_STANDARD_IDS + 1, np.int64)
            self._standard[self.vocabulary] = np.arange(1, len(self.vocabulary) + 1)

    def __repr__(self) -> str:
        return f"Store({str(self.path)!r}, {self.name}, {len(self)} graphs)"

    def __len__(self) -> int:
        return self._manifest.graphs

    def __reduce__(self) -> Tuple[Any, ...]:
        return reopened, (Store, str(self.path), [self.form], self.digest)

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return self._manifest.name

    @property
    def digest(self) -> str:
        """Digest of graphs, splits and vocabulary: 64 hexadecimal digits. Caches of targets belong to it."""
        return self._manifest.digest

    @property
    def schema(self) -> Optional[dict]:
        """Task, targets, and features of nodes and edges, as ``store.json`` has them; ``None`` for CAN windows."""
        return self._manifest.schema

    @property
    def features(self) -> str:
        """The set of features: ``window``, ``rich`` or ``profile`` of CAN windows, or ``columns``."""
        return self._manifest.features.name

    @property
    def num_nodes(self) -> int:
        """Nodes of all graphs."""
        return sum(shard.nodes for shard in self._manifest.shards)

    @property
    def num_edges(self) -> int:
        """Edges of all graphs, as stored."""
        return sum(shard.edges for shard in self._manifest.shards)

    @property
    def num_node_features(self) -> int:
        """Features of a node: columns of ``x``."""
        return self._manifest.features.nodes

    @property
    def num_edge_features(self) -> int:
        """Features of an edge: columns of ``edge_attr``, 0 if there is none."""
        return self._manifest.features.edges

    @property
    def num_classes(self) -> int:
        """Number of classes of a classification: 2 of CAN windows, with and without an attack. Raises ValueError for other tasks."""
        features = self._manifest.features
        if features.is_can:
            return 2
        if features.task != "classification":
            raise ValueError(f"the task of {self.name} is {features.task}, which has no classes: its targets are schema['targets']")
        return len(self._manifest.schema["targets"][0]["classes"])

    def node_counts(self, graphs: Optional[Graphs] = None) -> np.ndarray:
        """Number of nodes of these graphs, by default of all, i64 ``[graphs]``."""
        return self._shards.counts(NODES, self._positions(graphs))

    def edge_counts(self, graphs: Optional[Graphs] = None) -> np.ndarray:
        """Number of edges of these graphs, by default of all, i64 ``[graphs]``."""
        return self._shards.counts(EDGES, self._positions(graphs))

    def labels(self, graphs: Optional[Graphs] = None) -> np.ndarray:
        """1 for a CAN window with an attack, else 0, i64 ``[graphs]``."""
        return self._shards.column("label", self._positions(graphs)).astype(np.int64)

    def select(self, split: str, attack: Optional[bool] = None, folder: Optional[str] = None) -> np.ndarray:
        """Positions of the graphs of a set, i64, ascending: ``"train"``, ``"validation"`` or ``"test"``.

        Of CAN windows these are the program's sets, without training windows that are also in another set; with ``attack`` only those with this
        label, with ``folder`` only those of a folder of the dataset. Graphs of other kinds are divided by a run, unless the dataset does it.
        Raises ValueError if it does not, and for ``attack`` and ``folder``, which are of CAN windows alone.
        """
        if not self._manifest.features.is_can:
            for name, value in (("attack", attack), ("folder", folder)):
                if value is not None:
                    raise ValueError(f"{name}={value!r} selects CAN windows, and the graphs of {self.name} are none: leave it out")
        graphs = self._manifest.select(split, folder)
        return graphs if attack is None else graphs[self.labels(graphs) == int(attack)]

    def __getitem__(self, graphs: Any) -> Any:
        """A graph, or a batch of the graphs at several positions, in their order. Raises IndexError for a graph that the store does not have."""
        if isinstance(graphs, slice) or np.ndim(graphs):
            return self.batch(graphs)
        number = operator.index(graphs)
        batch = self.batch([number + len(self) if number < 0 else number])
        return batch.get_example(0) if self.form == "pyg" else batch

    def batch(self, graphs: Graphs, form: Optional[str] = None) -> Any:
        """A batch of the graphs at these positions, in this order. ``form``: instead of the store's own."""
        return self._in_form(self._positions(graphs), form)

    def plan(
        self,
        size: int,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        graphs: Optional[Graphs] = None,
        nodes: Optional[int] = None,
        edges: Optional[int] = None,
        block: int = 0,
        buffer: int = 16_384,
    ) -> List[np.ndarray]:
        """Positions of the graphs of each batch of an epoch, i64: those that the program makes of the same graphs, settings, seed and epoch.

        Arguments are those of :meth:`batches`. A plan is a sampler for ``torch.utils.data.DataLoader(store, sampler=plan, batch_size=None)``.
        """
        for name, value, least in (("size", size, 1), ("nodes", nodes, 1), ("edges", edges, 1), ("block", block, 0), ("buffer", buffer, 0)):
            if value is not None and value < least:
                raise ValueError(f"{name}={value}: expected a whole number from {least}")
        order = self._positions(graphs)
        if shuffle:
            order = epoch_order(order, seed, epoch, block, buffer)
        limits = [(counts(order), most) for counts, most in ((self.node_counts, nodes), (self.edge_counts, edges)) if most is not None]
        return (packed if limits and not self._manifest.features.is_can else cut)(order, size, limits)

    def batches(
        self,
        size: int,
        shuffle: bool = False,
        seed: int = 0,
        epoch: int = 0,
        graphs: Optional[Graphs] = None,
        nodes: Optional[int] = None,
        edges: Optional[int] = None,
        block: int = 0,
        buffer: int = 16_384,
        workers: int = 0,
        form: Optional[str] = None,
    ) -> Iterator[Any]:
        """Yields the batches of an epoch: at most ``size`` graphs, ``nodes`` nodes and ``edges`` edges each; a larger graph is alone.

        With such a limit, CAN windows are cut into batches in their order, and each graph of other kinds is put into the first batch that has
        room, as the program does. ``edges`` are those of the store, without self-loops.

        ``shuffle`` puts the graphs into the program's order for this seed and epoch; ``block`` and ``buffer`` are its ``--shuffle-block`` and
        ``--shuffle-buffer``. ``graphs``: positions, by default all. ``workers``: threads that make batches ahead. ``form``: instead of the
        store's own.
        """
        plan = self.plan(size, shuffle, seed, epoch, graphs, nodes, edges, block, buffer)
        _check_form(form or self.form)
        if workers < 0:
            raise ValueError(f"workers={workers}: expected a whole number from 0")
        return self._made(plan, workers, form)

    def _made(self, plan: List[np.ndarray], workers: int, form: Optional[str]) -> Iterator[Any]:
        if not workers:
            for graphs in plan:
                yield self._in_form(graphs, form)
            return
        pool = concurrent.futures.ThreadPoolExecutor(workers, "kdgat-batches")
        waiting: collections.deque = collections.deque()
        try:
            for graphs in plan:
                waiting.append(pool.submit(self._in_form, graphs, form))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def verify(self) -> None:
        """Reads every byte of the shards and compares their checksums. Raises StoreError with the first shard that differs."""
        for number, entry in enumerate(self._manifest.shards):
            found = blake3_hex(self._shards.content(number))
            if found != entry.blake3:
                raise self._shards.damaged(number, f"its checksum is {found}, the manifest says {entry.blake3}")

    def _positions(self, graphs: Optional[Graphs]) -> np.ndarray:
        """Checked positions, i64 ``[graphs]``."""
        if graphs is None or isinstance(graphs, slice):
            return np.arange(len(self), dtype=np.int64)[slice(None) if graphs is None else graphs]
        positions = np.asarray(graphs)
        if positions.dtype == bool and positions.shape == (len(self),):
            return np.flatnonzero(positions)
        return checked_positions(graphs, len(self), "graph", self.path)

    def _in_form(self, graphs: np.ndarray, form: Optional[str] = None) -> Any:
        form = form or self.form
        _check_form(form)
        return self._assembled(graphs).in_form(form, self._manifest.features.node_targets > 0)

    def _assembled(self, graphs: np.ndarray) -> GraphBatch:
        """A batch of graphs by whole columns."""
        features = self._manifest.features
        if not features.nodes:
            raise StoreError(
                f"{self.path} has frames instead of features, which the program computes with the profile of a car; build a store with "
                "--features window or --features rich"
            )
        rows = BatchRows(self._shards, graphs)
        batch = GraphBatch(
            graph=graphs.copy(),
            x=rows.gathered("node_features").reshape(-1, features.nodes),
            edge_index=rows.edge_index(),
            batch=np.arange(len(graphs)).repeat(rows.node_counts),
            ptr=rows.node_ptr,
            edge_ptr=rows.edge_ptr,
            edge_attr=rows.gathered("edge_features").reshape(-1, features.edges) if features.edges else None,
        )
        self._add_targets(batch, rows)
        if features.is_can:
            batch.can_id = rows.gathered("can_id").astype(np.int64)
            batch.id_number = self._numbers(batch.can_id)
        if features.positions:
            batch.pos = rows.gathered("position")
            batch.z = rows.gathered("kind").astype(np.int64)
            batch.force = rows.gathered("force") if features.forces else None
            batch.cell = rows.gathered("cell").reshape(-1, 3, 3) if features.cells else None
        if features.angles is not None:
            batch.angle_index, batch.angle_ptr = rows.paths(ANGLES)
            batch.angle_attr = rows.gathered("angle_parameters").reshape(-1, features.angles) if features.angles else None
        if features.dihedrals is not None:
            batch.dihedral_index, batch.dihedral_ptr = rows.paths(DIHEDRALS)
            batch.dihedral_attr = rows.gathered("dihedral_parameters").reshape(-1, features.dihedrals) if features.dihedrals else None
        return batch

    def _add_targets(self, batch: GraphBatch, rows: BatchRows) -> None:
        features = self._manifest.features
        is_class = features.task == "classification"
        if features.is_can:
            batch.y = rows.gathered("label").astype(np.int64)
        elif features.targets:
            values = rows.gathered("graph_targets")
            if is_class:
                batch.y = values.astype(np.int64)
            elif features.exact:
                batch.y = (values.astype(np.float64) + rows.gathered("target_rests")).reshape(-1, features.targets)
            else:
                batch.y = values.reshape(-1, features.targets)
        elif features.node_targets:
            values = rows.gathered("node_targets").reshape(-1, features.node_targets)
            if is_class:
                values = np.where(np.isnan(values[:, 0]), -1, values[:, 0]).astype(np.int64)
            batch.y = values

    def _numbers(self, can_ids: np.ndarray) -> np.ndarray:
        """Numbers of CAN IDs in the vocabulary, 0 for an unknown one."""
        if self._standard is not None:
            return self._standard.take(can_ids, mode="clip")
        at = np.minimum(np.searchsorted(self.vocabulary, can_ids), len(self.vocabulary) - 1)
        return np.where(self.vocabulary[at] == can_ids, at + 1, 0)


def _check_form(form: str) -> None:
    if form not in FORMS:
        raise ValueError(f"form={form!r}: expected {', '.join(map(repr, FORMS))}")
