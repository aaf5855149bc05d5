"""A GAT of PyTorch Geometric that learns from a store of the program and from the cached targets of its teacher (pip install torch_geometric).

    kdgat train --data PROTEINS.zip --preset gin,teacher
    kdgat train --data PROTEINS.zip --preset gin,student --offload-teacher --teacher-cache disk
    python3 gat.py stores/PROTEINS-… stores/targets/PROTEINS-….targets

The cache has the graphs that the program trains and validates on. So those without targets are its test graphs, which the teacher has not seen.
"""

import argparse

import numpy as np
import torch
from torch import nn
from torch_geometric.nn import GATv2Conv, global_mean_pool

import kdgat


class Gat(nn.Module):
    """A GAT whose pooled rows are classified, ``[graphs, classes]``."""

    def __init__(self, features: int, classes: int, width: int = 16, layers: int = 3) -> None:
        super().__init__()
        sizes = [features] + layers * [4 * width]
        self.layers = nn.ModuleList(GATv2Conv(inputs, width, heads=4) for inputs in sizes[:-1])
        self.norms = nn.ModuleList(nn.BatchNorm1d(4 * width) for _ in self.layers)
        self.head = nn.Linear(sizes[-1], classes)

    def forward(self, batch) -> torch.Tensor:
        x = batch.x
        for layer, norm in zip(self.layers, self.norms):
            x = norm(layer(x, batch.edge_index)).relu()
        return self.head(global_mean_pool(x, batch.batch))


def train(student: Gat, store: kdgat.Store, targets: kdgat.Targets, graphs: np.ndarray, epochs: int, weight: float, seed: int) -> None:
    """Trains on the labels, and with ``weight`` on the teacher's logits."""
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    student.train()
    for epoch in range(epochs):
        # The batches that the program makes of these graphs.
        for batch in store.batches(64, shuffle=True, seed=seed, epoch=epoch, graphs=graphs):
            logits = student(batch)
            loss = (1 - weight) * nn.functional.cross_entropy(logits, batch.y)
            if weight:
                cached = torch.from_numpy(targets.rows(batch.graph.numpy(), "logits"))
                loss = loss + weight * kdgat.losses.kl(logits, cached, temperature=2.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()


def accuracy(student: Gat, store: kdgat.Store, graphs: np.ndarray) -> float:
    student.eval()
    with torch.no_grad():
        right = [(student(batch).argmax(1) == batch.y).float() for batch in store.batches(256, graphs=graphs)]
    return torch.cat(right).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store")
    parser.add_argument("targets")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    store = kdgat.Store(arguments.store, form="pyg")
    targets = kdgat.Targets(arguments.targets, store)
    has_targets = targets.has(range(len(store)))
    graphs, held_out = np.flatnonzero(has_targets), np.flatnonzero(~has_targets)
    print(f"{store.name}: {len(graphs)} graphs with targets, {len(held_out)} held out")
    for name, weight in (("alone", 0.0), ("distilled", 0.7)):
        torch.manual_seed(arguments.seed)
        student = Gat(store.num_node_features, store.num_classes)
        train(student, store, targets, graphs, arguments.epochs, weight, arguments.seed)
        print(f"accuracy on held-out graphs, {name}: {accuracy(student, store, held_out):.3f}")
    teacher = targets.rows(graphs, "logits").argmax(1) == store.batch(graphs).y.numpy()
    print(f"accuracy of the teacher on the graphs with targets: {teacher.mean():.3f}")


if __name__ == "__main__":
    main()
