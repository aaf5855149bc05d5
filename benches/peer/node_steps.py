"""Seconds of a whole-graph training step in PyTorch Geometric: SAGE (2 layers, width 128) or GAT (8 heads of 8), Adam, on an .npz graph.

    python node_steps.py GRAPH.npz sage|gat|mlp [STEPS]

Prints the median seconds of the fastest configuration: one or two threads; edges as pairs or as a sparse matrix (sage); features dense or sparse
(mlp).
"""

import statistics
import sys
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.nn import GATConv, SAGEConv
from torch_geometric.utils import to_torch_csr_tensor

warnings.filterwarnings("ignore")


def matrix(data, name):
    values = [torch.from_numpy(np.asarray(data[f"{name}_{part}"])) for part in ("indptr", "indices", "data")]
    shape = tuple(int(size) for size in data[f"{name}_shape"])
    return torch.sparse_csr_tensor(values[0].long(), values[1].long(), values[2].float(), shape)


class Net(torch.nn.Module):
    """Two layers; the first one's linear map reads sparse features where they are."""

    def __init__(self, kind, columns, classes):
        super().__init__()
        self.kind = kind
        if kind == "sage":
            self.convs = torch.nn.ModuleList([SAGEConv(columns, 128), SAGEConv(128, classes)])
        elif kind == "gat":
            self.convs = torch.nn.ModuleList([GATConv(columns, 8, heads=8), GATConv(64, classes, heads=1)])
        else:
            self.convs = torch.nn.ModuleList([torch.nn.Linear(columns, 128), torch.nn.Linear(128, classes)])

    def forward(self, x, edges):
        if self.kind == "mlp":
            hidden = self.convs[0](x) if x.layout == torch.strided else x @ self.convs[0].weight.t() + self.convs[0].bias
            return self.convs[1](hidden.relu())
        hidden = self.convs[0](x, edges)
        return self.convs[1](hidden.relu() if self.kind == "sage" else F.elu(hidden), edges)


def main():
    path, kind = sys.argv[1:3]
    steps = int(sys.argv[3]) if len(sys.argv) > 3 else 12
    data = np.load(path, allow_pickle=True)
    adjacency = matrix(data, "adj").to_sparse_coo().indices()
    edges = torch.cat([adjacency, adjacency.flip(0)], 1)
    edges = torch.unique(edges[:, edges[0] != edges[1]], dim=1)
    features = matrix(data, "attr")
    labels = torch.from_numpy(np.asarray(data["labels"])).long()
    classes = int(labels.max()) + 1
    seeds = torch.randperm(len(labels))[: 20 * classes]
    # A transposed CSR matrix makes PyTorch Geometric sum neighbours by a sparse product; its GATConv takes index pairs only.
    transposed = to_torch_csr_tensor(edges.flip(0), size=(len(labels), len(labels)))
    layouts = {"sage": ("pairs", "product"), "gat": ("pairs",), "mlp": ("dense", "sparse")}[kind]
    best = None
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for layout in layouts:
            x = features if layout == "sparse" else features.to_dense()
            graph = transposed if layout == "product" else edges
            torch.manual_seed(0)
            net = Net(kind, x.shape[1], classes)
            optimizer = torch.optim.Adam(net.convs.parameters(), lr=0.01, weight_decay=5e-4)
            times = []
            for _ in range(steps):
                start = time.perf_counter()
                optimizer.zero_grad()
                F.cross_entropy(net(x, graph)[seeds], labels[seeds]).backward()
                optimizer.step()
                times.append(time.perf_counter() - start)
            found = (statistics.median(times[2:]), threads, layout)
            best = min(best or found, found)
    print(f"{best[0]:.5f} seconds ({best[1]} threads, {best[2]})")


main()
