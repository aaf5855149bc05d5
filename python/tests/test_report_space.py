"""The script that makes the tables of networks in space, with programs that stand in for kdgat."""

import contextlib
import importlib.util
import io
import math
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

import numpy as np

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "report_space.py"
SPEC = importlib.util.spec_from_file_location("report_space", SCRIPT)
report_space = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(report_space)


class Reports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_intervals_are_those_of_student(self):
        # Quantiles of a table, of 2, 5, 6 and 30 values.
        for count, quantile in ((2, 12.7062), (5, 2.7764), (6, 2.5706), (30, 2.0452)):
            values = [number % 7 / 7 for number in range(count)]
            _, deviation, half = report_space.spread(values, 0.25)
            self.assertAlmostEqual(half, quantile * deviation * math.sqrt(1 / count + 0.25), delta=4e-4 * deviation)
        self.assertEqual(report_space.spread([3.0]), (3.0, None, None))

    def test_the_processor_time_of_an_interrupted_or_failed_run_is_noted(self):
        study = report_space.Study(types.SimpleNamespace(program="", threads=1, arms=None, runs=self.folder))
        ended, interrupts = subprocess.Popen.wait, [KeyboardInterrupt]

        def wait(child, timeout=None):
            if interrupts:
                raise interrupts.pop()
            return ended(child, timeout)

        # Long enough to be seen in tenths of a second.
        work = "import sys, time\nwhile time.process_time() < 0.2: pass\nsys.exit(3)"
        with mock.patch.object(subprocess.Popen, "wait", wait):
            for error in (KeyboardInterrupt, SystemExit):
                with self.assertRaises(error):
                    study.call("a b/1", [sys.executable, "-c", work], self.folder / "log")
        noted = [line.split(",") for line in (self.folder / "seconds.csv").read_text().splitlines()]
        self.assertEqual([run for run, _ in noted], ["a b/1", "a b/1"])
        self.assertTrue(all(float(seconds) >= 0.2 for _, seconds in noted), noted)

    def test_distilled_students_without_those_alone_have_a_row(self):
        result = {"parameters": 7, "metrics": [{"name": name, "value": 0.5} for name in ("energies MAE", "forces MAE")]}
        study = types.SimpleNamespace(seconds=lambda arm: "3")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            report_space.students({("painn-distilled", 1): result}, [1], study)
        self.assertEqual(printed.getvalue().splitlines()[2:], ["| painn distilled | 7 | 0.5000 | 0.5000 |  |  | 3 |", ""])

    def test_options_follow_the_study_and_without_runs_there_are_no_tables(self):
        np.savez(self.folder / "ethanol.npz", energies=np.zeros(20))
        (self.folder / "cells" / "a").mkdir(parents=True)
        data = {"molecules": [self.folder / "ethanol.npz", self.folder / "ethanol.npz"], "trees": [self.folder / "cells"]}
        for study, paths in data.items():
            # A program that fails whatever it is asked for.
            options = ["--seeds", "1,2", "--arms", "none", "--runs", self.folder / study, "--program", "false"]
            done = subprocess.run([sys.executable, SCRIPT, study, *paths, *options], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""), study)


if __name__ == "__main__":
    unittest.main()
