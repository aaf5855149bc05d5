"""The teacher in a training loop: equal losses, random numbers, items of any length, graphs, and what is refused."""

import random
import tempfile
import unittest
import warnings

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import kdgat
from simulated import Simulated

# Small models: threads cost more than they give, and a child that was forked has none.
torch.set_num_threads(1)
INPUTS = torch.randn(90, 12, generator=torch.Generator().manual_seed(3))


def silent(line: str) -> None:
    """Takes what a teacher logs."""


def big() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 6))


def small(inputs: int = 12, outputs: int = 6) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, outputs))


def steps(pairs, student=None):
    """Trains a student on pairs of batches and targets. Returns losses."""
    student = student or small()
    optimizer = torch.optim.Adam(student.parameters(), lr=0.01)
    losses = []
    for batch, targets in pairs:
        x = batch[0] if isinstance(batch, (tuple, list)) else batch
        # Numbers of Python and NumPy are part of the loss, so that a shift of theirs shows.
        noise = random.random() + numpy.random.rand()
        loss = kdgat.losses.kl(student(x), targets, 2.0) * (1 + 0.01 * noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def seed() -> None:
    torch.manual_seed(11)
    random.seed(11)
    numpy.random.seed(11)


class Folders(unittest.TestCase):
    def folder(self) -> str:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    def teacher(self, module=None, *arguments, **settings) -> kdgat.Teacher:
        teacher = kdgat.Teacher(module or big(), *arguments, **{"log": silent, **settings})
        self.addCleanup(teacher.close)
        return teacher


class Losses(Folders):
    def plain(self, loader, epochs):
        module = big().eval()
        seed()
        for _ in range(epochs):
            for batch in loader:
                with torch.no_grad():
                    targets = module(batch[0])
                yield batch, targets

    def test_losses_are_those_of_the_plain_loop_bit_by_bit(self):
        dataset = TensorDataset(INPUTS)
        for shuffle in (False, True):
            make = lambda: DataLoader(dataset, batch_size=16, shuffle=shuffle)
            seed()
            expected = steps(self.plain(make(), 3))
            settings = [{"cache": cache, "burst": burst} for cache in (None, True, self.folder()) for burst in (1, 3, 100)]
            settings += [{"strategy": strategy, "device": Simulated(), "burst": 3} for strategy in ("resident", "forward")]
            for setting in settings:
                burst = setting.pop("burst")
                teacher = self.teacher(**setting)
                student = small()
                seed()
                found = steps((pair for _ in range(3) for pair in teacher.distill(make(), burst=burst)), student)
                first = len(found) // 3
                self.assertEqual(found[:first], expected[:first], setting)
                if shuffle and setting.get("cache"):
                    # Rows were computed in another batch, whose sums are rounded in another order.
                    self.assertLess(max(abs(one - other) for one, other in zip(found, expected)), 1e-4)
                else:
                    self.assertEqual(found, expected, setting)
                teacher.close()

    def test_loaders_that_draw_do_not_shift_the_student(self):
        """Augmentation in the process of the training loop: batches and losses do not depend on the burst, nor on the teacher."""

        class Augmented(Dataset):
            def __len__(self):
                return 40

            def __getitem__(self, item):
                return INPUTS[item] + 0.1 * torch.randn(12) + random.random() + numpy.random.rand()

        class Draws(nn.Module):
            """Draws numbers that its output does not depend on."""

            def __init__(self):
                super().__init__()
                self.inner = big()

            def forward(self, x):
                torch.rand(3), random.random(), numpy.random.rand()
                return self.inner(x)

        found = []
        for module in (big(), Draws()):
            for burst in (1, 4, 100):
                teacher = self.teacher(module)
                seed()
                batches = []
                pairs = teacher.distill(DataLoader(Augmented(), batch_size=8, shuffle=True), burst=burst)
                losses = steps((batches.append(batch) or batch, targets) for batch, targets in pairs)
                found.append((torch.stack(batches), losses))
        for batches, losses in found[1:]:
            self.assertTrue(torch.equal(batches, found[0][0]))
            self.assertEqual(losses, found[0][1])
        # The plain loop over the same batches: the first one's draws come before the student's.
        module = big().eval()

        def plain():
            dataset = Augmented()
            order = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(dataset), 8, False)
            torch.empty((), dtype=torch.int64).random_()
            torch.stack([dataset[item] for item in next(iter(order))])
            for batch in found[0][0]:
                with torch.no_grad():
                    targets = module(batch)
                yield batch, targets

        seed()
        self.assertEqual(steps(plain()), found[0][1])

    def test_half_precision_and_the_largest_logits_are_the_same_live_and_cached(self):
        for settings in ({"precision": "f16"}, {"top_k": 3, "temperatures": [2.0]}):
            for cache in (None, True, self.folder()):
                if cache is None and "precision" in settings:
                    continue
                teacher = self.teacher(cache=cache, **settings)
                found = []
                for _ in range(2):
                    found.append(steps(teacher.distill(DataLoader(TensorDataset(INPUTS), batch_size=16))))
                    seed()
                    found[-1] = steps(teacher.distill(DataLoader(TensorDataset(INPUTS), batch_size=16)))
                self.assertEqual(found[0], found[1])

    def test_targets_that_a_loop_changes_stay_right_in_the_cache(self):
        teacher = self.teacher(cache=True)
        expected = [targets.values.clone() for _, targets in self.teacher().distill(INPUTS.split(16))]
        for _ in range(3):
            for (_, targets), right in zip(teacher.distill(INPUTS.split(16)), expected):
                self.assertTrue(torch.equal(targets.values, right))
                targets.values.zero_()


class Items(Folders):
    def test_another_order_and_batch_size_hit_the_cache(self):
        folder = self.folder()
        expected = big().eval()(INPUTS).detach()
        order = torch.randperm(90, generator=torch.Generator().manual_seed(1))
        first = self.teacher(cache=folder)
        list(first.distill(DataLoader(TensorDataset(INPUTS[:60]), batch_size=16)))
        first.close()
        second = self.teacher(cache=folder)
        found = torch.cat([targets.values for _, targets in second.distill(INPUTS[order].split(7), burst=3)])
        self.assertLess((found - expected[order]).abs().max().item(), 1e-5)
        summary = second.summary()
        self.assertEqual((summary.cached_hits, summary.computed_items), (60, 30))
        self.assertIn("60 of 90 items from the cache (66.7 %)", str(summary))

    def test_ids_are_whole_numbers_or_texts(self):
        for make in (lambda at: at, lambda at: [f"item {number}" for number in at.tolist()]):
            teacher = self.teacher(inputs=["x"], ids="id", cache=True, call=lambda module, batch: module(batch["x"]))
            batches = [{"x": INPUTS[at], "id": make(at)} for at in torch.arange(90).split(8)]
            list(teacher.distill(batches))
            changed = [{"x": batch["x"] + 1, "id": batch["id"]} for batch in batches[::-1]]
            for batch, targets in teacher.distill(changed):
                self.assertLess((targets.values - big().eval()(batch["x"] - 1)).abs().max().item(), 1e-5)
            self.assertEqual(teacher.summary().cached_hits, 90)
        for ids, text in (([1.5, 2.0], "whole numbers or texts"), ([1, 2, 3], "3 IDs for a batch of 2"), ([[1], [2]], r"shape \[2, 1\]")):
            with self.assertRaisesRegex(ValueError, text):
                self.teacher(ids="id", inputs=["x"], cache=True, call=lambda module, batch: module(batch["x"])).targets(
                    {"x": INPUTS[:2], "id": ids}
                )
        # The IDs of a batch are no input of the module.
        module = nn.Linear(12, 3)
        self.teacher(module, ids=1, cache=True).targets((INPUTS[:2], torch.arange(2)))
        with self.assertRaisesRegex(ValueError, "has no 'id'; it has "):
            self.teacher(ids="id", cache=True).targets({"input": INPUTS[:2]})

    def test_tokens_of_any_padding(self):
        class Tokens(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(4)
                self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

            def forward(self, input_ids, attention_mask):
                x = self.embed(input_ids) * attention_mask[..., None]
                # The mean of the real tokens, so that they depend on each other, but not on the padding.
                x = x + x.sum(1, keepdim=True) / attention_mask.sum(1)[:, None, None]
                return {"logits": self.head(x), "hidden": (x * attention_mask[..., None]).sum(1)}

        generator = torch.Generator().manual_seed(5)
        texts = [torch.randint(0, 50, (length,), generator=generator) for length in (3, 9, 1, 5, 12, 7, 2, 9)]

        def batch(numbers, width, left):
            ids, mask = torch.full((len(numbers), width), 49), torch.zeros(len(numbers), width, dtype=torch.int64)
            for row, number in enumerate(numbers):
                at = slice(width - len(texts[number]), width) if left else slice(0, len(texts[number]))
                ids[row, at], mask[row, at] = texts[number], 1
            return {"input_ids": ids, "attention_mask": mask}

        module = Tokens()
        for settings in ({"top_k": 4}, {}):
            folder = self.folder()
            teacher = self.teacher(module, cache=folder, mask="attention_mask", **settings)
            list(teacher.distill([batch(range(4), 12, False), batch(range(4, 8), 12, False)]))
            teacher.close()
            teacher = self.teacher(module, cache=folder, mask=lambda batch: batch["attention_mask"], **settings)
            other = batch([7, 2, 4], 15, True)
            targets = teacher.targets(other)
            self.assertEqual(teacher.summary().cached_hits, 3)
            with torch.no_grad():
                expected = module(**other)
            mask = other["attention_mask"] == 1
            self.assertTrue(torch.equal(targets["logits"].mask, mask))
            self.assertLess((targets["hidden"].values - expected["hidden"]).abs().max().item(), 1e-5)
            if settings:
                top, indices = expected["logits"][mask].topk(4)
                self.assertTrue(torch.equal(targets["logits"].indices, indices))
                self.assertLess((targets["logits"].values + targets["logits"].top[:, None] - top).abs().max().item(), 1e-3)
            else:
                self.assertLess((targets["logits"].values - expected["logits"][mask]).abs().max().item(), 1e-5)
            self.assertLess(kdgat.losses.kl(expected["logits"], targets["logits"]).item(), 1e-4)
        # Without a mask, padding is a part of the input; by ID, another length is noticed.
        plain = {"input_ids": torch.zeros(2, 3, dtype=torch.int64), "attention_mask": torch.ones(2, 3), "id": torch.arange(2)}
        wide = {**plain, "input_ids": torch.zeros(2, 4, dtype=torch.int64), "attention_mask": torch.ones(2, 4)}
        teacher = self.teacher(module, ids="id", cache=True, mask="attention_mask")
        teacher.targets(plain)
        with self.assertRaisesRegex(ValueError, "item 0 has 3 rows in the cache and 4 in the batch; do IDs name the same items"):
            teacher.targets(wide)

    def test_shared_and_named_inputs(self):
        class Scaled(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(12, 3)

            def forward(self, x, scale, name="a"):
                return self.inner(x) * scale[0]

        teacher = self.teacher(Scaled(), cache=True)
        one = {"x": INPUTS[:8], "scale": torch.tensor([2.0, 1.0]), "name": "a"}
        teacher.targets(one)
        teacher.targets(one)
        self.assertEqual(teacher.summary().cached_hits, 8)
        for changed in ({"scale": torch.tensor([3.0, 1.0])}, {"name": "b"}):
            teacher.targets({**one, **changed})
        self.assertEqual(teacher.summary().cached_hits, 8, "an input that all items share is a part of each")
        # A tuple's labels are no input.
        teacher = self.teacher(inputs=[0], cache=True)
        teacher.targets((INPUTS[:8], torch.zeros(8)))
        teacher.targets((INPUTS[:8], torch.ones(8)))
        self.assertEqual(teacher.summary().cached_hits, 8)
        with self.assertRaisesRegex(ValueError, "the input 'x' is a object, which has no digest"):
            self.teacher(Scaled(), cache=True, call=lambda module, batch: None).targets({"x": object(), "y": INPUTS})

    def test_graphs(self):
        try:
            from torch_geometric.data import Batch, Data
            from torch_geometric.nn import GATConv, global_mean_pool
        except ImportError:
            self.skipTest("PyTorch Geometric is not installed")
        torch.manual_seed(1)
        graphs = []
        for nodes in (3, 1, 6, 4, 2, 5, 8, 3):
            edges = torch.randint(0, nodes, (2, 2 * nodes))
            graphs.append(Data(x=torch.randn(nodes, 5), edge_index=edges))

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.head = GATConv(5, 16), nn.Linear(16, 4)

            def forward(self, batch):
                x = self.conv(batch.x, batch.edge_index).relu()
                return {"nodes": x, "logits": self.head(global_mean_pool(x, batch.batch))}

        module = Net()
        folder = self.folder()
        teacher = self.teacher(module, cache=folder)
        list(teacher.distill([Batch.from_data_list(graphs[:5]), Batch.from_data_list(graphs[5:])]))
        teacher.close()
        teacher = self.teacher(module, cache=folder)
        order = [6, 0, 3, 1, 7, 2]
        batch = Batch.from_data_list(
            [graphs[number] for number in order] + [Data(x=torch.randn(4, 5), edge_index=torch.zeros(2, 1, dtype=torch.int64))]
        )
        targets = teacher.targets(batch)
        self.assertEqual((teacher.summary().cached_hits, teacher.summary().computed_items), (6, 1))
        expected = module(batch)
        for name in expected:
            self.assertLess((targets[name].values - expected[name]).abs().max().item(), 1e-5)
        with self.assertRaisesRegex(ValueError, "every graph of the batch has one node"):
            self.teacher(module, "nodes").targets(Batch.from_data_list([graphs[1], graphs[1]]))


class Refused(Folders):
    def test_modules_whose_passes_differ(self):
        class Active(nn.Module):
            def forward(self, x):
                return nn.functional.dropout(x, 0.5)

        class Centred(nn.Module):
            def forward(self, x):
                return x - x.mean(0)

        for module, text in (
            (Active(), "two passes of the teacher over the same batch differ .*dropout that ignores `training`"),
            (Centred(), "depend on the others in its batch .*half of a batch differs"),
            (nn.Sequential(nn.BatchNorm1d(12, track_running_stats=False)), r"statistics of the batch \(0 without running averages\)"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                self.teacher(module).targets(INPUTS[:8])

    def test_the_cache_of_another_teacher(self):
        folder = self.folder()
        self.teacher(cache=folder, top_k=3).targets(INPUTS[:8])
        other = big()
        with torch.no_grad():
            other[0].weight[0, 0] += 1e-6
        for module, settings, text in (
            (other, {"top_k": 3}, "weights: "),
            (big(), {"top_k": 4}, "top_k: 3 in the cache, 4 here"),
            (big(), {}, "top_k: 3 in the cache, null here"),
            (big(), {"top_k": 3, "temperatures": [1.0]}, "temperatures: "),
            (big(), {"top_k": 3, "ids": 0}, 'keys: "contents" in the cache, "ids" here'),
            (big(), {"top_k": 3, "outputs": lambda out: out.detach()}, 'outputs: null in the cache, "function of detach" here'),
        ):
            with self.assertRaisesRegex(ValueError, text):
                self.teacher(module, cache=folder, **settings)

    def test_a_cache_whose_rows_are_others(self):
        """The same weights and names, but other numbers."""
        for settings in ({}, {"top_k": 3}):
            folder = self.folder()
            self.teacher(cache=folder, outputs=lambda out: out * 1, **settings).targets(INPUTS[:8])
            self.teacher(cache=folder, outputs=lambda out: out * 1, **settings).targets(INPUTS[:8])
            with self.assertRaisesRegex(ValueError, "has other targets than the teacher computes: output 'output' differs"):
                self.teacher(cache=folder, outputs=lambda out: out * 2, **settings).targets(INPUTS[:8])

    def test_weights_that_change(self):
        module = big()
        teacher = self.teacher(module, cache=True)
        teacher.targets(INPUTS[:8])
        with torch.no_grad():
            module[0].weight.add_(1)
        teacher.targets(INPUTS[:8])
        with self.assertRaisesRegex(RuntimeError, "weights have changed since its cache was opened"):
            teacher.targets(INPUTS[8:16])
        # Without a cache a teacher may learn.
        module = big()
        teacher = self.teacher(module, strategy="forward", device=Simulated())
        teacher.targets(INPUTS[:8])
        with torch.no_grad():
            module[4].bias.add_(1)
        self.assertTrue(torch.equal(teacher.targets(INPUTS[:8]).values, module.eval()(INPUTS[:8])))

    def test_numbers_and_shapes(self):
        for module, settings, text in (
            (nn.Linear(12, 3), {"top_k": 4}, "top_k=4 of rows of shape"),
            (nn.Flatten(0), {}, r"the shape \[96\]; expected \[8, width\]"),
            (nn.Identity(), {"outputs": "logits"}, r"outputs='logits': the teacher's output \(Tensor\) has no tensor"),
            (nn.Identity(), {"outputs": lambda out: [out]}, "the teacher's outputs are list; choose tensors"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                self.teacher(module, cache=True, **settings).targets(INPUTS[:8])
        large = INPUTS[:8] * 1e6
        with self.assertRaisesRegex(ValueError, "numbers beyond 65504, which f16 cannot represent"):
            self.teacher(nn.Identity(), cache=True, precision="f16").targets(large)
        for top_k in (None, 3):
            with self.assertRaisesRegex(ValueError, "NaN or infinity"):
                self.teacher(nn.Identity(), cache=True, top_k=top_k).targets(INPUTS[:8] * float("nan"))
        for settings in ({"strategy": "both"}, {"precision": "f8"}, {"top_k": 0}, {"slots": 0}, {"device": "meta"}):
            with self.assertRaises(ValueError, msg=str(settings)):
                kdgat.Teacher(big(), **settings)


class Words(Folders):
    def test_augmented_inputs_are_named(self):
        teacher = self.teacher(cache=True)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for epoch in range(3):
                list(teacher.distill([INPUTS[:16] + epoch]))
        self.assertEqual(len([line for line in said if "0 of 16 items of this epoch were cached" in str(line.message)]), 1)
        self.assertIn("augmented inputs are new inputs", str(teacher.summary()))
        teacher = self.teacher(cache=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in range(3):
                list(teacher.distill([INPUTS[:16]]))

    def test_a_module_that_needs_whole_batches(self):
        class Whole(nn.Module):
            def forward(self, x):
                if len(x) != 16:
                    raise RuntimeError("sixteen, please")
                return x * 2

        lines = []
        teacher = kdgat.Teacher(Whole(), cache=True, log=lines.append)
        teacher.targets(INPUTS[:16])
        targets = teacher.targets(INPUTS[8:24])
        self.assertTrue(torch.equal(targets.values, INPUTS[8:24] * 2))
        self.assertIn("cannot compute a part of a batch (sixteen, please)", lines[-1])


if __name__ == "__main__":
    unittest.main()
