"""Graphs of a store as one batch, with the names of PyTorch Geometric."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Iterator, Optional

#: Forms of a batch: NumPy arrays, tensors of PyTorch, or `Data` and `Batch` of PyTorch Geometric.
FORMS = ("numpy", "torch", "pyg")


@dataclasses.dataclass
class GraphBatch:
    """Graphs one after another, as arrays or as tensors. What the graphs do not have is ``None``.

    Values are those of the store: nothing is normalised, and no self-loop is added.
    """

    #: Position of each graph in the store, i64 ``[graphs]``: the number that selects its rows in :class:`kdgat.Targets`.
    graph: Any
    #: Features of nodes, f32 ``[nodes, features]``.
    x: Any
    #: Source and target of each edge, as nodes of the batch, i64 ``[2, edges]``; sorted by target, then source.
    edge_index: Any
    #: Graph of each node, counted in the batch, i64 ``[nodes]``.
    batch: Any
    #: First node of each graph, and the number of nodes, i64 ``[graphs + 1]``.
    ptr: Any
    #: First edge of each graph, and the number of edges, i64 ``[graphs + 1]``.
    edge_ptr: Any
    #: Targets. Of CAN windows i64 ``[graphs]``, 1 for an attack. Classes i64 ``[graphs]`` or ``[nodes]``, -1 for a node without one. Labels and
    #: numbers f32 ``[graphs, targets]`` or ``[nodes, targets]``, NaN for a node without any; f64 where the store has them exactly.
    y: Any = None
    #: Features of edges, f32 ``[edges, features]``.
    edge_attr: Any = None
    #: CAN ID of each node, i64 ``[nodes]``.
    can_id: Any = None
    #: Its number in the store's vocabulary, i64 ``[nodes]``; 0 for an unknown ID.
    id_number: Any = None
    #: Positions of nodes, f32 ``[nodes, 3]``, in the unit of ``schema["space"]["length_unit"]``.
    pos: Any = None
    #: Kinds of nodes, i64 ``[nodes]``: atomic numbers, or numbers of named kinds.
    z: Any = None
    #: Forces on nodes, f32 ``[nodes, 3]``.
    force: Any = None
    #: Vectors of the periodic axes, f64 ``[graphs, 3, 3]``; zeros for an axis that is not periodic.
    cell: Any = None
    #: Nodes of each listed angle, as nodes of the batch, i64 ``[3, angles]``, once and from one of its ends; first angle of each graph, and the
    #: number of angles, i64 ``[graphs + 1]``; parameters, f32 ``[angles, parameters]``.
    angle_index: Any = None
    angle_ptr: Any = None
    angle_attr: Any = None
    #: The same of listed dihedrals, with four nodes.
    dihedral_index: Any = None
    dihedral_ptr: Any = None
    dihedral_attr: Any = None

    @property
    def num_graphs(self) -> int:
        """Number of graphs."""
        return len(self.ptr) - 1

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.batch)

    @property
    def num_edges(self) -> int:
        """Number of edges, as stored."""
        return int(self.edge_index.shape[1])

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}={list(value.shape)}" for name, value in self.items())
        return f"GraphBatch({shapes})"

    def items(self) -> Iterator[Any]:
        """Yields names and arrays of what the graphs have."""
        for name, value in vars(self).items():
            if value is not None:
                yield name, value

    def in_form(self, form: str, y_of_nodes: Optional[bool] = None) -> Any:
        """This batch of arrays in one of the :data:`FORMS`."""
        return self if form == "numpy" else self.torch() if form == "torch" else self.pyg(y_of_nodes)

    def torch(self) -> "GraphBatch":
        """The same batch as tensors, which share the arrays' memory."""
        import torch

        return GraphBatch(**{name: torch.from_numpy(value) for name, value in self.items()})

    def to(self, *arguments: Any, **settings: Any) -> "GraphBatch":
        """The batch as tensors elsewhere, such as ``"cuda"``: the arguments are those of `torch.Tensor.to`."""
        tensors = self if hasattr(self.x, "to") else self.torch()
        return GraphBatch(**{name: value.to(*arguments, **settings) for name, value in tensors.items()})

    def pyg(self, y_of_nodes: Optional[bool] = None) -> Any:
        """The same batch as a `torch_geometric.data.Batch`, which shares the arrays' memory and can be divided by ``to_data_list``.

        ``y_of_nodes``: true if ``y`` has a row for each node, false if for each graph; by default its length decides.
        """
        import torch

        tensors = {name: torch.from_numpy(value) for name, value in vars(self).items() if value is not None}
        nodes, edges = tensors["ptr"], tensors.pop("edge_ptr")
        listed = {name: tensors.pop(f"{name}_ptr") for name in ("angle", "dihedral") if f"{name}_ptr" in tensors}
        graphs, unchanged = _ends_and_zeros(self.num_graphs)
        if y_of_nodes is None:
            y_of_nodes = self.y is not None and len(self.y) != self.num_graphs
        # `Batch(...)` makes a class for each batch and checks each tensor, which takes longer than the rest.
        batch = type.__call__(_batch_type())
        kept = vars(batch)
        # What `Batch.from_data_list` keeps for `to_data_list`.
        ends = dict.fromkeys(tensors, nodes)
        ends.update({name: rows for name, rows in (("edge_index", edges), ("edge_attr", edges), ("graph", graphs), ("cell", graphs)) if name in ends})
        ends.update({part: rows for name, rows in listed.items() for part in (f"{name}_index", f"{name}_attr") if part in ends})
        if "y" in ends and not y_of_nodes:
            ends["y"] = graphs
        del ends["batch"], ends["ptr"]
        kept["_num_graphs"], kept["_slice_dict"] = self.num_graphs, ends
        kept["_inc_dict"] = {**dict.fromkeys(ends, unchanged), "edge_index": nodes[:-1], **{f"{name}_index": nodes[:-1] for name in listed}}
        kept["_store"]._mapping.update(tensors)
        return batch


@functools.lru_cache(16)
def _ends_and_zeros(graphs: int) -> Any:
    """Ends of the graphs' rows in an array with one for each, and how much their values grow in a batch: nothing."""
    import torch

    return torch.arange(graphs + 1), torch.zeros(graphs, dtype=torch.int64)


@functools.lru_cache(None)
def _batch_type() -> type:
    """The class of batches of `torch_geometric.data.Data`."""
    from torch_geometric.data import Batch

    return type(Batch())
