"""Measure the batches of a store in Python beside PyTorch Geometric's DataLoader over the same graphs.

    PYTHONPATH=python OMP_NUM_THREADS=1 ~/.cache/kdgat/peer/bin/python benches/batches.py STORE... [--rounds 5] [--batch 32 512]

Batches alone, shuffled, one thread each. `kdgat.Store.batches` reads the mapped store and makes tensors (form "torch") or `Batch` objects of PyTorch
Geometric (form "pyg"); a `DataLoader` collates a list of `Data` objects, which were made from the store and are in memory. The three alternate, because
other programs may use the machine, and a ratio is of times of one round, in seconds of the processor: medians over the rounds, with the lowest and the
highest ratio. Before that, the batches of the two are compared: equal numbers under equal names.
"""

import argparse
import platform
import statistics
import time

import torch
import torch_geometric
from torch_geometric.loader import DataLoader

import kdgat


def compare(store: kdgat.Store, graphs: list, size: int) -> None:
    """Raises AssertionError unless both make the same batches of graphs in the same order."""
    order = [int(graph) for part in store.plan(size, shuffle=True) for graph in part]
    loader = DataLoader([graphs[graph] for graph in order], size)
    for batch, other in zip(store.batches(size, shuffle=True, form="pyg"), loader):
        for name in other.keys():
            assert torch.equal(getattr(batch, name), getattr(other, name)), name


def seconds(batches) -> float:
    """Seconds of the processor for a pass over all batches."""
    begin = time.process_time()
    for _ in batches:
        pass
    return time.process_time() - begin


def measure(path: str, size: int, rounds: int, least_seconds: float) -> str:
    """A line of the table."""
    store = kdgat.Store(path)
    graphs = store.batch(range(len(store)), form="pyg").to_data_list()
    compare(store, graphs, size)
    loader = DataLoader(graphs, size, shuffle=True)
    # As many passes as make a measurement long enough.
    passes = max(1, round(least_seconds / seconds(store.batches(size, shuffle=True, form="torch"))))
    times = {"torch": [], "pyg": [], "theirs": []}
    # The first round warms up.
    for _ in range(rounds + 1):
        for form in ("torch", "pyg"):
            times[form].append(sum(seconds(store.batches(size, shuffle=True, epoch=epoch, form=form)) for epoch in range(passes)) / passes)
        times["theirs"].append(seconds(loader))
    cells = [store.name, f"{len(store):,}", f"{store.num_nodes / len(store):.0f}", f"{store.num_edges / len(store):.0f}", str(size)]
    cells += [f"{len(store) / statistics.median(found[1:]):,.0f}" for found in times.values()]
    for form in ("torch", "pyg"):
        ratios = [other / own for own, other in zip(times[form][1:], times["theirs"][1:])]
        cells.append(f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, nargs="+", default=[32, 512])
    parser.add_argument("--least-seconds", type=float, default=0.3, help="of a measurement of the store")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}, PyTorch Geometric {torch_geometric.__version__}, Python {platform.python_version()}\n")
    names = "store | graphs | nodes a graph | edges a graph | batch | kdgat, tensors | kdgat, `Batch` | PyG | tensors to PyG | `Batch` to PyG"
    print(f"| {names} |\n|---|" + 9 * "--:|")
    for path in arguments.stores:
        for size in arguments.batch:
            print(measure(path, size, arguments.rounds, arguments.least_seconds), flush=True)


if __name__ == "__main__":
    main()
