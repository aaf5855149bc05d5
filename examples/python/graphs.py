"""A small GAT that learns from a larger one, on graphs of PyTorch Geometric (pip install torch_geometric).

    python3 graphs.py

The graphs are made up: rings and trees with noisy features. A graph's key in the cache is the digest of its nodes and edges, or its ID.
"""

import argparse
import tempfile

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GATv2Conv, global_mean_pool

import kdgat


def graphs(number: int, seed: int) -> list:
    """Rings (class 0) and trees (class 1) of 5 to 12 nodes."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for position in range(number):
        nodes, label = int(torch.randint(5, 13, (1,), generator=generator)), position % 2
        targets = torch.arange(nodes if label == 0 else nodes - 1)
        sources = (targets + 1) % nodes if label == 0 else (torch.rand(nodes - 1, generator=generator) * (targets + 1)).long()
        targets = targets if label == 0 else targets + 1
        edges = torch.cat([torch.stack([sources, targets]), torch.stack([targets, sources])], 1)
        degree = torch.bincount(edges[1], minlength=nodes)[:, None].float()
        noise = torch.randn(nodes, 7, generator=generator)
        found.append(Data(x=torch.cat([degree + 0.3 * noise[:, :1], noise], 1), edge_index=edges, y=label, number=position))
    return found


class Gat(nn.Module):
    """A GAT whose pooled rows are classified, ``[graphs, 2]``."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        sizes = [8] + layers * [4 * width]
        self.layers = nn.ModuleList(GATv2Conv(inputs, width, heads=4) for inputs in sizes[:-1])
        self.head = nn.Linear(sizes[-1], 2)

    def forward(self, batch) -> torch.Tensor:
        x = batch.x
        for layer in self.layers:
            x = layer(x, batch.edge_index).relu()
        return self.head(global_mean_pool(x, batch.batch))


def train(student: Gat, pairs, optimizer) -> None:
    for batch, targets in pairs:
        logits = student(batch)
        loss = nn.functional.cross_entropy(logits, batch.y)
        if targets is not None:
            loss = loss + kdgat.losses.kl(logits, targets, temperature=2.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def accuracy(module: Gat, loader: DataLoader) -> float:
    with torch.no_grad():
        right = [(module(batch).argmax(1) == batch.y).float() for batch in loader]
    return torch.cat(right).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    loader = DataLoader(graphs(arguments.graphs, 1), batch_size=32, shuffle=True)
    held_out = DataLoader(graphs(256, 2), batch_size=64)
    big, student = Gat(16, 3), Gat(2, 2)
    optimizer = torch.optim.AdamW(big.parameters(), lr=3e-3)
    for _ in range(arguments.epochs):
        train(big, ((batch, None) for batch in loader), optimizer)
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
    with tempfile.TemporaryDirectory() as folder:
        with kdgat.Teacher(big, ids="number", cache=f"{folder}/targets") as teacher:
            for _ in range(arguments.epochs):
                train(student, teacher.distill(loader, burst=8), optimizer)
            print(teacher.summary())
    print(f"accuracy on held-out graphs: teacher {accuracy(big, held_out):.3f}, student {accuracy(student, held_out):.3f}")


if __name__ == "__main__":
    main()
