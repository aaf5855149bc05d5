"""Writes tests/data/parity/path_models.safetensors: outputs and gradients of SGMP written plainly, over all paths at once.

    python scripts/parity_paths.py tests/data/parity/path_models.safetensors

Needs torch (scripts/bench installs it into an environment of its own). See tests/data/README.md.
"""

import math
import sys

import torch
from torch import nn

from safetensors_file import save

FEATURES, HIDDEN, LAYERS, OUTPUTS, CUTOFF, GAUSSIANS = 3, 8, 2, 4, 10.0, (50, 6, 12)


def graphs():
    """Scattered nodes with their four nearest neighbours, which are not mutual; a tree; two nodes; a node alone. Edges lead to a node."""
    generator = torch.Generator().manual_seed(3)
    sizes = [12, 9, 2, 1]
    positions = torch.rand(sum(sizes), 3, generator=generator) * 8
    distances = torch.cdist(positions[:12], positions[:12]).fill_diagonal_(math.inf)
    edges = [(int(source), target) for target in range(12) for source in distances[target].topk(4, largest=False)[1]]
    for child in range(1, 9):
        parent = int(torch.randint(child, (), generator=generator))
        edges += [(12 + parent, 12 + child), (12 + child, 12 + parent)]
    edges += [(21, 22), (22, 21)]
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return torch.randn(sum(sizes), FEATURES, generator=generator), positions, torch.tensor(edges).T.contiguous(), batch


def paths(edge_index, nodes):
    """All i, j, k, p of four different nodes with edges j→i, k→j, p→k."""
    sources_of = [edge_index[0, edge_index[1] == node].tolist() for node in range(nodes)]
    found = [(i, j, k, p) for i in range(nodes) for j in sources_of[i] for k in sources_of[j] for p in sources_of[k]]
    return torch.tensor([path for path in found if len(set(path)) == 4]).T


def gaussians(values, end, count):
    centres = torch.linspace(0, end, count, dtype=values.dtype)
    return torch.exp(-0.5 / (centres[1] - centres[0]) ** 2 * (values[:, None] - centres) ** 2)


def angle(one, other):
    return torch.atan2(torch.cross(one, other, dim=1).norm(dim=1), (one * other).sum(1))


def encodings(positions, i, j, k, p):
    ij, jk, jp = positions[j] - positions[i], positions[k] - positions[j], positions[p] - positions[j]
    planes = torch.cross(ij, jk, dim=1), torch.cross(ij, jp, dim=1)
    torsion = angle(*planes) * torch.sign((torch.cross(*planes, dim=1) * ij).sum(1))

    def expanded(vector, *angles):
        distance = gaussians(vector.norm(dim=1), CUTOFF, GAUSSIANS[0])
        ends = (math.pi, 2 * math.pi)
        return torch.cat([distance] + [gaussians(*pair) for pair in zip(angles, ends, GAUSSIANS[1:])], 1).float()

    return expanded(ij), expanded(jk, angle(ij, jk)), expanded(jp, angle(ij, jp), torsion)


def embedding_of(features, hidden):
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, hidden))


class Interaction(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        columns = [GAUSSIANS[0], sum(GAUSSIANS[:2]), sum(GAUSSIANS)]
        self.mlps_dist = nn.ModuleList(
            nn.Sequential(nn.Linear(count, hidden), nn.ReLU(), nn.Linear(hidden, hidden)) for count in columns)
        self.combine = nn.Sequential(nn.Linear(7 * hidden, 4 * hidden), nn.ReLU(), nn.Linear(4 * hidden, 2 * hidden), nn.ReLU(),
                                     nn.Linear(2 * hidden, hidden))

    def forward(self, x, path, encoded):
        encoded = [layers(values) for layers, values in zip(self.mlps_dist, encoded)]
        messages = self.combine(torch.cat([x[node] for node in path] + encoded, 1))
        return torch.zeros_like(x).index_add(0, path[0], messages)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.lins = nn.ModuleList([nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, OUTPUTS)])

    def forward(self, x):
        return self.lins[1](self.lins[0](x).relu())


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = embedding_of(FEATURES, HIDDEN)
        self.interactions = nn.ModuleList(Interaction(HIDDEN) for _ in range(LAYERS))
        self.head = Head()

    def forward(self, x, positions, edge_index, batch, pooling):
        path = paths(edge_index, len(x))
        # In double precision, as lengths and angles are in kdgat.
        encoded = encodings(positions.double(), *path)
        x = self.embedding(x)
        for interaction in self.interactions:
            x = x + interaction(x, path, encoded)
        pooled = torch.zeros(int(batch[-1]) + 1, HIDDEN).index_add(0, batch, x)
        return self.head(pooled / torch.bincount(batch)[:, None] if pooling == "mean" else pooled)


def main():
    x, positions, edge_index, batch = graphs()
    tensors = {"x": x, "positions": positions, "edge_index": edge_index, "batch": batch}
    for pooling in ("sum", "mean"):
        torch.manual_seed(1)
        network = Network()
        outputs = network(x, positions, edge_index, batch, pooling)
        outputs.square().mean().backward()
        tensors[f"{pooling}.outputs"] = outputs
        tensors |= {f"{pooling}.state.{name}": parameter.clone() for name, parameter in network.named_parameters()}
        tensors |= {f"{pooling}.gradient.{name}": parameter.grad for name, parameter in network.named_parameters()}
    save(sys.argv[1], tensors)


if __name__ == "__main__":
    main()
