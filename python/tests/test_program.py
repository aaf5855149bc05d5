"""The program from Python: its commands, its runs, and its detector, on a run that the caller has trained.

The variables FOLDER (the working folder of the trainings), RUN (a classifier of CAN windows in it) and LOG (a log of its data) are given
by tests/documents/python_teacher.rs; the program is in PATH.
"""

import contextlib
import csv
import gzip
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from unittest import mock

import kdgat

FOLDER = pathlib.Path(os.environ["FOLDER"])
RUN = FOLDER / os.environ["RUN"]
LOG = FOLDER / os.environ["LOG"]


class Message:
    """A message of python-can, as far as the detector reads it."""

    def __init__(self, timestamp, arbitration_id, data, is_error_frame=False, is_remote_frame=False):
        self.timestamp, self.arbitration_id, self.data = timestamp, arbitration_id, bytearray(data)
        self.is_error_frame, self.is_remote_frame = is_error_frame, is_remote_frame


def frames():
    """Returns the frames of the log as tuples."""
    with (gzip.open if LOG.suffix == ".gz" else open)(LOG, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    return [(float(row["timestamp"]), int(row["arbitration_id"], 16), bytes.fromhex(row["data_field"])) for row in rows]


class Runs(unittest.TestCase):
    def test_a_run_has_its_configuration_metrics_and_weights(self):
        run = kdgat.Run(RUN)
        self.assertEqual((run.command, run.is_finished, run.config["lr"]), ("classifier", True, 0.003))
        metrics = run.metrics
        recorded = list(csv.DictReader((RUN / "metrics.csv").read_text().splitlines()))
        self.assertEqual([float(row["val_loss"]) for row in recorded], [float(loss) for loss in metrics["val_loss"]])
        self.assertEqual(len(metrics["epoch"]), 3)
        weights = run.weights()
        self.assertTrue(weights and all(tensor.size and (tensor == tensor).all() for tensor in weights.values()))
        self.assertIn("classifier", repr(run))

    def test_what_is_no_run_or_damaged_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(kdgat.RunError, "is no run of kdgat"):
                kdgat.Run(folder)
            copy = pathlib.Path(folder)
            (copy / "config.json").write_bytes((RUN / "config.json").read_bytes())
            run = kdgat.Run(copy)
            with self.assertRaisesRegex(kdgat.RunError, "has no best.safetensors yet"):
                run.weights()
            weights = (RUN / "best.safetensors").read_bytes()
            for cut in (3, 40, len(weights) - 1):
                (copy / "best.safetensors").write_bytes(weights[:cut])
                with self.assertRaisesRegex(kdgat.RunError, "best.safetensors"):
                    run.weights()
            for header in (b"[]", b'{"w": {"dtype": "F32", "shape": 3, "data_offsets": [0, 12]}}'):
                (copy / "best.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
                with self.assertRaisesRegex(kdgat.RunError, "best.safetensors"):
                    run.weights()
            # A row that the program is writing is left out, even in the middle of a number; a short one before it is damage.
            for cut in ("1", "1,0.0"):
                (copy / "metrics.csv").write_text("epoch,val_loss\n0,0.5\n" + cut)
                self.assertEqual(list(run.metrics["val_loss"]), [0.5])
            (copy / "metrics.csv").write_text("epoch,val_loss\n0\n1,0.5\n")
            with self.assertRaisesRegex(kdgat.RunError, "metrics.csv, line 2: 1 cells"):
                run.metrics
            (copy / "config.json").write_text("{")
            with self.assertRaisesRegex(kdgat.RunError, "config.json: damaged"):
                kdgat.Run(copy)
            (copy / "config.json").write_text("[]")
            with self.assertRaisesRegex(kdgat.RunError, "is no run of kdgat"):
                kdgat.Run(copy)


class Commands(unittest.TestCase):
    def test_an_error_of_the_program_is_an_exception(self):
        with self.assertRaisesRegex(kdgat.ProgramError, "max_epochs") as caught:
            kdgat.run(["autoencoder"], show=False, max_epochs=0)
        self.assertEqual(caught.exception.code, 2)
        with self.assertRaisesRegex(kdgat.ProgramError, "no-such-data"):
            kdgat.check("no-such-data")

    def test_a_dataset_is_checked_and_built(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "small" / "train_01_attack_free").mkdir(parents=True)
            copy = pathlib.Path(folder) / "small" / "train_01_attack_free" / f"drive{''.join(LOG.suffixes)}"
            copy.write_bytes(LOG.read_bytes())
            found = kdgat.check(pathlib.Path(folder) / "small")
            self.assertEqual(len(found["logs"]), 1)
            kdgat.build(pathlib.Path(folder) / "small", show=False, stores_dir=pathlib.Path(folder) / "stores")
            self.assertTrue(list((pathlib.Path(folder) / "stores").glob("small-*")))

    def test_ctrl_c_saves_and_arrives(self):
        code = (
            "import kdgat, kdgat.command, signal, subprocess, sys\n"
            # The shell of a background job has set it to be ignored.
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "started = subprocess.Popen\n"
            "children = []\n"
            "def watched(*words, **options):\n"
            "    children.append(started(*words, **options))\n"
            "    return children[0]\n"
            "kdgat.command.subprocess.Popen = watched\n"
            "try:\n"
            "    kdgat.run(['autoencoder'], preset='vgae,student', use_kd=False, max_epochs=100000, patience=100000, threads=1, run_dir='long')\n"
            "except KeyboardInterrupt:\n"
            "    sys.exit(children[0].returncode)\n"
        )
        with tempfile.TemporaryDirectory() as folder:
            # The interrupt of a terminal reaches the whole process group, and the program gets it once.
            child = subprocess.Popen(
                [sys.executable, "-c", code],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            run = pathlib.Path(folder) / "long"
            for _ in range(6000):
                if (run / "last" / "state.safetensors").exists() or child.poll() is not None:
                    break
                time.sleep(0.01)
            os.killpg(child.pid, signal.SIGINT)
            _, said = child.communicate(timeout=120)
            self.assertEqual(child.returncode, 75, said.decode())
            self.assertFalse(kdgat.Run(run).is_finished)

    def test_ctrl_c_arrives_from_a_command_without_a_handler(self):
        children, ended = [], subprocess.Popen.wait

        def wait(child, timeout=None):
            children.append(child)
            if len(children) == 1:
                raise KeyboardInterrupt
            return ended(child, timeout)

        # The shell of a background job has set it to be ignored, which a command would inherit.
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder) / "kdgat"
            program.write_text("#!/bin/sh\nexec sleep 60\n")
            program.chmod(0o755)
            path = os.pathsep.join([folder, os.environ["PATH"]])
            with mock.patch.dict(os.environ, PATH=path), mock.patch.object(subprocess.Popen, "wait", wait):
                with self.assertRaises(KeyboardInterrupt):
                    kdgat.check("small")
        self.assertEqual(children[0].returncode, -signal.SIGINT)

    def test_a_missing_pytorch_is_an_error_with_a_name(self):
        self.assertTrue("NotStarted" in kdgat.__all__ and issubclass(kdgat.NotStarted, RuntimeError))
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, PATH=folder), mock.patch("importlib.util.find_spec", return_value=None):
            with self.assertRaisesRegex(kdgat.NotStarted, "kdgat needs PyTorch"):
                kdgat.program()

    def test_nobody_reading_does_not_stop_the_program(self):
        code = "import kdgat, sys; kdgat.run(['config', '--reference']); print('ended', file=sys.stderr)"
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        child.stdout.close()
        said = child.stderr.read()
        child.stderr.close()
        child.wait(timeout=120)
        self.assertIn(b"ended", said)

class Page(unittest.TestCase):
    def test_the_snippets_of_the_page_run(self):
        page = (pathlib.Path(__file__).parents[2] / "docs" / "python-runs.md").read_text()
        snippets = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
        self.assertEqual(len(snippets), 3)
        code = "\n".join(snippets).replace("runs/golf/gat_student_normal/1", str(RUN)).replace("max_epochs=3", "max_epochs=1, threads=1")
        before = os.getcwd()
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
            os.chdir(folder)
            try:
                exec(code, {"frames": frames()})
            finally:
                os.chdir(before)
        self.assertIn("classifier True", printed.getvalue())


class Detection(unittest.TestCase):
    def test_verdicts_are_those_of_the_program(self):
        lines = kdgat.run(["detect", RUN, LOG], show=False).splitlines()
        expected = [json.loads(line) for line in lines]
        with kdgat.Detector(RUN) as detector:
            verdicts = list(detector.watch(frames()))
        self.assertEqual(len(verdicts), len(expected))
        self.assertGreater(sum(verdict.is_attack for verdict in verdicts), 0)
        for verdict, line in zip(verdicts, expected):
            self.assertEqual((verdict.window, verdict.first_frame), (line["window"], line["first_frame"]))
            self.assertAlmostEqual(verdict.score, line["score"], delta=1e-5 * abs(line["score"]) + 1e-9)
            self.assertEqual(verdict.is_attack, line["label"] == "attack")
            self.assertEqual([f"{identifier:03X}" for identifier in verdict.gone], line.get("gone", []))
            self.assertIsNone(verdict.deviations)

    def test_messages_of_python_can_are_frames(self):
        given = frames()[:400]
        messages = [Message(*frame) for frame in given]
        messages.insert(150, Message(given[150][0], 0, b"", is_error_frame=True))
        with kdgat.Detector(RUN, explain_all=True) as detector:
            verdicts = list(detector.watch(messages))
        with kdgat.Detector(RUN, explain_all=True) as detector:
            self.assertEqual(verdicts, list(detector.watch(given)))
        self.assertTrue(all(verdict.ids for verdict in verdicts))

    def test_an_export_needs_no_program_and_two_detectors_no_order(self):
        with tempfile.TemporaryDirectory() as folder:
            export = pathlib.Path(folder) / "c"
            kdgat.run(["export", RUN, "--c", export], show=False)
            given = frames()
            found = [None, None]

            def watch(number):
                with kdgat.Detector(export) as detector:
                    found[number] = list(detector.watch(given))

            threads = [threading.Thread(target=watch, args=(number,)) for number in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(found[0], found[1])
            damaged = pathlib.Path(folder) / "other.calibration"
            damaged.write_bytes(b"no calibration")
            with self.assertRaisesRegex(ValueError, "other.calibration: it"):
                kdgat.Detector(export, calibration=damaged)
            with self.assertRaisesRegex(FileNotFoundError, "no-such-compiler"):
                kdgat.Detector(export, compiler="no-such-compiler")


if __name__ == "__main__":
    unittest.main()
