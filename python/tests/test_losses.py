"""Losses, against their formulas and against those of the program."""

import json
import math
import os
import unittest

import torch

import kdgat
from kdgat import losses
from kdgat.rows import Encoding, BatchTargets

torch.set_num_threads(1)


def rows(number: int, classes: int, seed: int) -> torch.Tensor:
    return 6 * torch.rand(number, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 3


def top_k(logits: torch.Tensor, k: int, temperatures=(1.0, 2.0), **settings):
    encoding = Encoding("logits", (logits.shape[1],), False, "f32", k, tuple(temperatures))
    return encoding.decode(encoding.encode(logits), (len(logits),), torch.device("cpu"), None)


def divergence(teacher, student):
    return sum(t * math.log(t / s) for t, s in zip(teacher, student) if t > 0)


class Formulas(unittest.TestCase):
    def test_kl_of_the_largest_logits_has_the_others_as_one_class(self):
        student, teacher = rows(7, 12, 1), 3 * rows(7, 12, 2)
        for temperature in (1.0, 2.0):
            whole = losses.kl(student, teacher, temperature).item()
            previous = 0.0
            for k in (1, 3, 11, 12):
                expected = 0.0
                for one, other in zip((teacher / temperature).softmax(1), (student / temperature).softmax(1)):
                    top = one.argsort(descending=True)[:k].tolist()
                    p, q = one[top].tolist(), other[top].tolist()
                    expected += temperature**2 / 7 * divergence([*p, 1 - sum(p)] if k < 12 else p, [*q, 1 - sum(q)] if k < 12 else q)
                found = losses.kl(student, top_k(teacher, k), temperature).item()
                # Differences from the largest logit are in half precision.
                self.assertLess(abs(found - expected), 2e-3 * max(1, expected), (k, temperature))
                self.assertLess(found, whole + 2e-3)
                self.assertGreater(found, previous - 2e-3)
                previous = found

    def test_excluded_classes_have_no_mass_and_finite_gradients(self):
        teacher = rows(5, 8, 3)
        teacher[:, 4:] = float("-inf")
        student = rows(5, 8, 4).requires_grad_()
        for k in (2, 4, 6):
            loss = losses.kl(student, top_k(teacher, k), 2.0)
            [gradient] = torch.autograd.grad(loss, student)
            self.assertTrue(torch.isfinite(loss) and torch.isfinite(gradient).all() and gradient.abs().sum() > 0, k)

    def test_the_gradient_of_the_largest_logits_is_that_of_all_if_the_rest_is_small(self):
        teacher = rows(5, 50, 5) * 8
        student = rows(5, 50, 6).requires_grad_()
        [whole] = torch.autograd.grad(losses.kl(student, teacher), student)
        [part] = torch.autograd.grad(losses.kl(student, top_k(teacher, 20)), student)
        self.assertLess((whole - part).abs().max().item(), 1e-3)

    def test_wrong_sizes_are_refused(self):
        with self.assertRaisesRegex(ValueError, "temperature=3: .* at the temperatures 1, 2"):
            losses.kl(rows(2, 4, 1), top_k(rows(2, 4, 2), 2), 3.0)
        with self.assertRaisesRegex(ValueError, r"shape \[3, 4\] does not fit the teacher's targets: expected \[2\]"):
            losses.kl(rows(3, 4, 1), rows(2, 4, 2))
        with self.assertRaisesRegex(ValueError, "the student has 5 classes, the teacher 4"):
            losses.kl(rows(2, 5, 1), top_k(rows(2, 4, 2), 2))
        with self.assertRaisesRegex(ValueError, "columns"):
            losses.mse(rows(2, 5, 1), rows(2, 4, 2))
        for loss in (losses.mse, losses.relational, lambda *both: losses.dkd(*both, torch.tensor([0, 1]))):
            with self.assertRaisesRegex(ValueError, "the targets are the top-k"):
                loss(rows(2, 4, 1), top_k(rows(2, 4, 2), 2))
        with self.assertRaisesRegex(ValueError, "labels from -100 to 1: expected classes from 0 to 3"):
            losses.dkd(rows(2, 4, 1), rows(2, 4, 2), torch.tensor([-100, 1]))
        with self.assertRaisesRegex(ValueError, "temperature=0"):
            losses.kl(rows(2, 4, 1), rows(2, 4, 2), 0)

    def test_masked_tokens_do_not_count(self):
        student, teacher = rows(12, 5, 7).view(3, 4, 5), rows(12, 5, 8).view(3, 4, 5)
        mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 1, 1]]) == 1
        labels = torch.arange(12).view(3, 4) % 5
        targets = BatchTargets(teacher[mask], mask)
        for loss in (losses.kl, losses.mse, losses.relational):
            self.assertEqual(loss(student, targets).item(), loss(student[mask], teacher[mask]).item())
        self.assertEqual(losses.dkd(student, targets, labels).item(), losses.dkd(student[mask], teacher[mask], labels[mask]).item())
        self.assertTrue(torch.equal(targets.dense()[mask], teacher[mask]))

    def test_half_precision_is_widened(self):
        student, teacher = rows(4, 6, 1).bfloat16(), rows(4, 6, 2).bfloat16()
        for loss in (losses.kl, losses.mse, losses.relational):
            self.assertEqual(loss(student, teacher).item(), loss(student.float(), teacher.float()).item())


class Program(unittest.TestCase):
    def test_losses_are_those_of_the_program(self):
        """The Rust test writes logits and what the program's losses (crates/kdgat-distill/src/losses.rs) make of them."""
        path = os.environ.get("KDGAT_PROGRAM_LOSSES")
        if path is None:
            self.skipTest("KDGAT_PROGRAM_LOSSES names no file; tests/documents/python_teacher.rs writes it")
        with open(path) as file:
            cases = json.load(file)
        self.assertGreaterEqual(len(cases), 12)
        for case in cases:
            student, teacher = torch.tensor(case["student"]), torch.tensor(case["teacher"])
            found = {
                "kl": lambda: losses.kl(student, teacher, case["temperature"]),
                "dkd": lambda: losses.dkd(student, teacher, torch.tensor(case["labels"]), case["temperature"]),
                "mse": lambda: losses.mse(student, teacher),
                "relational": lambda: losses.relational(student, teacher),
            }[case["loss"]]().item()
            self.assertLess(abs(found - case["value"]), 1e-5 * max(1, abs(case["value"])), case["loss"])


class Package(unittest.TestCase):
    def test_the_package_has_what_it_names(self):
        for name in kdgat.__all__:
            self.assertTrue(hasattr(kdgat, name), name)
        with self.assertRaises(AttributeError):
            kdgat.nothing


if __name__ == "__main__":
    unittest.main()
