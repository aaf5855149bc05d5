"""Writes tests/data/parity/node_models.safetensors: outputs and gradients of node networks made of PyTorch Geometric's layers.

    python scripts/parity_nodes.py tests/data/parity/node_models.safetensors

Needs torch and torch_geometric (scripts/bench installs both into an environment of their own). See tests/data/README.md.
"""

import sys

import torch
from torch import nn
from torch_geometric.nn import APPNP, BatchNorm, GATConv, GATv2Conv, GCNConv, SAGEConv

from safetensors_file import save

NODES, FEATURES, HIDDEN, LAYERS, OUTPUTS, HEADS = 30, 12, 8, 3, 4, 2
STEPS, TELEPORT = 3, 0.2
SEEDS = 5


class SageGcn(nn.Module):
    """GraphSAGE with the gcn aggregator, as in DGL: W·(Σ_j x_j + x_i)/(d + 1) + b."""

    def __init__(self, columns, width):
        super().__init__()
        self.lin = nn.Linear(columns, width)

    def forward(self, x, edge_index):
        source, target = x if isinstance(x, tuple) else (x, x)
        sums = target.index_add(0, edge_index[1], source[edge_index[0]])
        counts = torch.ones(len(target)).index_add(0, edge_index[1], torch.ones(edge_index.shape[1]))
        return self.lin(sums / counts.unsqueeze(1))


def conv(kind, columns, last):
    width = OUTPUTS if last else HIDDEN
    if kind == "sage":
        return SAGEConv(columns, width)
    if kind == "sage_gcn":
        return SageGcn(columns, width)
    if kind == "gcn":
        return GCNConv(columns, width)
    attention = GATConv if kind == "gat" else GATv2Conv
    return attention(columns, width, heads=HEADS, concat=not last)


class Network(nn.Module):
    def __init__(self, kind, norm, residual):
        super().__init__()
        self.attends, self.residual = kind in ("gat", "gatv2"), residual
        width = HIDDEN * (HEADS if self.attends else 1)
        widths = [FEATURES] + [width] * (LAYERS - 1)
        layers = range(LAYERS)
        if kind in ("mlp", "appnp"):
            self.lins = nn.ModuleList(nn.Linear(widths[layer], (widths + [OUTPUTS])[layer + 1]) for layer in layers)
        else:
            self.convs = nn.ModuleList(conv(kind, widths[layer], layer == LAYERS - 1) for layer in layers)
        self.propagation = APPNP(STEPS, TELEPORT) if kind == "appnp" else None
        norms = {"none": nn.Identity, "batch": lambda: BatchNorm(width), "layer": lambda: nn.LayerNorm(width)}
        self.norms = nn.ModuleList(norms[norm]() for _ in layers[1:])

    def forward(self, x, edges, sizes=None):
        """`edges` are those of each layer, whose targets are the first of its sources; `sizes` counts the targets."""
        layers = self.lins if hasattr(self, "lins") else self.convs
        for number, layer in enumerate(layers):
            before = x
            if hasattr(self, "lins"):
                x = layer(x)
            elif sizes is None:
                x = layer(x, edges)
            else:
                before = x[:sizes[number]]
                x = layer((x, before), edges[number])
            if number < LAYERS - 1:
                if self.residual and x.shape == before.shape:
                    x = x + before
                x = self.norms[number](x)
                x = nn.functional.elu(x) if self.attends else x.relu()
        return self.propagation(x, edges) if self.propagation is not None else x


def graph():
    """A random graph, directed, without self-loops; the last node has no edge."""
    generator = torch.Generator().manual_seed(1)
    edges = torch.rand(NODES, NODES, generator=generator) < 0.15
    edges.fill_diagonal_(False)
    edges[-1], edges[:, -1] = False, False
    x = torch.randn(NODES, FEATURES, generator=generator)
    # About half of the features are zero.
    return x * (torch.rand(NODES, FEATURES, generator=generator) < 0.5), edges.nonzero().T.contiguous()


def blocks(edge_index):
    """Up to two random neighbours of the seeds, of those, and so on: edges of each layer, numbers of targets, and nodes."""
    generator = torch.Generator().manual_seed(2)
    nodes, found, sizes = list(range(SEEDS)), [], []
    for _ in range(LAYERS):
        targets, edges = len(nodes), []
        for target, node in enumerate(list(nodes)):
            sources = edge_index[0, edge_index[1] == node]
            for source in sources[torch.randperm(len(sources), generator=generator)[:2]].tolist():
                if source not in nodes:
                    nodes.append(source)
                edges.append((nodes.index(source), target))
        found.insert(0, torch.tensor(edges).T.contiguous())
        sizes.insert(0, targets)
    return found, sizes, torch.tensor(nodes)


def gradients(network, prefix, outputs):
    network.zero_grad()
    outputs.square().mean().backward()
    return {f"{prefix}.{path}": parameter.grad.clone() for path, parameter in network.named_parameters()}


def main():
    x, edge_index = graph()
    edges, sizes, nodes = blocks(edge_index)
    tensors = {"x": x, "edge_index": edge_index, "block_nodes": nodes, "block_targets": torch.tensor(sizes)}
    tensors |= {f"block_edges.{layer}": edges for layer, edges in enumerate(edges)}
    networks = [("sage", "sage", "batch", False), ("sage_residual", "sage", "layer", True), ("sage_gcn", "sage_gcn", "none", False),
                ("gcn", "gcn", "layer", False), ("gat", "gat", "none", False), ("gat_residual", "gat", "batch", True),
                ("gatv2", "gatv2", "layer", False), ("appnp", "appnp", "none", False), ("mlp", "mlp", "batch", True)]
    for name, kind, norm, residual in networks:
        torch.manual_seed(0)
        network = Network(kind, norm, residual)
        for path, tensor in network.state_dict().items():
            if path.endswith("running_var") or (path.startswith("norms") and path.endswith("weight")):
                nn.init.uniform_(tensor, 0.5, 1.5)
            elif path.endswith(("bias", "running_mean")):
                nn.init.uniform_(tensor, -0.5, 0.5)
        tensors |= {f"{name}.state.{path}": tensor.clone() for path, tensor in network.state_dict().items()}
        network.eval()
        outputs = network(x, edge_index)
        tensors[f"{name}.evaluation"] = outputs
        tensors |= gradients(network, f"{name}.evaluation_gradient", outputs)
        # PyTorch Geometric's GCN and APPNP count degrees within the block; kdgat's read those of the whole graph.
        if kind not in ("gcn", "appnp", "mlp"):
            outputs = network(x[nodes], edges, sizes)
            tensors[f"{name}.block"] = outputs
            tensors |= gradients(network, f"{name}.block_gradient", outputs)
        network.train()
        outputs = network(x, edge_index)
        tensors[f"{name}.training"] = outputs
        tensors |= gradients(network, f"{name}.training_gradient", outputs)
    save(sys.argv[1], tensors)


main()
