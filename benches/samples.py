"""Measure the samples of a store of nodes in Python beside those of DGL and of its GraphBolt on the same graph.

    PYTHONPATH=SITE OMP_NUM_THREADS=1 $(benches/peer/install nodes) benches/samples.py STORE... [--rounds 7] [--fanouts 15,10 10,10,10]

SITE is the folder of an installed wheel (`pip install --no-deps --target SITE dist/kdgat-*.whl`); with `python` instead, NumPy samples.
Neighbourhoods of random seeds, one thread each, without loaders or processes: `kdgat.NodeStore.sample`, DGL's `NeighborSampler.sample_blocks`, and
GraphBolt's pipe of an item sampler and `sample_neighbor`; alone, and with the features of all sampled nodes, f32, from the store or from a tensor in memory.
The three alternate, because other programs may use the machine, and a ratio is of times of one round, in seconds of the processor: medians over the rounds,
with the lowest and the highest ratio. Before that, the numbers of sampled edges are compared, which must agree within 1 %: draws differ, fan-outs do not.
"""

import argparse
import os
import platform
import statistics
import time

os.environ["DGLBACKEND"] = "pytorch"

import dgl
import numpy as np
import torch
from dgl import graphbolt

import kdgat

PROGRAMS = ("kdgat", "DGL", "GraphBolt")


class Samplers:
    """The three samplers over one graph. Each yields the sampled nodes of a batch of seeds, and the number of its edges, self-loops not counted."""

    def __init__(self, store: kdgat.NodeStore, fanouts: list) -> None:
        self.store, self.fanouts = store, fanouts
        self.features = torch.from_numpy(store.x())
        indptr, indices = torch.from_numpy(store.indptr.copy()), torch.from_numpy(store.indices.astype(np.int64))
        self.graph = dgl.graph(("csc", (indptr, indices, torch.tensor([], dtype=torch.int64))), num_nodes=len(store))
        self.sampler = dgl.dataloading.NeighborSampler(fanouts[::-1])
        self.bolt = graphbolt.fused_csc_sampling_graph(indptr, indices)

    def samples(self, program: str, batches: list):
        if program == "kdgat":
            for epoch, seeds in enumerate(batches):
                sample = self.store.sample(seeds, self.fanouts, seed=1, epoch=epoch)
                yield sample.nodes, sum(len(layer.sources) - layer.num_targets for layer in sample.layers)
        elif program == "DGL":
            for seeds in batches:
                nodes, _, blocks = self.sampler.sample_blocks(self.graph, torch.from_numpy(seeds))
                yield nodes, sum(block.num_edges() for block in blocks)
        else:
            items = graphbolt.ItemSet(torch.from_numpy(np.concatenate(batches)), names="seed_nodes")
            for batch in graphbolt.ItemSampler(items, batch_size=len(batches[0])).sample_neighbor(self.bolt, self.fanouts[::-1]):
                yield batch.input_nodes, sum(len(layer.sampled_csc.indices) for layer in batch.sampled_subgraphs)

    def gather(self, program: str, nodes) -> None:
        if program == "kdgat":
            self.store.x(nodes)
        else:
            self.features[nodes]

    def edges(self, program: str, batches: list, gather: bool) -> int:
        """Makes all batches. Returns the number of sampled edges."""
        edges = 0
        for nodes, count in self.samples(program, batches):
            edges += count
            if gather:
                self.gather(program, nodes)
        return edges


def measure(samplers: Samplers, batches: list, gather: bool, rounds: int) -> str:
    """A line of the table."""
    edges = {program: samplers.edges(program, batches, gather) for program in PROGRAMS}
    assert max(edges.values()) <= 1.01 * min(edges.values()), edges
    times = {program: [] for program in PROGRAMS}
    for _ in range(rounds):
        for program in PROGRAMS:
            begin = time.process_time()
            samplers.edges(program, batches, gather)
            times[program].append(time.process_time() - begin)
    store = samplers.store
    cells = [store.name, f"{len(store):,}", f"{store.num_edges:,}", ",".join(map(str, samplers.fanouts)), "yes" if gather else "no"]
    cells.append(f"{edges['kdgat'] // len(batches):,}")
    cells += [f"{1000 * statistics.median(found) / len(batches):.2f}" for found in times.values()]
    for peer in PROGRAMS[1:]:
        ratios = [theirs / own for own, theirs in zip(times["kdgat"], times[peer])]
        cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stores", nargs="+")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seeds", type=int, default=1024, help="of a batch")
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--fanouts", nargs="+", default=["15,10", "10,10,10"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    versions = f"DGL {dgl.__version__}, PyTorch {torch.__version__}, NumPy {np.__version__}, Python {platform.python_version()}"
    sampler = kdgat.NodeStore(arguments.stores[0]).sampler
    print(f"{versions}; kdgat's sampler: {sampler}; {arguments.seeds:,} seeds a batch, ms a batch\n")
    names = "graph | nodes | edges | fan-outs | features | sampled edges | kdgat | DGL | GraphBolt | DGL to kdgat | GraphBolt to kdgat"
    print(f"| {names} |\n|---|" + 2 * "--:|" + "---|---|" + 6 * "--:|")
    for path in arguments.stores:
        store = kdgat.NodeStore(path)
        random = np.random.default_rng(0)
        batches = [random.choice(len(store), min(arguments.seeds, len(store)), replace=False) for _ in range(arguments.batches)]
        for fanouts in arguments.fanouts:
            samplers = Samplers(store, [int(fanout) for fanout in fanouts.split(",")])
            for gather in (False, True):
                print(measure(samplers, batches, gather, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
