"""The readers of the program's data: stores of graphs and of nodes, cached targets, the order of batches, and samples."""

import concurrent.futures
import importlib.util
import json
import multiprocessing
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import numpy as np
import torch
from torch.utils.data import DataLoader

import kdgat
from kdgat import neighbour_sampler, node_store
from kdgat.batch_budget import packed
from kdgat.digests import blake3_hex, crc32c
from kdgat.epoch_order import epoch_order
from kdgat.neighbour_sampler import ProgramSampler, Sampler
from stores import SmallGraphs, node_file, targets_file

torch.set_num_threads(1)
HAS_PYG = importlib.util.find_spec("torch_geometric") is not None
KINDS = ("window", "classes", "numbers", "node-classes", "space", "paths")


def sizes(graphs: int = 30) -> list:
    """Nodes and edges of some graphs, one of them without any."""
    return [(graph * 7 % 9 + 1, graph * 11 % 23) if graph != 11 else (0, 0) for graph in range(graphs)]


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def refuses(self, text: str, call, error=kdgat.StoreError) -> None:
        with self.assertRaisesRegex(error, text):
            call()


class Orders(Files):
    """The same orders and samples are in tests of crates/kdgat-graph/src/shuffle.rs, batch_budget.rs and crates/kdgat-node-store/src/sampler.rs."""

    def samplers(self, indptr: np.ndarray, indices: np.ndarray) -> list:
        """NumPy's sampler of these edges, and the program's own, if this package has it."""
        if not ProgramSampler.is_available:
            self.assertNotEqual(os.environ.get("KDGAT_SAMPLER"), "program", "the package has no compiled module")
            return [Sampler(indptr, indices)]
        nodes = len(indptr) - 1
        arrays = {"indptr": indptr.astype("<u8"), "indices": indices.astype("<u4"), "features": np.zeros((nodes, 1), "<f4")}
        arrays.update(labels=np.zeros(nodes, "<i4"), node_hashes=np.zeros(nodes, "<u8"))
        store = kdgat.NodeStore(node_file(self.folder / "g.kdgat-nodes", arrays, "dense", 1))
        self.assertEqual(store.sampler, "program")
        return [Sampler(indptr, indices), ProgramSampler(store.path, store.digest)]

    def test_orders_are_those_of_the_program(self):
        graphs = np.arange(20) * 3 + 7
        golden = {
            (0, 0, 0, 0): [10, 46, 52, 58, 34, 61, 13, 31, 22, 40, 55, 28, 43, 7, 37, 64, 19, 25, 16, 49],
            (0, 0, 42, 3): [13, 31, 10, 22, 46, 19, 7, 55, 43, 37, 40, 28, 64, 52, 16, 49, 25, 58, 61, 34],
            (0, 0, 2**64 - 1, 2**40): [61, 43, 7, 49, 19, 37, 10, 31, 34, 22, 13, 28, 40, 46, 25, 52, 55, 58, 16, 64],
            (4, 8, 42, 3): [37, 7, 34, 16, 13, 31, 10, 40, 19, 64, 22, 61, 58, 25, 28, 55, 46, 49, 43, 52],
            (3, 1, 7, 0): [64, 61, 25, 31, 28, 43, 49, 46, 16, 22, 19, 34, 40, 37, 7, 52, 10, 13, 55, 58],
        }
        for (block, buffer, seed, epoch), expected in golden.items():
            self.assertEqual(epoch_order(graphs, seed, epoch, block, buffer).tolist(), expected)
        self.assertEqual(epoch_order(graphs[:0], 1, 1).tolist(), [])
        self.assertEqual(epoch_order(graphs[:0], 1, 1, 4).tolist(), [])
        # Positions times their graphs, summed: every place of a long order counts.
        many = np.arange(100_000)
        for block, expected in ((0, 250154215069666), (64, 249028865733789)):
            self.assertEqual(int(((many + 1) * epoch_order(many, 5, 9, block, 16_384)).sum()), expected)

    def test_samples_are_those_of_the_program(self):
        rows = {0: range(3, 1203), 1: range(6, 206, 2), 2: range(3, 23), 5: range(3)}
        indptr = np.concatenate([[0], np.cumsum([len(rows.get(node, ())) for node in range(1300)])])
        indices = np.concatenate([np.array(rows[node], np.uint32) for node in sorted(rows)])
        for sampler in self.samplers(indptr, indices):
            with self.subTest(sampler=sampler):
                self.expect_golden_samples(sampler)

    def expect_golden_samples(self, sampler) -> None:
        first = sampler.sample(np.array([0, 1, 2, 5]), [4, 2], 3, 2)
        self.assertEqual(
            first.nodes.tolist(), [0, 1, 2, 5, 308, 494, 974, 1032, 6, 88, 94, 100, 3, 11, 13, 22, 39, 695, 182, 204, 8, 18]
        )
        self.assertEqual(first.layers[0].sources.tolist(), [0, 16, 17, 1, 18, 19, 2, 20, 21, 0, 1, 3, *range(4, 16)])
        self.assertEqual([(layer.num_targets, layer.num_sources) for layer in first.layers], [(16, 22), (4, 16)])
        second = sampler.sample(np.array([0]), [17], 3, 2)
        self.assertEqual(
            second.nodes.tolist(), [0, 90, 174, 256, 308, 334, 494, 508, 796, 799, 825, 841, 932, 974, 1032, 1052, 1076, 1153]
        )
        third = sampler.sample(np.array([0]), [12], 3, 2)
        self.assertEqual(third.nodes.tolist(), [0, 174, 256, 308, 334, 494, 508, 825, 841, 932, 974, 1032, 1076])
        twice = sampler.sample(np.array([5, 7, 5]), [None, 1], 3, 2)
        self.assertEqual((twice.nodes.tolist(), twice.seed_rows.tolist()), ([5, 7, 0, 1, 2, 39, 184, 9], [0, 1, 0]))
        self.assertEqual(twice.layers[1].edge_index.tolist(), [[2, 3, 4, 0, 1], [0, 0, 0, 0, 1]])
        empty = sampler.sample(np.zeros(0, np.int64), [3, 2**40], 3, 2)
        self.assertEqual((len(empty.nodes), len(empty.seed_rows), [layer.indptr.tolist() for layer in empty.layers]), (0, 0, [[0], [0]]))
        for array in (first.nodes, first.seed_rows, first.layers[0].indptr, first.layers[0].sources):
            self.assertTrue(array.flags.writeable and array.dtype == np.int64, "tensors share the memory")
        for seed, epoch in ((-1, 0), (1 << 64, 0), (0, -1), (0, 1 << 64)):
            self.refuses("expected a whole number from 0 to 2.64 - 1", lambda: sampler.sample(np.array([0]), [1], seed, epoch), ValueError)

    def test_samples_are_the_same_however_many_are_drawn_at_once(self):
        rows = [np.sort((node * 7 + np.arange(node % 37) * 11) % 400) for node in range(400)]
        # No edge leads from a node to itself.
        rows = [row[row != node] for node, row in enumerate(rows)]
        indptr, indices = np.concatenate([[0], np.cumsum([len(row) for row in rows])]), np.concatenate(rows).astype(np.uint32)

        def samples(sampler):
            found = [sampler.sample(np.arange(first, first + 9), [5, None, 3], 1, first) for first in (0, 50, 0)]
            return [[sample.nodes.tolist(), *(layer.sources.tolist() for layer in sample.layers)] for sample in found]

        expected = samples(Sampler(indptr, indices))
        self.assertEqual(expected[0], expected[2])
        with mock.patch.object(neighbour_sampler, "_DRAWS_AT_ONCE", 7):
            self.assertEqual(samples(Sampler(indptr, indices)), expected)
        for shared in self.samplers(indptr, indices):
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                self.assertTrue(all(found == expected for found in pool.map(lambda _: samples(shared), range(40))), shared)

    def test_samples_of_all_row_lengths_are_parts_of_the_graph(self):
        lengths = [0, 1, 5, 63, 64, 65, 511, 512, 513, 1500]
        indptr = np.concatenate([[0], np.cumsum(lengths), np.full(2000 - len(lengths), sum(lengths))])
        random = np.random.default_rng(5)
        indices = np.concatenate([np.sort(random.choice(np.arange(20, 2000), length, replace=False)) for length in lengths]).astype(np.uint32)
        samplers = self.samplers(indptr, indices)
        for fanout in (0, 1, 8, 9, 16, 17, 40, 2000, None):
            found, *others = [sampler.sample(np.arange(len(lengths)), [fanout], 1, 0) for sampler in samplers]
            layer = found.layers[0]
            for other in others:
                self.assertTrue(np.array_equal(other.nodes, found.nodes) and np.array_equal(other.layers[0].sources, layer.sources), fanout)
            for target, length in enumerate(lengths):
                sources = found.nodes[layer.sources[layer.indptr[target] : layer.indptr[target + 1]]]
                others = sources[sources != target]
                self.assertEqual(len(others), length if fanout is None else min(length, fanout))
                self.assertTrue((np.diff(sources) > 0).all() and np.isin(others, indices[indptr[target] : indptr[target + 1]]).all())

    def test_checksums_are_the_published_ones(self):
        self.assertEqual(crc32c(b"123456789"), 0xE3069283)
        self.assertEqual(crc32c(bytes(32)), 0x8A9136AA)
        # Bit by bit, for lengths around those of strips.
        content = bytes(number * number % 253 for number in range(1100))
        for length in (*range(9), *range(508, 520), *range(1020, 1032)):
            remainder = 0xFFFFFFFF
            for byte in content[:length]:
                remainder ^= byte
                for _ in range(8):
                    remainder = (remainder >> 1) ^ (0x82F63B78 if remainder & 1 else 0)
            self.assertEqual(crc32c(content[:length]), remainder ^ 0xFFFFFFFF, length)
        # The vectors of the BLAKE3 reference: bytes 0, 1, … 250 over and over.
        content = bytes(number % 251 for number in range(5000))
        for length, expected in (
            (0, "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"),
            (1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"),
            (1024, "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"),
            (1025, "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"),
            (2049, "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030"),
            (3073, "7124b49501012f81cc7f11ca069ec9226cecb8a2c850cfe644e327d22d3e1cd3"),
        ):
            self.assertEqual(blake3_hex(content[:length]), expected)


class Batches(Files):
    def expect(self, batch, graphs: SmallGraphs, numbers) -> None:
        """Compares a batch of arrays with the graphs that it is of, one by one."""
        picked = [graphs.graphs[number] for number in numbers]
        self.assertEqual((batch.num_graphs, batch.graph.tolist()), (len(picked), list(numbers)))
        for place, graph in enumerate(picked):
            nodes, edges = slice(*batch.ptr[place : place + 2]), slice(*batch.edge_ptr[place : place + 2])
            self.assertTrue((batch.batch[nodes] == place).all())
            pairs = [(batch.x[nodes], "node_features"), (batch.edge_attr[edges], "edge_features")]
            pairs += [(end[edges] - nodes.start, name) for end, name in zip(batch.edge_index, ("edge_source", "edge_target"))]
            if graphs.kind == "window":
                known = [int(number) // 7 + 1 if number % 7 == 0 else 0 for number in graph["can_id"]]
                self.assertEqual(batch.id_number[nodes].tolist(), known)
                pairs += [(batch.can_id[nodes], "can_id"), (batch.y[place : place + 1], "label")]
            elif graphs.kind == "classes":
                pairs.append((batch.y[place : place + 1], "graph_targets"))
            elif graphs.kind == "node-classes":
                expected = np.where(np.isnan(graph["node_targets"]), -1, graph["node_targets"])
                self.assertEqual(batch.y[nodes].tolist(), expected.tolist())
            else:
                exact = graph["graph_targets"].astype(float) + graph["target_rests"]
                self.assertEqual(batch.y[place].tolist(), exact.reshape(-1).tolist())
            if graphs.kind in ("space", "paths"):
                pairs += [(batch.pos[nodes], "position"), (batch.force[nodes], "force"), (batch.z[nodes], "kind")]
                pairs.append((batch.cell[place].reshape(1, 9), "cell"))
            if graphs.kind == "paths":
                for name, nodes_of in (("angle", 3), ("dihedral", 4)):
                    paths = slice(*getattr(batch, f"{name}_ptr")[place : place + 2])
                    index = getattr(batch, f"{name}_index")
                    self.assertEqual(len(index), nodes_of)
                    pairs.append((index[:, paths].T - nodes.start, name))
                    pairs.append((getattr(batch, f"{name}_attr")[paths], f"{name}_parameters"))
            for found, name in pairs:
                self.assertTrue(np.array_equal(found, graph[name].reshape(found.shape)), name)
            self.assertEqual((batch.x.ndim, batch.edge_attr.ndim), (2, 2))

    def test_batches_have_the_graphs_of_the_store_whatever_shards_they_are_in(self):
        orders = [range(30), range(5, 9), [*range(7, 18), 3, *range(20, 26)], [29, 0, 11, 11, 17], range(29, -1, -1), [11], []]
        for kind in KINDS:
            graphs = SmallGraphs(sizes(), kind=kind)
            for shards in (1, 4):
                path = graphs.write(self.folder / f"{kind}-{shards}", shards)
                store = kdgat.Store(path)
                for numbers in orders:
                    self.expect(store[list(numbers)], graphs, numbers)
            self.assertEqual((store.num_node_features, store.num_edge_features), (store[3].x.shape[1], store[3].edge_attr.shape[1]))
            if kind in ("numbers", "space", "paths"):
                self.refuses("the task of small is regression, which has no classes", lambda: store.num_classes, ValueError)
            else:
                self.assertEqual(store.num_classes, {"window": 2, "classes": 3, "node-classes": 4}[kind])
            self.expect(store[-1], graphs, [29])
            self.expect(store[4:20:3], graphs, range(4, 20, 3))
            self.assertEqual([len(store), store.node_counts().tolist()], [30, [nodes for nodes, _ in sizes()]])
            self.refuses("graph 30 does not exist: .* has 30 graphs", lambda: store[30], IndexError)
            self.refuses("graph -1 does not exist", lambda: store[[3, -1]], IndexError)
            self.assertEqual(sum(1 for _ in store), 30)
            store.verify()

    def test_batches_are_cut_and_packed_as_the_program_does(self):
        graphs = SmallGraphs([(2 + graph * 7 % 5, graph * 11 % 9) for graph in range(18)])
        store = kdgat.Store(graphs.write(self.folder / "store"))
        descending = np.arange(17, -1, -1)
        plan = store.plan(4, graphs=descending, nodes=12, edges=16)
        self.assertEqual([part.tolist() for part in plan], [[17, 16, 15], [14, 13], [12, 11, 10], [9, 8], [7, 6, 5], [4, 3], [2, 1, 0]])
        others = kdgat.Store(SmallGraphs([(2 + graph * 7 % 5, graph * 11 % 9) for graph in range(18)], kind="classes").write(self.folder / "others"))
        plan = others.plan(4, graphs=descending, nodes=12, edges=16)
        self.assertEqual([part.tolist() for part in plan], [[17, 16, 15], [14, 13, 11], [12, 10, 8], [9, 7], [6, 5, 4], [3, 2, 0], [1]])
        self.assertTrue(all(part.dtype == np.int64 for part in plan))
        # More batches than are open at a time: the sums of their graphs, times their places.
        numbers = np.arange(199, -1, -1)
        many = packed(numbers, 200, [(40 * (1 + numbers // 100) + numbers % 7, 150)])
        self.assertEqual((len(many), sum(place * int(part.sum()) for place, part in enumerate(many, 1))), (112, 1011538))
        self.assertEqual([part.tolist() for part in others.plan(9, graphs=[4, 2], nodes=1)], [[4], [2]])
        self.assertEqual(others.plan(9, graphs=[], nodes=1), [])
        self.assertEqual([len(part) for part in store.plan(5)], [5, 5, 5, 3])
        self.assertEqual([len(part) for part in others.plan(5)], [5, 5, 5, 3])
        alone = store.plan(9, graphs=descending, nodes=3)
        self.assertTrue(all(len(part) == 1 for part in alone) and len(alone) == 18)
        shuffled = np.concatenate(store.plan(5, shuffle=True, seed=8, epoch=2, graphs=descending))
        self.assertEqual(shuffled.tolist(), epoch_order(descending, 8, 2).tolist())
        ahead = np.concatenate([batch.graph for batch in store.batches(5, True, 8, 2, descending, workers=2)])
        self.assertEqual(ahead.tolist(), shuffled.tolist())
        for arguments, text in (
            ({"size": 0}, "size=0"),
            ({"nodes": 0}, "nodes=0"),
            ({"shuffle": True, "seed": -1}, "seed=-1"),
            ({"shuffle": True, "block": -4}, "block=-4"),
            ({"shuffle": True, "block": 4, "buffer": -1}, "buffer=-1"),
        ):
            self.refuses(f"{text}: expected a whole number", lambda: store.plan(**{"size": 1, **arguments}), ValueError)
        self.refuses("form='arrow': expected 'numpy', 'torch', 'pyg'", lambda: store.batches(3, form="arrow"), ValueError)
        self.refuses("workers=-1", lambda: store.batches(3, workers=-1), ValueError)

    def test_sets_are_those_of_the_program(self):
        graphs = SmallGraphs(sizes())
        store = kdgat.Store(graphs.write(self.folder / "store"))
        self.assertEqual(store.select("train").tolist(), [2, 5, *range(9, 22)])
        self.assertEqual(store.select("validation").tolist(), [8])
        self.assertEqual(store.select("test", folder="test_01").tolist(), list(range(25, 30)))
        attacks = [number for number in store.select("train") if graphs.graphs[number]["label"][0]]
        self.assertEqual(store.select("train", attack=True).tolist(), attacks)
        self.refuses("split='all': expected 'train'", lambda: store.select("all"), ValueError)
        self.refuses("folder='x': expected 'test_01', 'train'", lambda: store.select("train", folder="x"), ValueError)
        path = SmallGraphs(sizes(), kind="classes").write(self.folder / "classes")
        self.refuses("assigns its graphs to no sets", lambda: kdgat.Store(path).select("train"), ValueError)
        manifest = json.loads((path / "store.json").read_text())
        (path / "store.json").write_text(json.dumps({**manifest, "given_splits": "tvx" * 10}))
        others = kdgat.Store(path)
        self.assertEqual(others.select("validation").tolist(), list(range(1, 30, 3)))
        self.refuses("attack=False selects CAN windows, and the graphs of small are none", lambda: others.select("train", attack=False), ValueError)
        self.refuses("folder='train' selects CAN windows", lambda: others.select("train", folder="train"), ValueError)

    def test_readers_import_no_pytorch(self):
        path = SmallGraphs(sizes()).write(self.folder / "store")
        targets_file(self.folder / "t", [("logits", "graphs", 2)], np.ones(30, int), "other")
        code = (
            "import sys, kdgat; path, targets = sys.argv[1:]\n"
            "[batch.x.sum() for batch in kdgat.Store(path).batches(7, shuffle=True)]\n"
            "kdgat.Targets(targets).rows([1]), kdgat.NodeStore, kdgat.StoreError\n"
            "sys.exit('torch' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code, path, self.folder / "t"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_paths_beyond_their_graph_are_refused(self):
        path = SmallGraphs(sizes(), kind="paths").write(self.folder / "store", 1)
        place = kdgat.Store(path)._shards._places[0]["dihedral"]
        content = bytearray((path / "shard-00000.safetensors").read_bytes())
        content[place.offset : place.offset + 2] = b"\xff\xff"
        (path / "shard-00000.safetensors").write_bytes(content)
        self.refuses("graph [0-9]+: its dihedrals have node 65535", lambda: kdgat.Store(path)[list(range(30))])
        pointers = content.index(b'"angle_ptr"')
        content[pointers : pointers + 11] = b'"angle_pt_"'
        (path / "shard-00000.safetensors").write_bytes(content)
        self.refuses("it has no tensor angle_ptr", lambda: kdgat.Store(path))

    def test_tensors_share_the_arrays_and_never_the_file(self):
        store = kdgat.Store(SmallGraphs(sizes(), kind="classes").write(self.folder / "store"))
        batch = store[list(range(8))]
        tensors = batch.torch()
        tensors.x.zero_()
        self.assertEqual(float(np.abs(batch.x).sum()), 0.0)
        self.assertGreater(float(np.abs(store[list(range(8))].x).sum()), 0.0)
        self.assertEqual((tensors.edge_index.dtype, tensors.y.dtype, tensors.to(torch.float64).x.dtype), (torch.int64, torch.int64, torch.float64))
        self.assertEqual(batch.to(torch.float64).x.dtype, torch.float64)

    @unittest.skipUnless(HAS_PYG, "this Python has no torch_geometric")
    def test_batches_of_pytorch_geometric_are_those_of_its_own_loader(self):
        from torch_geometric.data import Batch

        for kind in KINDS:
            store = kdgat.Store(SmallGraphs(sizes(), kind=kind).write(self.folder / kind), form="pyg")
            batch = store[[3, 0, 11, 20]]
            parts = batch.to_data_list()
            self.assertEqual([part.num_nodes for part in parts], store.node_counts([3, 0, 11, 20]).tolist())
            other = Batch.from_data_list([store[number] for number in (3, 0, 11, 20)])
            for name in other.keys():
                self.assertTrue(torch.equal(batch[name].nan_to_num(), other[name].nan_to_num()), (kind, name))
                for part, number in zip(parts, (3, 0, 11, 20)):
                    single = store[number]
                    self.assertTrue(name in ("batch", "ptr") or torch.equal(part[name].nan_to_num(), single[name].nan_to_num()), (kind, name))

    def test_damaged_and_foreign_stores_are_refused_with_what_to_do(self):
        graphs, large = SmallGraphs(sizes()), SmallGraphs([(2, 1)] * 29 + [(70_000, 1)], kind="classes")

        def changed(change):
            path = pathlib.Path(tempfile.mkdtemp(dir=self.folder)) / "store"
            change(graphs.write(path))
            return lambda: kdgat.Store(path)[list(range(30))]

        def manifest(**fields):
            def change(path):
                found = json.loads((path / "store.json").read_text())
                (path / "store.json").write_text(json.dumps({**found, **fields}))

            return change

        def replace(name, old, new):
            return lambda path: (path / name).write_bytes((path / name).read_bytes().replace(old, new))

        shard = "shard-00001.safetensors"

        def edge_beyond(path):
            store = kdgat.Store(path)
            place = store._shards._places[1]["edge_source"]
            content = bytearray((path / shard).read_bytes())
            content[place.offset : place.offset + 2] = b"\xff\xff"
            (path / shard).write_bytes(content)

        def large_graph(path):
            SmallGraphs.write(large, path / "large", 1)
            for file in (path / "large").iterdir():
                os.replace(file, path / file.name)

        for change, text in (
            (lambda path: (path / "store.json").unlink(), r"holds no graph store \(there is no store.json\)"),
            (manifest(format_version=2), "has format version 2, this kdgat reads version 1: build it again"),
            (replace("store.json", b'"totals"', b'"sums"'), "store.json is damaged .it has no 'totals'.*: delete the folder"),
            (replace("store.json", b"{", b""), "store.json is damaged"),
            (manifest(shards=[]), "shards hold 0 graphs, files 30"),
            (manifest(features="speed"), "store.json is damaged"),
            (manifest(vocabulary=[3, 1]), "its vocabulary does not ascend"),
            (lambda path: (path / shard).unlink(), f"{shard} is damaged .the file is missing.: delete the folder"),
            (lambda path: os.truncate(path / shard, 900), f"{shard} is damaged .it has 900 bytes, the manifest says"),
            (replace(shard, b'"dtype": "U16"', b'"dtype": "U8" '), "edge_source"),
            (replace(shard, b"edge_source", b"edge_sourcf"), "it has no tensor edge_source"),
            (replace(shard, b'"shape": [11]', b'"shape": [12]'), "damaged"),
            (edge_beyond, "graph 1[0-9]: an edge has node 65535 of"),
            (large_graph, "a graph has 70000 nodes, at most 65535 are possible"),
        ):
            self.refuses(text, changed(change))
        self.refuses("nor such a folder", lambda: kdgat.Store(self.folder / "none"))
        self.refuses("holds no graph store", lambda: kdgat.Store(__file__))
        store = kdgat.Store(graphs.write(self.folder / "store"))
        content = (self.folder / "store" / shard).read_bytes()
        (self.folder / "store" / shard).write_bytes(content[:-1] + b"\x07")
        self.refuses("its checksum is", store.verify)

    def test_a_store_that_is_cut_off_or_replaced_while_it_is_in_use_is_an_error(self):
        path = SmallGraphs(sizes()).write(self.folder / "store", 1)
        store = kdgat.Store(path)
        store[[3]]
        os.truncate(path / "shard-00000.safetensors", 4096)
        self.refuses("it has fewer bytes than the [0-9]+ of the manifest", lambda: store[[3]])
        path = SmallGraphs(sizes()).write(self.folder / "replaced")
        store = kdgat.Store(path)
        os.rename(path, self.folder / "old")
        SmallGraphs(sizes(), seed=4).write(path)
        self.refuses("has been replaced since it was opened; open it again", lambda: store[[3]])
        path = SmallGraphs(sizes()).write(self.folder / "gone")
        store = kdgat.Store(path)
        os.rename(path, self.folder / "elsewhere")
        self.refuses("gone is not there any more; open it again", lambda: store[[3]])

    def test_relative_paths_are_those_of_the_folder_in_which_a_store_was_opened(self):
        SmallGraphs(sizes()).write(self.folder / "store")
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        store = kdgat.Store("store")
        targets_file(self.folder / "a.targets", [("logits", "graphs", 2)], store.node_counts(), store.digest)
        node_file(self.folder / "g.kdgat-nodes", Nodes.arrays(self, "dense"), "dense", 6)
        opened = [store, kdgat.Targets("a.targets", store), kdgat.NodeStore("g.kdgat-nodes")]
        os.chdir("/")
        self.assertEqual(len(store[[3, 4]].y), 2)
        self.assertEqual([len(pickle.loads(pickle.dumps(one))) for one in opened], [30, 30, 50])

    def test_a_store_works_in_loaders_of_forked_and_of_spawned_processes(self):
        path = SmallGraphs(sizes()).write(self.folder / "store")
        store = kdgat.Store(path, form="torch")
        plan = store.plan(7, shuffle=True, seed=1)
        expected = [batch.x for batch in store.batches(7, shuffle=True, seed=1)]
        for method, workers in (("fork", 2), ("spawn", 1)):
            loader = DataLoader(store, sampler=plan, batch_size=None, num_workers=workers, multiprocessing_context=method)
            found = list(loader)
            self.assertEqual(len(found), len(expected))
            self.assertTrue(all(torch.equal(batch.x, x) for batch, x in zip(found, expected)), method)
        again = pickle.dumps(store)
        SmallGraphs(sizes(), seed=9).write(self.folder / "other")
        os.rename(path, self.folder / "old")
        os.rename(self.folder / "other", path)
        self.refuses("is another store than before", lambda: pickle.loads(again))

    def test_threads_share_a_store_and_end_with_their_loop(self):
        graphs = SmallGraphs(sizes())
        store = kdgat.Store(graphs.write(self.folder / "store"))
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for batch in pool.map(lambda number: store[[number % 30, (7 * number) % 30]], range(200)):
                self.expect(batch, graphs, batch.graph.tolist())
        with self.assertRaises(KeyboardInterrupt):
            for _ in store.batches(2, workers=2):
                raise KeyboardInterrupt
        self.assertFalse([thread for thread in threading.enumerate() if "kdgat-batches" in thread.name])


class CachedTargets(Files):
    def setUp(self):
        super().setUp()
        self.store = kdgat.Store(SmallGraphs(sizes()).write(self.folder / "store"))
        self.counts = self.store.node_counts()
        self.path = self.folder / "a.targets"

    def test_rows_are_those_of_their_graphs(self):
        outputs = [("latent", "nodes", 3), ("logits", "graphs", 2), ("hidden layer of nodes", "nodes", 5)]
        numbers = [7, 29, 11, 0, 1, 2, 7]
        for precision in ("f32", "f16"):
            for views in (1, 3):
                rows = targets_file(self.path, outputs, np.tile(self.counts, views), self.store.digest, precision, missing=[4])
                targets = kdgat.Targets(self.path, self.store)
                self.assertEqual((len(targets), targets.views, targets.has([3, 4]).tolist()), (30, views, [True, False]))
                for output, (name, _, _) in enumerate(outputs):
                    expected = np.concatenate([rows[number + 30 * (views - 1)][output] for number in numbers])
                    found = targets.rows(numbers, name, view=views - 1)
                    self.assertEqual(found.dtype, np.float32)
                    self.assertTrue(np.array_equal(found, expected.astype(np.float32)), (precision, views, name))
        self.assertEqual({name: part.shape[1] for name, part in pickle.loads(pickle.dumps(targets))[5].items()}, {name: columns for name, _, columns in outputs})
        self.refuses("has no targets of graph 4, but of 1 of the 2", lambda: targets.rows([3, 4], "logits"))
        self.refuses("name one of 'latent', 'logits'", lambda: targets.rows([3]), ValueError)
        self.refuses("output='x': expected 'latent' or", lambda: targets.rows([3], "x"), ValueError)
        self.refuses("view=3: .* has 3 views", lambda: targets.rows([3], "logits", view=3), ValueError)
        self.refuses("graph 30 does not exist", lambda: targets.rows([30], "logits"), IndexError)
        self.assertEqual(targets.rows([], "logits").shape, (0, 2))

    def test_rows_of_graphs_need_no_store(self):
        for count in (1, 5, 4070, 4071, 9000):
            rows = targets_file(self.path, [("logits", "graphs", 2)], np.ones(count, int), "other")
            targets = kdgat.Targets(self.path)
            self.assertEqual(len(targets), count)
            self.assertTrue(np.array_equal(targets.rows([count - 1]), rows[-1][0]))
        targets_file(self.path, [("latent", "nodes", 2)], self.counts, self.store.digest)
        self.refuses("has rows of nodes: give the store", lambda: kdgat.Targets(self.path), ValueError)
        for views in (1, 3):
            features = f"vocabulary 12ab, {views} views with 0.5 of the IDs hidden"
            targets_file(self.path, [("logits", "graphs", 2)], np.tile(self.counts, views), self.store.digest, features=features)
            self.assertEqual(kdgat.Targets(self.path, self.store).views, views)
            if views == 1:
                self.assertEqual(len(kdgat.Targets(self.path)), 30)
        self.refuses("has several views of each graph: give the store", lambda: kdgat.Targets(self.path), ValueError)

    def test_what_is_damaged_or_belongs_to_another_store_is_refused(self):
        targets_file(self.path, [("logits", "graphs", 2)], self.counts, self.store.digest)
        content = self.path.read_bytes()
        open_ = lambda: kdgat.Targets(self.path, self.store)
        for changed, text in (
            (content[:-1], r"its length is [0-9]+ bytes, expected"),
            (content[:20], "it is shorter than a header"),
            (content[:100], "its header is cut off"),
            (b"x" + content[1:], "it does not begin like a cache of targets"),
            (content[:8] + b"\x09" + content[9:], "it has format version 9, this kdgat reads 1"),
            (content[:30] + b"x" + content[31:], "its header fails its checksum"),
        ):
            self.path.write_bytes(changed)
            self.refuses(f"a.targets is damaged: {text}", open_)
        self.path.write_bytes(content[:-9] + b"\xff" + content[-8:])
        self.refuses("the record of graph 29 in .* is damaged", lambda: open_().rows([3, 29]))
        self.assertEqual(open_().rows([3]).shape, (1, 2))
        targets_file(self.path, [("logits", "graphs", 2)], self.counts, "0" * 64)
        self.refuses("made for something else: dataset", open_)
        targets_file(self.path, [("logits", "graphs", 2)], self.counts + 1, self.store.digest)
        self.refuses("other numbers of nodes", open_)
        self.refuses("cannot open the cache of targets", lambda: kdgat.Targets(self.folder / "none"))
        self.refuses("is a folder, expected a file", lambda: kdgat.Targets(self.folder))

    def test_records_that_are_written_later_are_found(self):
        targets_file(self.path, [("logits", "graphs", 2)], self.counts, self.store.digest, missing=range(30))
        targets = kdgat.Targets(self.path, self.store)
        self.assertFalse(targets.has([5]).any())
        targets_file(self.folder / "b", [("logits", "graphs", 2)], self.counts, self.store.digest)
        with open(self.path, "r+b") as file:
            file.write((self.folder / "b").read_bytes())
        self.assertEqual(targets.rows([5]).shape, (1, 2))


class Nodes(Files):
    def arrays(self, features: str) -> dict:
        random, nodes = np.random.default_rng(2), 50
        edges = sorted({(int(target), int(source)) for target, source in random.integers(0, nodes, (300, 2)) if target != source})
        counts = np.bincount([target for target, _ in edges], minlength=nodes)
        found = {"indptr": np.concatenate([[0], np.cumsum(counts)]).astype("<u8"), "indices": np.array([source for _, source in edges], "<u4")}
        self.x = np.where(random.random((nodes, 6)) < 0.6, 0, random.random((nodes, 6))).astype("<f4")
        if features == "sparse":
            found["feature_indptr"] = np.concatenate([[0], np.cumsum((self.x != 0).sum(1))]).astype("<u8")
            found["feature_indices"] = np.nonzero(self.x)[1].astype("<u4")
            found["feature_values"] = self.x[np.nonzero(self.x)]
        else:
            self.x = self.x.astype("<f2" if features == "half" else "<f4")
            found["features"] = self.x
        found["labels"] = random.integers(-1, 4, nodes).astype("<i4")
        return {**found, "split": (np.arange(nodes) % 4).astype("u1"), "node_hashes": np.zeros(nodes, "<u8")}

    def test_arrays_are_those_of_the_file(self):
        for features in ("dense", "half", "sparse"):
            arrays = self.arrays(features)
            store = kdgat.NodeStore(node_file(self.folder / f"{features}.kdgat-nodes", arrays, features, 6))
            self.assertEqual((len(store), store.num_edges, store.num_classes, store.num_features), (50, len(arrays["indices"]), 4, 6))
            self.assertTrue(np.array_equal(store.labels, arrays["labels"]))
            self.assertTrue(np.array_equal(store.x([4, 0, 4]), self.x[[4, 0, 4]].astype("f4")), features)
            self.assertTrue(np.array_equal(store.x(), self.x.astype("f4")))
            for at_once, long_row in ((5, 64), (5, 0), (1 << 15, 0)):
                with mock.patch.multiple(node_store, _VALUES_AT_ONCE=at_once, _LONG_ROW=long_row):
                    self.assertTrue(np.array_equal(store.x([*range(50), 3]), self.x[[*range(50), 3]].astype("f4")))
            index = store.edge_index()
            self.assertEqual(index[0, store.indptr[7] : store.indptr[8]].tolist(), store.indices[store.indptr[7] : store.indptr[8]].tolist())
            self.assertTrue((index[1, store.indptr[7] : store.indptr[8]] == 7).all())
            self.assertEqual(store.select("validation").tolist(), list(range(2, 50, 4)))
            found = store.sample([3, 5], [4, 2], seed=1, epoch=2)
            copy = pickle.loads(pickle.dumps(store)).sample([3, 5], [4, 2], seed=1, epoch=2)
            self.assertEqual(found.nodes.tolist(), copy.nodes.tolist())
            self.refuses("node 50 does not exist", lambda: store.x([50]), IndexError)
            self.refuses("node -1 does not exist", lambda: store.sample([-1], [2]), IndexError)
            self.refuses("fanouts=", lambda: store.sample([1], [-2]), ValueError)
        self.refuses("are sparse: use x", lambda: store.features, ValueError)

    def test_forked_processes_draw_the_same_samples(self):
        store = kdgat.NodeStore(node_file(self.folder / "g.kdgat-nodes", self.arrays("half"), "half", 6))
        expected = store.sample(range(50), [4, 2], seed=1).nodes.tolist()
        with multiprocessing.get_context("fork").Pool(1) as pool:
            self.assertEqual(pool.apply(store.sample, (range(50), [4, 2], 1)).nodes.tolist(), expected)

    @unittest.skipUnless(ProgramSampler.is_available, "the package has no compiled module")
    def test_the_compiled_sampler_names_damaged_and_exchanged_stores(self):
        arrays = self.arrays("dense")
        other = {**arrays, "indices": arrays["indices"] + np.uint32(1 << 20)}
        damaged = kdgat.NodeStore(node_file(self.folder / "d.kdgat-nodes", other, "dense", 6))
        self.refuses("d.kdgat-nodes is damaged .*: delete it", lambda: damaged.sample(range(50), [4, 2]))
        path = node_file(self.folder / "g.kdgat-nodes", arrays, "dense", 6)
        store, gone = kdgat.NodeStore(path), kdgat.NodeStore(path)
        content = path.read_bytes()
        path.unlink()
        self.refuses("cannot open .*g.kdgat-nodes: No such file", lambda: gone.sample([1], [2]))
        node_file(path, arrays, "dense", 6, digest="ef" * 32)
        self.refuses("is another store than before", lambda: store.sample([1], [2]))
        path.write_bytes(content)
        self.assertEqual(store.sample([1], [2]).seed_rows.tolist(), [0])

    @unittest.skipUnless(ProgramSampler.is_available, "the package has no compiled module")
    def test_other_threads_run_while_the_compiled_sampler_draws(self):
        store = kdgat.NodeStore(node_file(self.folder / "g.kdgat-nodes", self.arrays("dense"), "dense", 6))
        inside = seen = False

        def draw() -> None:
            nonlocal inside
            # The compiled function alone: NumPy's also let others run.
            sample, seeds = store._sampler._graph.sample, np.tile(np.arange(50), 20_000)
            for _ in range(100):
                inside = True
                sample(seeds, [4, 2], 0, 0)
                inside = False
                if seen:
                    break

        store.sample([1], [2])
        interval = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, interval)
        # No thread is interrupted from now on: it lets others run, or they do not run.
        sys.setswitchinterval(1000)
        thread = threading.Thread(target=draw, daemon=True)
        thread.start()
        while not seen and thread.is_alive():
            time.sleep(0)
            seen = inside
        thread.join()
        self.assertTrue(seen, "nobody else ran while it drew")

    def test_targets_of_nodes_are_by_node(self):
        store = kdgat.NodeStore(node_file(self.folder / "g.kdgat-nodes", self.arrays("dense"), "dense", 6))
        rows = targets_file(self.folder / "t", [("logits of nodes", "nodes", 4)], np.ones(50, int), store.digest, missing=[9])
        targets = kdgat.Targets(self.folder / "t", store)
        self.assertTrue(np.array_equal(targets.rows([8, 2]), np.concatenate([rows[8][0], rows[2][0]])))
        self.refuses("no targets of node 9", lambda: targets.rows([9]))

    def test_damaged_and_foreign_stores_are_refused_with_what_to_do(self):
        path = node_file(self.folder / "g.kdgat-nodes", self.arrays("dense"), "dense", 6)
        content = path.read_bytes()
        for changed, text in (
            (b"x" + content[1:], "does not begin as a store of a graph's nodes"),
            (content[:10], "its header is cut off"),
            (content[:3000], "its header is cut off"),
            (content[:40] + b"x" + content[41:], "the checksum of its header is wrong"),
            (content[:8] + b"\x01" + content[9:], "has format version 1, this kdgat reads version 2: build it again"),
            (content[:-4096], "bytes of arrays, expected"),
            (content[:5000] + bytes([content[5000] ^ 1]) + content[5001:], "the checksum of array indptr is wrong"),
        ):
            path.write_bytes(changed)
            self.refuses(text, lambda: kdgat.NodeStore(path))
        path.write_bytes(b"")
        self.refuses("does not begin", lambda: kdgat.NodeStore(path))
        self.refuses("cannot open", lambda: kdgat.NodeStore(self.folder / "none"))
        path.write_bytes(content)
        store = kdgat.NodeStore(path)
        os.truncate(path, 8192)
        self.refuses("it has become shorter", lambda: store.sample([1], [2]))

    def test_a_student_of_a_teacher_learns_on_tensors_of_samples(self):
        path = SmallGraphs(sizes()).write(self.folder / "store")
        arrays, tensors = (list(kdgat.Store(path, form=form).batches(7, shuffle=True, seed=1)) for form in ("numpy", "torch"))
        for array, tensor in zip(arrays, tensors):
            self.assertTrue(np.array_equal(array.x, tensor.x.numpy()) and np.array_equal(array.edge_index, tensor.edge_index.numpy()))
        nodes = kdgat.NodeStore(node_file(self.folder / "g.kdgat-nodes", self.arrays("dense"), "dense", 6))
        batches = []
        for seeds in ([3, 5, 8], [8, 20], [41]):
            sample = nodes.sample(seeds, [4, 2], seed=1)
            source, target = torch.from_numpy(sample.layers[0].edge_index)
            x, rows = torch.from_numpy(nodes.x(sample.nodes)), torch.from_numpy(sample.nodes)
            summed = torch.zeros(sample.layers[0].num_targets, 6).index_add_(0, target, x[source])
            batches.append({"x": summed, "id": rows[: len(summed)]})
        torch.manual_seed(1)
        module, student = torch.nn.Linear(6, 4), torch.nn.Linear(6, 4)
        optimizer = torch.optim.Adam(student.parameters(), lr=0.1)
        losses = []
        teacher = kdgat.Teacher(module, outputs=lambda out: out, call=lambda module, batch: module(batch["x"]), ids="id", log=lambda line: None)
        with teacher:
            for _ in range(3):
                for batch, targets in teacher.distill(batches):
                    logits = student(batch["x"])
                    loss = kdgat.losses.kl(logits, targets, 2.0)
                    self.assertEqual(loss.item(), kdgat.losses.kl(logits, module(batch["x"]).detach(), 2.0).item())
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
        self.assertLess(sum(losses[-3:]), sum(losses[:3]))


if __name__ == "__main__":
    multiprocessing.freeze_support()
    unittest.main()
