"""Writes tests/data/parity/graph_models.safetensors: outputs and gradients of graph networks made of PyTorch Geometric's layers.

    python scripts/parity_graphs.py tests/data/parity/graph_models.safetensors

Needs torch and torch_geometric (scripts/bench installs both into an environment of their own). See tests/data/README.md.
"""

import sys

import torch
from torch import nn
from torch_geometric.nn import (
    MLP, AttentionalAggregation, BatchNorm, GATConv, GCNConv, GINConv, GINEConv, SAGEConv, global_add_pool, global_max_pool,
    global_mean_pool,
)

from safetensors_file import save

FEATURES, EDGE_FEATURES, HIDDEN, LAYERS, OUTPUTS, HEADS = 5, 3, 8, 3, 4, 2
POOLS = {"sum": global_add_pool, "mean": global_mean_pool, "max": global_max_pool}


def conv(kind, columns):
    if kind == "gin":
        return GINConv(MLP([columns, HIDDEN, HIDDEN]))
    if kind == "gine":
        return GINEConv(MLP([columns, HIDDEN, HIDDEN]), edge_dim=EDGE_FEATURES)
    if kind == "gcn":
        return GCNConv(columns, HIDDEN)
    if kind == "sage":
        return SAGEConv(columns, HIDDEN)
    return GATConv(columns, HIDDEN, heads=HEADS)


def virtual_update(columns, width):
    """The MLP of a virtual node in the baselines of the Open Graph Benchmark (examples/graphproppred/mol/conv.py)."""
    return nn.Sequential(nn.Linear(columns, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width),
                         nn.BatchNorm1d(width), nn.ReLU())


class Network(nn.Module):
    def __init__(self, kind, pool, virtual_node=False):
        super().__init__()
        width = HIDDEN * (HEADS if kind == "gat" else 1)
        attends = pool == "attention"
        pools = [AttentionalAggregation(nn.Linear(width, 1)) for _ in range(LAYERS)] if attends else []
        self.pools = nn.ModuleList(pools)
        self.pool_of = (lambda layer: self.pools[layer]) if attends else (lambda layer: POOLS[pool])
        self.reads_edges = kind == "gine"
        self.convs = nn.ModuleList(conv(kind, FEATURES if layer == 0 else width) for layer in range(LAYERS))
        self.norms = nn.ModuleList(BatchNorm(width) for _ in range(LAYERS))
        self.head = MLP([width * LAYERS, width, OUTPUTS], norm=None)
        self.virtual_node = virtual_node
        if virtual_node:
            self.virtualnode_embedding = nn.Embedding(1, FEATURES)
            self.mlp_virtualnode_list = nn.ModuleList(
                virtual_update(FEATURES if layer == 0 else width, width) for layer in range(LAYERS - 1))

    def forward(self, x, edge_index, edge_attr, batch):
        pooled = []
        virtual = None
        if self.virtual_node:
            virtual = self.virtualnode_embedding(torch.zeros(int(batch[-1]) + 1, dtype=torch.long))
        for number, (layer, norm) in enumerate(zip(self.convs, self.norms)):
            edges = (edge_index, edge_attr) if self.reads_edges else (edge_index,)
            if self.virtual_node:
                x = x + virtual[batch]
                if number + 1 < LAYERS:
                    virtual = self.mlp_virtualnode_list[number](global_add_pool(x, batch) + virtual)
            x = norm(layer(x, *edges)).relu()
            pooled.append(self.pool_of(number)(x, batch))
        return self.head(torch.cat(pooled, 1))


def graphs():
    """Random graphs of 1 to 9 nodes, undirected, without self-loops; the second has no edge."""
    generator = torch.Generator().manual_seed(1)
    edges, sizes, first = [], [7, 4, 1, 9, 2], 0
    for graph, nodes in enumerate(sizes):
        for one in range(nodes):
            for other in range(one):
                if graph != 1 and torch.rand((), generator=generator) < 0.5:
                    edges += [(first + one, first + other), (first + other, first + one)]
        first += nodes
    x = torch.randn(first, FEATURES, generator=generator)
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return x, torch.tensor(edges).T.contiguous(), batch


def main():
    x, edge_index, batch = graphs()
    edge_attr = torch.randn(edge_index.shape[1], EDGE_FEATURES, generator=torch.Generator().manual_seed(2))
    tensors = {"x": x, "edge_index": edge_index, "edge_attr": edge_attr, "batch": batch}
    networks = [("gin", "gin", "sum"), ("gine", "gine", "sum"), ("gcn", "gcn", "mean"), ("sage", "sage", "sum"), ("gat", "gat", "mean"),
                ("max", "sage", "max"), ("attention", "gin", "attention"), ("virtual_gin", "gin", "sum"),
                ("virtual_gine", "gine", "mean"), ("virtual_gcn", "gcn", "mean"), ("virtual_sage", "sage", "sum"),
                ("virtual_gat", "gat", "mean")]
    for name, kind, pool in networks:
        virtual_node = name.startswith("virtual_")
        # With seed 0, a column of a virtual node has nearly the same value in all five graphs: its batch norm amplifies rounding, and
        # gradients in single and in double precision differ by 4e-5. With seed 1 they differ by 8e-7.
        torch.manual_seed(1 if virtual_node else 0)
        network = Network(kind, pool, virtual_node)
        for norm in [module for module in network.modules() if isinstance(module, nn.BatchNorm1d)]:
            nn.init.uniform_(norm.weight, 0.5, 1.5)
            nn.init.uniform_(norm.bias, -0.5, 0.5)
            nn.init.uniform_(norm.running_mean, -0.5, 0.5)
            nn.init.uniform_(norm.running_var, 0.5, 1.5)
        for path, tensor in network.state_dict().items():
            if not path.endswith("eps"):
                tensors[f"{name}.state.{path}"] = tensor.clone()
        network.eval()
        tensors[f"{name}.evaluation"] = network(x, edge_index, edge_attr, batch)
        network.train()
        outputs = network(x, edge_index, edge_attr, batch)
        outputs.square().mean().backward()
        tensors[f"{name}.training"] = outputs
        tensors |= {f"{name}.gradient.{path}": parameter.grad for path, parameter in network.named_parameters()}
    save(sys.argv[1], tensors)


main()
