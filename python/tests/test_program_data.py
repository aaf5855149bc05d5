"""Stores and targets that the program has just written, read in Python. The program is in PATH; see tests/documents/python_teacher.rs."""

import csv
import pathlib
import random
import tempfile
import unittest

import numpy as np

import kdgat

FOLDER = tempfile.TemporaryDirectory()
PLACE = pathlib.Path(FOLDER.name)
QUICK = {"max_epochs": 1, "threads": 1, "stores_dir": PLACE / "stores", "runs_dir": PLACE / "runs", "teachers_dir": PLACE / "teachers"}
CACHED = {"offload_teacher": True, "teacher_cache": "disk", "teacher_cache_dir": PLACE / "targets"}


def tearDownModule():
    FOLDER.cleanup()


def table(path: pathlib.Path, rows: list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def newest(folder: str, pattern: str) -> pathlib.Path:
    return max((PLACE / folder).glob(pattern), key=lambda path: path.stat().st_mtime_ns)


class Graphs(unittest.TestCase):
    """Trees whose nodes have values, as tables, with sets that the tables give."""

    def test_graphs_and_targets_of_nodes_are_those_of_the_tables_and_the_teacher(self):
        draw = random.Random(4)
        graphs, nodes, edges = [["graph_id", "split"]], [["graph_id", "node_id", "x_0", "c_kind", "y_a", "y_b"]], [["graph_id", "source", "target", "e_0"]]
        trees = []
        for graph in range(60):
            size = draw.randint(2, 8)
            tree = {"x": [], "y": [], "edges": []}
            graphs.append([f"g{graph:02}", ("train", "validation", "test")[min(2, graph // 25)]])
            for node in range(size):
                tree["x"].append(round(draw.random(), 3))
                # The last node has no targets.
                tree["y"].append([round(draw.random(), 3), round(draw.random(), 3)] if node < size - 1 else ["", ""])
                nodes.append([f"g{graph:02}", node, tree["x"][-1], "pq"[node % 2], *tree["y"][-1]])
                if node:
                    tree["edges"].append((draw.randrange(node), node, round(draw.random(), 3)))
                    edges.append([f"g{graph:02}", *tree["edges"][-1]])
            trees.append(tree)
        data = PLACE / "trees"
        for name, rows in (("graphs", graphs), ("nodes", nodes), ("edges", edges)):
            table(data / f"{name}.csv", rows)
        (data / "kdgat-graphs.toml").write_text('task = "node-regression"\ndirected = true\n')
        kdgat.run(["train"], show=False, data=data, preset="gin,teacher", **QUICK)
        kdgat.run(["train"], show=False, data=data, preset="gin,student", **QUICK, **CACHED)
        store = kdgat.Store(newest("stores", "trees-*"))
        store.verify()
        self.assertEqual((len(store), store.schema["task"], store.schema["level"]), (60, "regression", "node"))
        for graph, tree in enumerate(trees):
            batch = store[graph]
            self.assertTrue(np.allclose(batch.x[:, 0], tree["x"]) and batch.x[:, 1:].tolist() == [[1 - n % 2, n % 2] for n in range(len(tree["x"]))])
            self.assertTrue(np.allclose(batch.y, [[value if value != "" else np.nan for value in row] for row in tree["y"]], equal_nan=True))
            found = sorted(zip(*batch.edge_index.tolist(), batch.edge_attr[:, 0].tolist()))
            self.assertTrue(np.allclose(found, sorted(tree["edges"])), graph)
        self.assertEqual([len(store.select(name)) for name in ("train", "validation", "test")], [25, 25, 10])
        targets = kdgat.Targets(newest("targets", "trees-*"), store)
        # The training needs its training and validation graphs, and no others.
        self.assertEqual(targets.has(range(60)).tolist(), 50 * [True] + 10 * [False])
        rows = targets.rows([7, 3], "logits of nodes")
        self.assertEqual(rows.shape, (len(trees[7]["x"]) + len(trees[3]["x"]), 2))
        self.assertTrue(np.array_equal(rows[len(trees[7]["x"]) :], targets.rows([3], "logits of nodes")))
        with self.assertRaisesRegex(kdgat.StoreError, "no targets of graph 55"):
            targets.rows([55])

    def test_one_large_graph_and_its_targets(self):
        path = PLACE / "citations.kdgat-nodes"
        kdgat.run(["data", "simulate", path], show=False, kind="citations", nodes=4096, edges=20000)
        kdgat.run(["train"], show=False, data=path, preset="sage,teacher", fanouts=[4, 3], **QUICK)
        kdgat.run(["train"], show=False, data=path, preset="sage,student", fanouts=[4, 3], teacher_fanouts=[4, 3], **QUICK, **CACHED)
        store = kdgat.NodeStore(path)
        store.verify()
        self.assertEqual((len(store), len(store.labels)), (4096, 4096))
        targets = kdgat.Targets(newest("targets", "citations-*"), store)
        known = np.flatnonzero(targets.has(range(4096)))
        self.assertGreater(len(known), 0)
        self.assertEqual(targets.rows(known).shape, (len(known), store.num_classes))
        self.assertEqual(store.sample([5, 1], [3, None]).layers[-1].num_targets, 2)


if __name__ == "__main__":
    unittest.main()
