"""Steps of SGMP written plainly in PyTorch, over all paths of three edges at once, for `scripts/bench space`.

Reads graphs from a safetensors file (`positions`, `neighbours`, `features`), makes the vectors of all paths, then makes one step for each line of its input
and prints the milliseconds, the peak of memory above that before the first step, in MiB, and the number of paths. A path i, j, k, p has four different nodes,
each the neighbour of the one before. The layers are those of `scripts/parity_paths.py`, which kdgat's are compared with.
"""

import argparse
import pathlib
import sys

import torch
from safetensors.torch import load_file

from stepping import answer, tune

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
from parity_paths import Interaction, embedding_of, encodings  # noqa: E402

LAYERS = 3


def paths(nearest):
    """All paths, `[paths]` for each of the four nodes. `nearest`: `[nodes, neighbours]`."""
    i = torch.arange(len(nearest))[:, None, None, None]
    j, k, p = nearest[:, :, None, None], nearest[nearest][:, :, :, None], nearest[nearest[nearest]]
    differ = (k != i) & (p != i) & (p != j)
    return [node.expand(p.shape)[differ] for node in (i, j, k, p)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--graphs", required=True)
    options = parser.parse_args()
    tune(options.threads)
    torch.manual_seed(0)
    data = load_file(options.graphs)
    path = paths(data["neighbours"])
    encoded = encodings(data["positions"], *path)
    width = data["features"].shape[1]
    embedding = embedding_of(width, width)
    interactions = torch.nn.ModuleList(Interaction(width) for _ in range(LAYERS))

    def step():
        x = embedding(data["features"])
        for interaction in interactions:
            x = x + interaction(x, path, encoded)
        x.square().mean().backward()
        embedding.zero_grad(set_to_none=False)
        interactions.zero_grad(set_to_none=False)

    answer(step, len(path[0]))


main()
