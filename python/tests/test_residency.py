"""Where a teacher's weights are, on a simulated device."""

import dataclasses
import unittest

import torch
from torch import nn

import kdgat
from kdgat.planner import Measured, choose
from simulated import OrderFault, Simulated

# Small models: threads cost more than they give, and a child that was forked has none.
torch.set_num_threads(1)
BATCHES = [torch.randn(4, 16, generator=torch.Generator().manual_seed(number)) for number in range(5)]


def model(blocks: int = 6) -> nn.Module:
    torch.manual_seed(1)

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(16, 32)
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 32)) for _ in range(blocks))
            self.last = nn.Linear(32, 5)
            # Tied: a tensor of the first block and of the module itself.
            self.tied = self.blocks[0][0].weight
            self.register_buffer("shift", torch.randn(32))

        def forward(self, x):
            x = self.first(x) + self.shift + self.tied.sum() * 1e-3
            for block in self.blocks:
                x = x + block(x)
            return self.last(x)

    return Deep()


def train(device: Simulated, strategy: str, student_bytes: int = 200_000, burst: int = 2, module: nn.Module = None, **settings):
    """Yields targets of all batches, while each step of the student takes memory. Returns the targets and what was logged."""
    lines = []
    with kdgat.Teacher(module or model(), strategy=strategy, device=device, log=lines.append, **settings) as teacher:
        found = []
        for batch, targets in teacher.distill(BATCHES, burst=burst):
            with device.others_memory(student_bytes):
                found.append(targets.values)
        return found, lines, teacher.summary()


class Strategies(unittest.TestCase):
    def test_targets_are_equal_and_peaks_descend(self):
        plain = model().eval()
        with torch.no_grad():
            expected = [plain(batch) for batch in BATCHES]
        weights = kdgat.Teacher(model(), strategy="forward", device=Simulated()).weights.bytes
        peaks = {}
        # Beside a student whose steps take less than the weights, and one whose steps take more.
        for student_bytes in (weights // 2, 3 * weights):
            for strategy in ("resident", "forward", "layer"):
                device = Simulated()
                found, _, summary = train(device, strategy, student_bytes)
                for one, other in zip(found, expected):
                    self.assertTrue(torch.equal(one, other), strategy)
                self.assertEqual(len(found), len(BATCHES))
                self.assertEqual(device.used, 0, "closing frees everything")
                self.assertEqual(summary.copied_bytes, device.copied_bytes)
                peaks[student_bytes, strategy] = device.peak
        small, large = sorted({size for size, _ in peaks})
        self.assertEqual(peaks[small, "resident"], weights + small)
        self.assertEqual(peaks[small, "forward"], weights)
        self.assertLess(peaks[small, "layer"], peaks[small, "forward"])
        self.assertLess(peaks[small, "forward"], peaks[small, "resident"])
        self.assertEqual((peaks[large, "forward"], peaks[large, "layer"]), (large, large))
        self.assertEqual(peaks[large, "resident"], weights + large)

    def test_layer_copies_each_block_once_a_burst(self):
        module = model()
        bytes_of = {}
        for strategy in ("forward", "layer"):
            for burst in (1, 5):
                device = Simulated()
                # The passes of the check come first.
                with kdgat.Teacher(module, strategy=strategy, device=device) as teacher:
                    teacher.targets(BATCHES[0])
                    before = device.copied_bytes
                    list(teacher.distill(BATCHES, burst=burst))
                bytes_of[strategy, burst] = device.copied_bytes - before
        self.assertEqual(bytes_of["forward", 1], 5 * bytes_of["forward", 5])
        self.assertEqual(bytes_of["layer", 5], bytes_of["forward", 5])
        self.assertEqual(bytes_of["layer", 1], 5 * bytes_of["layer", 5])

    def test_a_rule_of_order_that_is_left_out_faults(self):
        for strategy in ("resident", "forward", "layer"):
            for rule in ("copies_wait", "compute_waits"):
                with self.assertRaises(OrderFault, msg=f"{strategy} without {rule}"):
                    train(Simulated(without={rule}), strategy)
        for slots in (1, 2, 3, 9):
            train(Simulated(), "layer", slots=slots)

    def test_an_error_within_a_block_frees_everything(self):
        class Fails(nn.Module):
            calls = 0

            def forward(self, x):
                Fails.calls += 1
                if Fails.calls > 6:
                    raise KeyError("within a block")
                return x

        for strategy in ("forward", "layer", "resident"):
            Fails.calls = 0
            module = model()
            module.blocks[3].append(Fails())
            before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
            device = Simulated()
            with self.assertRaises(KeyError):
                train(device, strategy, module=module, burst=5)
            self.assertEqual(device.used, 0, strategy)
            self.assertTrue(all(not block._forward_hooks and not block._forward_pre_hooks for block in module.blocks))
            self.assertTrue(all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items()))

    def test_blocks_are_named_or_found(self):
        found, _, _ = train(Simulated(), "layer", blocks=["blocks.1", "blocks.4"])
        other, _, _ = train(Simulated(), "layer", blocks="blocks")
        self.assertTrue(all(torch.equal(one, two) for one, two in zip(found, other)))
        with self.assertRaisesRegex(ValueError, "has no 'layers'; its lists of modules: 'blocks'"):
            train(Simulated(), "layer", blocks="layers")
        with self.assertRaisesRegex(ValueError, "no list of blocks"):
            kdgat.Teacher(nn.Linear(3, 3), strategy="layer")

    def test_dense_layouts_keep_their_strides(self):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten()).to(memory_format=torch.channels_last)
        strides = [tensor.stride() for tensor in module.parameters()]
        images = torch.randn(4, 3, 8, 8)
        expected = module.eval()(images).detach()
        with kdgat.Teacher(module, strategy="forward", device=Simulated()) as teacher:
            self.assertTrue(torch.equal(teacher.targets(images).values, expected))
        self.assertEqual([tensor.stride() for tensor in module.parameters()], strides)


class Auto(unittest.TestCase):
    def test_the_choice_follows_the_memory(self):
        weights = kdgat.Teacher(model(), strategy="forward", device=Simulated()).weights.bytes
        # Both fit, and the time of copies decides; the weights do not fit beside the student.
        for limit, student, expected in (
            (20 * weights, weights, ("resident", "forward")),
            (21 * weights // 10, 3 * weights // 2, ("forward",)),
        ):
            found, lines, summary = train(Simulated(limit), "auto", student)
            self.assertIn(summary.strategy, expected)
            self.assertIn(f"auto chose {summary.strategy}: weights", lines[0])
            self.assertIn("MiB at the student's peak; copies", lines[0])

    def test_a_device_that_the_weights_do_not_fit_has_them_layer_by_layer(self):
        expected, _, _ = train(Simulated(), "resident", 0)
        device = Simulated(kdgat.Teacher(model(), strategy="forward", device=Simulated()).weights.bytes * 3 // 4)
        found, lines, _ = train(device, "auto", 0)
        self.assertTrue(all(torch.equal(one, two) for one, two in zip(found, expected)))
        self.assertIn("out of memory with forward; goes on with layer", "\n".join(lines))
        # Named, a strategy is kept, and the error says what helps.
        with self.assertRaises(RuntimeError) as caught:
            train(Simulated(1000), "forward", 0)
        self.assertIn("simulated: 0 + ", str(caught.exception))
        self.assertIn("strategy 'forward'", "".join(getattr(caught.exception, "__notes__", ["strategy 'forward'"])))

    def test_the_reason_has_the_numbers(self):
        measured = Measured(100 << 20, 20 << 20, 500 << 20, 50 << 20, 150 << 20, 0.05, 0.5, 0.5)
        strategy, reason = choose(measured)
        self.assertEqual(strategy, "forward")
        for changed, expected in (
            ({"free_at_peak": 120 << 20}, "resident"),
            ({"free_at_peak": 120 << 20, "copy_seconds": 0.005}, "forward"),
            ({"free": 140 << 20}, "layer"),
            ({"free": 140 << 20, "layer_weights": None}, "forward"),
            ({"free": None, "free_at_peak": None}, "resident"),
        ):
            self.assertEqual(choose(dataclasses.replace(measured, **changed))[0], expected, changed)
        self.assertIn(
            "weights 100.0 MiB, a visit 150.0 MiB; free 500.0 MiB between steps, 50.0 MiB at the student's peak; copies 50.0 ms", reason
        )


if __name__ == "__main__":
    unittest.main()
