"""Snippets of docs/python.md and of the README, and the examples."""

import contextlib
import importlib.util
import io
import os
import pathlib
import re
import subprocess
import sys
import types
import unittest

import numpy as np
import torch
from torch import nn

import kdgat
from kdgat.rows import Encoding
from stores import SmallGraphs, node_file, targets_file

torch.set_num_threads(1)
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent.parent
VOCABULARY = 100


class Language(nn.Module):
    """Takes and returns what a language model of transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 16), nn.Linear(16, VOCABULARY)

    def forward(self, input_ids, id=None):
        return types.SimpleNamespace(logits=self.head(self.embed(input_ids)))


def names() -> dict:
    """What the snippets leave to the reader."""
    torch.manual_seed(0)
    tokens = torch.randint(0, VOCABULARY, (12, 7))
    student = Language()
    images = (torch.randn(8, 3, 4, 4), torch.arange(8) % 3)
    return {
        "big_model": Language(),
        "student": student,
        "loader": [{"input_ids": part} for part in tokens.split(4)],
        "batch": {"input_ids": tokens},
        "batch_with_ids": {"input_ids": tokens, "id": torch.arange(12)},
        "task_loss": lambda logits, batch: nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["input_ids"][:, 1:].flatten()),
        "optimizer": torch.optim.SGD(student.parameters(), lr=0.1),
        "classifier": nn.Sequential(nn.Flatten(), nn.Linear(48, 3)),
        "small_classifier": nn.Sequential(nn.Flatten(), nn.Linear(48, 3)),
        "image_loader": [images],
        "kdgat": kdgat,
    }


def snippets(page: str) -> list:
    return re.findall(r"^```python\n(.*?)^```$", (REPOSITORY / page).read_text(), re.M | re.S)


class Snippets(unittest.TestCase):
    def test_snippets_run(self):
        for page, least in (("docs/python.md", 4), ("README.md", 1)):
            found = snippets(page)
            self.assertGreaterEqual(len(found), least, page)
            space = names()
            for code in found:
                exec(compile(code, page, "exec"), space)
            self.assertTrue(torch.isfinite(space["loss"]), page)

    def test_snippets_on_stores_run(self):
        """On small stores with the names that the page has for larger ones."""
        stores = pathlib.Path("stores")
        path = SmallGraphs([(graph % 5 + 1, graph % 7) for graph in range(40)], kind="classes").write(stores / "PROTEINS-4fd037250b0e")
        store = kdgat.Store(path)
        (stores / "targets").mkdir()
        cache = stores / "targets" / "PROTEINS-acf131617bcc-e41f066d8cb9-f32.targets"
        targets_file(cache, [("logits", "graphs", 3)], store.node_counts(), store.digest, missing=[4])
        ring = {"indptr": np.arange(0, 41, 2).astype("<u8"), "indices": np.zeros(40, "<u4"), "features": np.ones((20, 3), "<f4")}
        ring["indices"] = np.sort((np.arange(20)[:, None] + [1, 19]) % 20, axis=1).astype("<u4").reshape(-1)
        node_file(stores / "cora-d4d49a3a4da4.kdgat-nodes", {**ring, "labels": np.zeros(20, "<i4")}, "dense", 3)
        found = snippets("docs/python-data.md")
        self.assertEqual(len(found), 4)
        space: dict = {}
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            for code in found:
                exec(compile(code, "docs/python-data.md", "exec"), space)
        self.assertIn("40 classification", printed.getvalue())
        self.assertEqual(space["logits"].shape, (7, 3))
        self.assertEqual(space["sample"].layers[-1].num_targets, 3)

    def test_the_bytes_of_a_token_are_those_of_the_page(self):
        encoding = Encoding("logits", (32_000,), True, "f32", 64, (1.0, 2.0, 4.0))
        self.assertIn(f"{encoding.row_bytes} bytes a token with up to 65,536 classes", (REPOSITORY / "docs/python.md").read_text())
        teacher = kdgat.Teacher(nn.Embedding(50, 32_000), cache="bytes/", top_k=64, log=lambda line: None)
        tokens = torch.randint(0, 50, (6, 40))
        teacher.targets(tokens)
        teacher.close()
        size = sum(path.stat().st_size for path in pathlib.Path("bytes").iterdir())
        self.assertLess(size / tokens.numel(), 400)


class Examples(unittest.TestCase):
    def run_example(self, needs: str, name: str, *arguments: str) -> str:
        missing = [module for module in needs.split() if importlib.util.find_spec(module) is None]
        if missing:
            self.skipTest(f"examples/python/{name} {' '.join(arguments[:1])}: this Python has no {', '.join(missing)}")
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "python"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-W", "ignore", str(REPOSITORY / "examples/python" / name), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_graphs(self):
        said = self.run_example("torch_geometric", "graphs.py", "--graphs", "64", "--epochs", "2")
        self.assertIn("64 of 128 items from the cache (50.0 %)", said)

    def test_gat_on_a_store(self):
        path = SmallGraphs([(graph % 5 + 1, graph % 7) for graph in range(40)], kind="classes").write(pathlib.Path("gat-store"))
        store = kdgat.Store(path)
        targets_file(pathlib.Path("gat.targets"), [("logits", "graphs", 3)], store.node_counts(), store.digest, missing=range(30, 40))
        said = self.run_example("torch_geometric", "gat.py", "gat-store", "gat.targets", "--epochs", "2")
        self.assertIn("30 graphs with targets, 10 held out", said)

    def test_image_classifier(self):
        said = self.run_example("", "image_classifier.py", "--images", "128", "--epochs", "2", "--workers", "1")
        self.assertIn("128 of 256 items from the cache (50.0 %)", said)

    def test_image_classifier_with_lightning(self):
        said = self.run_example("lightning", "image_classifier.py", "--lightning", "--images", "128", "--epochs", "2", "--workers", "0")
        self.assertIn("128 of 256 items from the cache (50.0 %)", said)

    def test_language_model(self):
        arguments = ["--texts", "16", "--teacher-steps", "3", "--epochs", "2", "--vocabulary", "1000", "--batch", "8"]
        self.assertIn("bytes a token", self.run_example("transformers", "language_model.py", *arguments))

    def test_language_model_with_trainer(self):
        arguments = ["--trainer", "--texts", "16", "--teacher-steps", "3", "--epochs", "2", "--vocabulary", "1000", "--batch", "8"]
        self.assertIn(
            "16 of 32 items from the cache (50.0 %)", self.run_example("transformers accelerate", "language_model.py", *arguments)
        )


if __name__ == "__main__":
    unittest.main()
