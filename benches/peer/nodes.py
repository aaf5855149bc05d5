"""Samples neighbourhoods with DGL or GraphBolt and prints sampled edges per second as one line of JSON.

    python nodes.py dgl --graph FOLDER --fanouts 15,10,5 --batch 1024 --threads 1 [--workers 2] [--features 128]

FOLDER holds `indptr.bin` (i64) and `indices.bin` (i32), the neighbours that edges come from by target. Fan-outs are from the seeds
outwards. With --workers, batches are made by that many processes of the library's data loader, otherwise by --threads threads of this
process without a loader, which is faster. Edges are counted by the consumer; seeds are all nodes in a random order.
"""
import argparse
import json
import os
import sys
import time


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=["dgl", "graphbolt"])
    parser.add_argument("--graph", required=True)
    parser.add_argument("--fanouts", default="15,10,5")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--bits", type=int, choices=[32, 64], default=64, help="width of node numbers")
    parser.add_argument("--features", type=int, default=0, help="columns of f32 features to gather, 0 for none")
    parser.add_argument("--seconds", type=float, default=4.0)
    return parser.parse_args()


options = arguments()
os.environ["DGLBACKEND"] = "pytorch"
os.environ["OMP_NUM_THREADS"] = str(options.threads)
import numpy as np
import torch

torch.set_num_threads(options.threads)
import dgl
import dgl.graphbolt as gb


def endless(batches):
    """Batches of epoch after epoch, each gathered features included."""
    while True:
        yield from batches


def dgl_batches(indptr, indices, order, features):
    graph = dgl.graph(("csc", (indptr.to(order.dtype), indices, torch.tensor([], dtype=order.dtype))), num_nodes=len(indptr) - 1)
    # The fused sampler of 2.1 returns too few edges with 32-bit numbers.
    sampler = dgl.dataloading.NeighborSampler(options.fanouts[::-1], fused=options.bits == 64)
    if options.workers:
        # Otherwise it converts the graph to formats that sampling does not need.
        loader = dgl.dataloading.DataLoader(
            graph.formats("csc"), order, sampler, batch_size=options.batch, num_workers=options.workers)
        batches = endless(loader)
    else:
        seeds = endless([order[at:at + options.batch] for at in range(0, len(order), options.batch)])
        batches = (sampler.sample_blocks(graph, each) for each in seeds)
    for inputs, _, blocks in batches:
        if features is not None:
            features[inputs.long()]
        yield sum(block.num_edges() for block in blocks)


def graphbolt_batches(indptr, indices, order, features):
    graph = gb.fused_csc_sampling_graph(indptr, indices)
    items = gb.ItemSet(order, names="seed_nodes")
    pipe = gb.ItemSampler(items, batch_size=options.batch).sample_neighbor(graph, options.fanouts[::-1])
    batches = endless(gb.DataLoader(pipe, num_workers=options.workers) if options.workers else pipe)
    for batch in batches:
        if features is not None:
            features[batch.input_nodes.long()]
        yield sum(len(layer.sampled_csc.indices) for layer in batch.sampled_subgraphs)


def main():
    options.fanouts = [int(fanout) for fanout in options.fanouts.split(",")]
    kind = torch.int64 if options.bits == 64 else torch.int32
    indptr = torch.from_numpy(np.fromfile(f"{options.graph}/indptr.bin", dtype=np.int64))
    indices = torch.from_numpy(np.fromfile(f"{options.graph}/indices.bin", dtype=np.int32)).to(kind)
    nodes = len(indptr) - 1
    features = torch.rand(nodes, options.features) if options.features else None
    order = torch.randperm(nodes, generator=torch.Generator().manual_seed(1)).to(kind)
    make = dgl_batches if options.program == "dgl" else graphbolt_batches
    counts = make(indptr, indices, order, features)
    for _ in range(3):
        next(counts)
    edges, batches, start = 0, 0, time.perf_counter()
    while time.perf_counter() - start < options.seconds:
        edges += next(counts)
        batches += 1
    seconds = time.perf_counter() - start
    print(json.dumps({"edges_per_second": edges / seconds, "edges_per_batch": edges / batches}), flush=True)


main()
# Without waiting for the processes of a loader, which may hang at exit.
sys.stdout.flush()
os._exit(0)
