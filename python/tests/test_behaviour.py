"""Errors, interrupts, workers, a full disk, and what is given back."""

import os
import pathlib
import pickle
import resource
import signal
import tempfile
import threading
import unittest
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import kdgat
from simulated import Simulated

# Small models: threads cost more than they give, and a child that was forked has none.
torch.set_num_threads(1)
INPUTS = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))


class Module(nn.Module):
    """Does ``at_call`` in its n-th forward pass."""

    def __init__(self, number=None, at_call=None):
        super().__init__()
        torch.manual_seed(1)
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 4))
        self.calls, self.number, self.at_call = 0, number, at_call

    def forward(self, x):
        self.calls += 1
        if self.calls == self.number:
            self.at_call()
        return self.inner(x)


def silent(line: str) -> None:
    """Takes what a teacher logs."""


def fail() -> None:
    raise LookupError("the cause")


def threads() -> list:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("kdgat")]


class Behaviour(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def teacher(self, module=None, **settings):
        teacher = kdgat.Teacher(module or Module(), **{"log": silent, "cache": self.folder / "cache", **settings})
        self.addCleanup(teacher.close)
        return teacher

    def test_the_module_is_given_back_as_it_was(self):
        module = Module()
        module.inner[0].eval()
        module.inner[2].weight.requires_grad_(False)
        modes = [part.training for part in module.modules()]
        pointers = [tensor.data_ptr() for tensor in module.parameters()]
        for number in (None, 5):
            module.calls, module.number, module.at_call = 0, number, fail
            for settings in ({}, {"strategy": "forward", "device": Simulated()}):
                seen = []
                module.calls = 0
                handle = module.register_forward_hook(lambda *_: seen.append((torch.is_grad_enabled(), module.training)))
                try:
                    with self.teacher(module, cache=None, **settings) as teacher:
                        for batch, targets in teacher.distill(INPUTS.split(8), burst=2):
                            self.assertFalse(targets.values.requires_grad)
                            self.assertTrue(torch.is_grad_enabled())
                            self.assertEqual([part.training for part in module.modules()], modes)
                except LookupError:
                    self.assertEqual(number, 5)
                handle.remove()
                self.assertEqual(set(seen), {(False, False)})
                self.assertEqual([part.training for part in module.modules()], modes)
                self.assertEqual([tensor.requires_grad for tensor in module.parameters()], [True, True, False, True])
        del pointers
        self.assertEqual(threads(), [])

    def test_an_error_of_the_forward_pass_arrives_in_the_loop(self):
        """What was computed before is cached, and the loop can go on."""
        module = Module(6, fail)
        teacher = self.teacher(module)
        got = []
        with self.assertRaises(LookupError) as caught:
            for batch, targets in teacher.distill(INPUTS.split(8), burst=8):
                got.append(batch)
        self.assertEqual(str(caught.exception), "the cause")
        self.assertEqual((got, threads()), ([], []))
        found = [targets.values for _, targets in teacher.distill(INPUTS.split(8), burst=8)]
        self.assertEqual(len(found), 8)
        # Three passes of the check and two more had succeeded: three batches.
        self.assertEqual(teacher.summary().cached_hits, 24)
        self.assertTrue(torch.equal(torch.cat(found), Module().eval()(INPUTS)))

    def test_an_error_of_the_loader_comes_after_the_batches_before_it(self):
        class Broken(Dataset):
            def __len__(self):
                return 64

            def __getitem__(self, item):
                if item == 40:
                    raise ArithmeticError("row 40")
                return INPUTS[item]

        for workers in (0, 2):
            teacher = self.teacher()
            got = []
            with self.assertRaisesRegex(ArithmeticError, "row 40"):
                for batch, targets in teacher.distill(DataLoader(Broken(), batch_size=8, num_workers=workers), burst=4):
                    got.append(batch)
            self.assertTrue(torch.equal(torch.cat(got), INPUTS[:40]))

    def test_workers_of_a_loader(self):
        teacher = self.teacher()
        loader = DataLoader(TensorDataset(INPUTS), batch_size=8, num_workers=2, persistent_workers=True)
        for _ in range(2):
            for (batch,), targets in teacher.distill(loader, burst=3):
                self.assertLess((targets.values - Module().eval()(batch)).abs().max().item(), 1e-5)
        self.assertEqual(teacher.summary().cached_hits, 64)

    def test_control_c_while_the_teacher_computes(self):
        # Where tests run in the background, the shell has turned Ctrl-C off.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        started = []

        def interrupt():
            os.kill(os.getpid(), signal.SIGINT)
            # The training loop has been told before this pass ends.
            stopped.wait(60)

        for settings in ({}, {"strategy": "forward", "device": Simulated()}):
            stopped = threading.Event()
            module = Module(5, interrupt)
            teacher = self.teacher(module, cache=True, **settings)
            join = threading.Thread.join

            def joined(thread, *arguments):
                stopped.set()
                return join(thread, *arguments)

            threading.Thread.join = joined
            try:
                with self.assertRaises(KeyboardInterrupt):
                    for _ in teacher.distill(INPUTS.split(8), burst=8):
                        started.append(1)
            finally:
                threading.Thread.join = join
            self.assertEqual((threads(), module.training, started), ([], True, []))
            self.assertEqual(module.calls, 5, "the rest of the burst is not computed")
            found = [targets.values for _, targets in teacher.distill(INPUTS.split(8))]
            self.assertTrue(torch.equal(torch.cat(found), Module().eval()(INPUTS)))
            self.assertEqual(teacher.summary().cached_hits, 24)

    def test_two_teachers(self):
        other = nn.Sequential(nn.Linear(8, 3))
        one, two = self.teacher(), self.teacher(other, cache=self.folder / "other")
        again = self.teacher()
        for epoch in range(2):
            for batch, targets in one.distill(INPUTS.split(8), burst=2):
                self.assertTrue(torch.equal(two.targets(batch).values, other(batch)))
                self.assertTrue(torch.equal(again.targets(batch).values, targets.values))
        # The thread of the first may still write when the other looks.
        self.assertGreaterEqual(again.summary().cached_hits, 64)

    def test_a_full_disk_ends_the_cache_and_not_the_training(self):
        teacher = self.teacher()
        limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
                found = [targets.values for _ in range(2) for _, targets in teacher.distill(INPUTS.split(8), burst=2)]
                teacher.close()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
                signal.signal(signal.SIGXFSZ, previous)
        self.assertTrue(torch.equal(torch.cat(found), Module().eval()(INPUTS).repeat(2, 1)))
        texts = [str(line.message) for line in said]
        self.assertEqual(len([text for text in texts if "cannot write to the cache" in text]), 1, texts)
        self.assertIn("cannot write to the cache", str(teacher.summary()))

    def test_damaged_records_are_computed_again(self):
        teacher = self.teacher()
        list(teacher.distill(INPUTS.split(8)))
        teacher.close()
        [rows] = (self.folder / "cache").glob("*.rows")
        content = bytearray(rows.read_bytes())
        content[len(content) // 2] ^= 1
        rows.write_bytes(content)
        teacher = self.teacher()
        found = torch.cat([targets.values for _, targets in teacher.distill(INPUTS.split(8))])
        self.assertLess((found - Module().eval()(INPUTS)).abs().max().item(), 1e-6)
        summary = teacher.summary()
        self.assertEqual((summary.damaged_records, summary.computed_items, summary.cached_hits), (1, 1, 63))
        list(teacher.distill(INPUTS.split(8)))
        self.assertEqual(teacher.summary().computed_items, 1)
        # Cut short while it is in use.
        os.truncate(rows, 200)
        found = torch.cat([targets.values for _, targets in teacher.distill(INPUTS.split(8))])
        self.assertLess((found - Module().eval()(INPUTS)).abs().max().item(), 1e-6)

    def test_torchscript(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scripted = torch.jit.script(Module().inner)
        for settings in ({}, {"strategy": "forward", "device": Simulated()}, {"strategy": "resident", "device": Simulated()}):
            teacher = self.teacher(scripted, **settings)
            found = torch.cat([targets.values for _, targets in teacher.distill(INPUTS.split(8))])
            self.assertTrue(torch.equal(found, Module().inner.eval()(INPUTS)))
            self.assertTrue(scripted.training and all(part.training for part in scripted.modules()))
            teacher.close()

    def test_other_processes_need_their_own(self):
        teacher = self.teacher()
        teacher.targets(INPUTS[:8])
        with self.assertRaisesRegex(TypeError, "cannot be sent to another process"):
            pickle.dumps(teacher)
        child = os.fork()
        if child == 0:
            try:
                teacher.targets(INPUTS[:8])
            except RuntimeError as error:
                os._exit(7 if "belongs to another process" in str(error) else 8)
            os._exit(9)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        teacher.close()
        teacher.close()
        with self.assertRaisesRegex(RuntimeError, "the teacher is closed"):
            teacher.targets(INPUTS[:8])

    def test_no_gpu(self):
        if torch.cuda.is_available():
            self.skipTest("this machine has a GPU")
        with self.assertRaisesRegex(ValueError, "device 'cuda': torch finds no GPU"):
            self.teacher(device="cuda")

    def test_a_loop_that_ends_early(self):
        teacher = self.teacher()
        for _ in teacher.distill(INPUTS.split(8), burst=2):
            break
        teacher.close()
        self.assertEqual(threads(), [])
        self.assertEqual(len(self.teacher().store), 16)


if __name__ == "__main__":
    unittest.main()
