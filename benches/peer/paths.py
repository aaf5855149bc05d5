"""Steps of SGMP written plainly in PyTorch, over all paths of three edges at once, for `scripts/bench space`.

Reads graphs from a safetensors file (`positions`, `neighbours`, `features`), makes the vectors of all paths, then makes one step for each line of its input
and prints the milliseconds and the peak of memory above that before the first step, in MiB. A path i, j, k, p has four different nodes, each the neighbour
of the one before.
"""

import argparse
import ctypes
import math
import resource
import sys
import time

import torch
from safetensors.torch import load_file

LAYERS, CUTOFF, GAUSSIANS = 3, 10.0, (50, 6, 12)
# glibc's mallopt: thresholds above which freed memory is returned, and blocks are mapped anew.
TRIM_THRESHOLD, MMAP_THRESHOLD, LARGEST = -1, -3, 2**31 - 1


def gaussians(values, end, count):
    centres = torch.linspace(0, end, count)
    return torch.exp(-0.5 / (centres[1] - centres[0]) ** 2 * (values[:, None] - centres) ** 2)


def angle(one, other):
    return torch.atan2(torch.cross(one, other, dim=1).norm(dim=1), (one * other).sum(1))


def encodings(positions, i, j, k, p):
    """What the three networks of a path's geometry read."""
    ij, jk, jp = positions[j] - positions[i], positions[k] - positions[j], positions[p] - positions[j]
    planes = torch.cross(ij, jk, dim=1), torch.cross(ij, jp, dim=1)
    torsion = angle(*planes) * torch.sign((torch.cross(*planes, dim=1) * ij).sum(1))

    def expanded(vector, *angles):
        parts = [gaussians(vector.norm(dim=1), CUTOFF, GAUSSIANS[0])]
        return torch.cat(parts + [gaussians(*pair) for pair in zip(angles, (math.pi, 2 * math.pi), GAUSSIANS[1:])], 1)

    return expanded(ij), expanded(jk, angle(ij, jk)), expanded(jp, angle(ij, jp), torsion)


def mlp(*columns):
    layers = []
    for inputs, outputs in zip(columns, columns[1:]):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])


class Interaction(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        columns = [GAUSSIANS[0], sum(GAUSSIANS[:2]), sum(GAUSSIANS)]
        self.encodings = torch.nn.ModuleList([mlp(count, width, width) for count in columns])
        self.combine = mlp(7 * width, 4 * width, 2 * width, width)

    def forward(self, x, path, encoded):
        encoded = [layers(values) for layers, values in zip(self.encodings, encoded)]
        return torch.zeros_like(x).index_add(0, path[0], self.combine(torch.cat([x[node] for node in path] + encoded, 1)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--graphs", required=True)
    options = parser.parse_args()
    libc = ctypes.CDLL(None)
    for parameter in (TRIM_THRESHOLD, MMAP_THRESHOLD):
        libc.mallopt(parameter, LARGEST)
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    data = load_file(options.graphs)
    nearest, features = data["neighbours"], data["features"]
    nodes, width = len(nearest), features.shape[1]
    i = torch.arange(nodes)[:, None, None, None]
    j, k, p = nearest[:, :, None, None], nearest[nearest][:, :, :, None], nearest[nearest[nearest]]
    path = [each.expand(p.shape) for each in (i, j, k, p)]
    i, j, k, p = path
    differ = (k != i) & (p != i) & (p != j)
    path = [each[differ] for each in path]
    encoded = encodings(data["positions"], *path)
    embedding = mlp(width, width, width)
    interactions = torch.nn.ModuleList([Interaction(width) for _ in range(LAYERS)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in sys.stdin:
        start = time.perf_counter()
        x = embedding(features)
        for interaction in interactions:
            x = x + interaction(x, path, encoded)
        x.square().mean().backward()
        embedding.zero_grad(set_to_none=False)
        interactions.zero_grad(set_to_none=False)
        seconds = time.perf_counter() - start
        print(1e3 * seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, len(path[0]), flush=True)


main()
