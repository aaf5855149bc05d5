"""The cache's folder: records of several processes, torn, damaged and foreign files, a full disk, and kills."""

import os
import pathlib
import random
import resource
import signal
import tempfile
import time
import traceback
import unittest
import warnings

import numpy
import torch

import kdgat
from kdgat.index import ENTRY, KEY, Index
from kdgat.items import BatchError, Reading, keys_of_ids
from kdgat.rows import Encoding
from kdgat.store import CacheError, Damaged, FolderStore

# Small models: threads cost more than they give, and a child that was forked has none.
torch.set_num_threads(1)
ENCODINGS = [Encoding("logits", (6,), True), Encoding("pooled", (3,), False, "f16")]


def items(numbers):
    """Rows of items: as many as their number says, and different ones."""
    found = []
    for number in numbers:
        many = number % 4 + 1
        logits = (numpy.arange(many * 6, dtype="<f4") + numpy.float32(1000 * number)).reshape(many, 6)
        found.append([logits, numpy.full((1, 3), number % 7, "<f2")])
    return found


class Shared(unittest.TestCase):
    def test_an_input_that_all_items_share_stays_shared_in_a_smaller_batch(self):
        reading, table = Reading(), torch.arange(3.0)
        rows = torch.arange(7.0)
        whole = reading.items({"rows": rows[:4], "table": table}).keys()
        # The last batch has as many items as the table has rows.
        last = reading.items({"rows": rows[1:4], "table": table})
        self.assertTrue((last.keys() == whole[1:]).all())
        self.assertTrue(torch.equal(last.select([0]).inputs()["table"], table))

    def test_rows_of_items_that_become_a_shared_input_are_refused(self):
        reading = Reading()
        reading.items({"rows": torch.zeros(3, 2), "table": torch.zeros(3)})
        with self.assertRaisesRegex(BatchError, "input 'table' has 3 rows for 4 items"):
            reading.items({"rows": torch.zeros(4, 2), "table": torch.zeros(3)})


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "cache"

    def open(self, **key):
        store = FolderStore(self.path, {"weights": "a", **key})
        self.addCleanup(store.close)
        return store

    def fill(self, store, numbers):
        store.settle(ENCODINGS)
        store.add(keys_of_ids(list(numbers)), items(numbers))

    def assert_has(self, store, numbers):
        numbers = list(numbers)
        keys = keys_of_ids(numbers)
        self.assertTrue(store.find(keys).all())
        arrays, counts = store.read(keys)
        for column in range(2):
            expected = [item[column] for item in items(numbers)]
            self.assertEqual(counts[column].tolist(), [len(rows) for rows in expected])
            self.assertTrue(numpy.array_equal(arrays[column], numpy.concatenate(expected)))

    def test_records_are_read_in_any_order_by_any_process(self):
        first, second = self.open(), self.open()
        self.fill(first, range(0, 50))
        self.fill(second, range(40, 90))
        self.assertFalse(first.find(keys_of_ids([60])).any())
        first.refresh()
        order = list(range(90))
        random.Random(1).shuffle(order)
        self.assert_has(first, order)
        self.assert_has(self.open(), order[::-1])
        # Records of one size, which are read without a loop.
        self.assert_has(first, range(0, 88, 4))
        self.assertEqual(len(list(self.path.glob("*.rows"))), 2)

    def test_the_files_of_an_ended_process_are_appended_to(self):
        store = self.open()
        self.fill(store, range(10))
        store.close()
        again = self.open()
        self.fill(again, range(5, 20))
        self.assert_has(again, range(20))
        self.assertEqual(len(list(self.path.glob("*.rows"))), 1)

    def test_records_of_a_process_that_ended_after_the_last_look_are_found(self):
        first, second = self.open(), self.open()
        self.fill(first, range(10))
        second.refresh()
        self.fill(first, range(10, 20))
        first.close()
        self.fill(second, range(30, 40))
        self.assertEqual(len(list(self.path.glob("*.rows"))), 1)
        self.assert_has(second, [*range(20), *range(30, 40)])

    def test_torn_ends_are_overwritten(self):
        """What a kill in the middle of a write leaves: a part of a record, and a part of an entry."""
        store = self.open()
        self.fill(store, range(10))
        store.close()
        [rows], [index] = self.path.glob("*.rows"), self.path.glob("*.index")
        whole_rows, whole_index = rows.read_bytes(), index.read_bytes()
        for cut in range(1, 40, 6):
            rows.write_bytes(whole_rows[:-cut])
            index.write_bytes(whole_index[: -min(cut, 31)])
            store = self.open()
            self.assertFalse(store.find(keys_of_ids([9])).any(), "its entry is torn")
            self.fill(store, [9, 10])
            self.assert_has(store, range(11))
            store.close()
            self.assert_has(self.open(), range(11))
        rows.write_bytes(whole_rows[:-20])
        index.write_bytes(whole_index)
        self.assertFalse(self.open().find(keys_of_ids([9])).any(), "its entry ends beyond the file")

    def test_no_changed_byte_is_believed(self):
        store = self.open()
        self.fill(store, range(8))
        store.close()
        [rows] = self.path.glob("*.rows")
        [index] = self.path.glob("*.index")
        for path in (rows, index):
            content = path.read_bytes()
            for place in range(48 if path == rows else 0, len(content), 7):
                changed = bytearray(content)
                changed[place] ^= 0x11
                path.write_bytes(changed)
                store = FolderStore(self.path, {"weights": "a"})
                for number in range(8):
                    key = keys_of_ids([number])
                    if store.find(key).all():
                        try:
                            arrays, _ = store.read(key)
                        except Damaged as damaged:
                            self.assertEqual(damaged.positions, [0])
                            self.assertFalse(store.find(key).any(), "it can be written again")
                            continue
                        self.assertTrue(numpy.array_equal(arrays[0], items([number])[0][0]), f"byte {place} of {path.name}")
                store.close()
            path.write_bytes(content)

    def test_a_file_that_becomes_shorter_is_an_error_of_one_call(self):
        store = self.open()
        self.fill(store, range(10))
        [rows] = self.path.glob("*.rows")
        os.truncate(rows, rows.stat().st_size // 2)
        with self.assertRaises(Damaged) as caught:
            store.read(keys_of_ids(range(10)))
        self.assertIn(9, caught.exception.positions)
        self.assertNotIn(0, caught.exception.positions)

    def test_another_key_is_refused_with_what_differs(self):
        store = self.open(outputs="logits", top_k=None)
        self.fill(store, range(3))
        for key, text in (
            ({"outputs": "hidden", "top_k": None}, 'outputs: "logits" in the cache, "hidden" here'),
            ({"outputs": "logits", "top_k": 5}, "top_k: null in the cache, 5 here"),
        ):
            with self.assertRaisesRegex(CacheError, text):
                self.open(**key)
        with self.assertRaisesRegex(CacheError, "pooled"):
            self.open(outputs="logits", top_k=None).settle(ENCODINGS[:1])

    def test_foreign_and_damaged_files_are_refused(self):
        store = self.open()
        self.fill(store, range(3))
        store.close()
        manifest = self.path / "cache.json"
        content = manifest.read_text()
        for text, expected in (
            ("{", "not the manifest"),
            ("[]", "not the manifest"),
            ("{}", "not the manifest"),
            (content.replace('"version": 1', '"version": 2'), "version 2, and this kdgat reads version 1"),
            (content.replace('"f16"', '"f8"'), "encoding 'f8'"),
            (content.replace("kdgat targets", "other"), "format 'other'"),
        ):
            manifest.write_text(text)
            with self.assertRaisesRegex(CacheError, expected):
                self.open()
        manifest.write_text(content + " ")
        with self.assertRaisesRegex(CacheError, "does not belong to .*cache.json"):
            self.open()
        file = self.path.parent / "file"
        file.write_text("")
        with self.assertRaisesRegex(CacheError, "is not a folder"):
            FolderStore(file, {})

    def test_claimed_sizes_allocate_nothing(self):
        store = self.open()
        self.fill(store, range(3))
        store.close()
        [index] = self.path.glob("*.index")
        content = numpy.frombuffer(index.read_bytes(), [("key", "V16"), ("offset", "<u8"), ("size", "<u4"), ("zero", "<u4")]).copy()
        content["size"][1], content["offset"][2] = 0xFFFFFFF8, 0xFFFFFFFFFFFFFFF0
        index.write_bytes(content.tobytes())
        store = self.open()
        self.assertEqual(store.find(keys_of_ids([0, 1, 2])).tolist(), [True, False, False])

    def test_a_full_disk_stops_the_writing_alone(self):
        store = self.open()
        self.fill(store, range(20))
        [rows] = self.path.glob("*.rows")
        limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            # The kernel writes a part of what follows.
            resource.setrlimit(resource.RLIMIT_FSIZE, (rows.stat().st_size + 100, hard))
            self.fill(store, range(20, 40))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            signal.signal(signal.SIGXFSZ, previous)
        self.assertIn("cannot write to the cache", store.warning)
        self.assertIn("20 items stay cached", store.warning)
        self.fill(store, range(40, 50))
        self.assert_has(store, range(20))
        store.close()
        again = self.open()
        self.assertFalse(again.find(keys_of_ids(range(20, 50))).any())
        self.fill(again, range(20, 50))
        self.assert_has(again, range(50))


class Keys(unittest.TestCase):
    def test_the_index_finds_the_first_of_each_key(self):
        generator = numpy.random.default_rng(1)
        index, expected = Index(), {}
        for round_ in range(6):
            new = numpy.zeros(30_000, ENTRY)
            # Few upper halves, so that many keys share one.
            new["high"], new["low"] = generator.integers(0, 5000, 30_000), generator.integers(0, 50, 30_000)
            new["offset"] = numpy.arange(30_000) + 30_000 * round_
            index.add(new)
            for entry in new:
                expected.setdefault((int(entry["high"]), int(entry["low"])), int(entry["offset"]))
        keys = numpy.array([*expected, (7_000, 1), (1, 77)], KEY)
        found = index.find(keys)
        self.assertEqual(found[-2:].tolist(), [-1, -1])
        self.assertEqual(index.entries(found[:-2])["offset"].tolist(), list(expected.values()))
        for place in (0, len(expected) - 1):
            index.forget(keys[place])
            self.assertEqual(index.find(keys[place : place + 1])[0], -1)
        self.assertEqual((index.find(keys[1:-3]) < 0).sum(), 0)

    def test_ids_have_different_keys(self):
        keys = keys_of_ids(numpy.arange(-1000, 100_000))
        self.assertEqual(len(numpy.unique(keys)), 101_000)
        self.assertEqual(len(numpy.unique(keys["high"])), 101_000)
        self.assertTrue((keys_of_ids(torch.arange(5)) == keys_of_ids([0, 1, 2, 3, 4])).all())
        # Values for readers in other languages (docs/store.md).
        self.assertEqual([hex(value) for value in keys_of_ids([3])[0]], ["0x908cf990ca878a2c", "0x3"])
        self.assertEqual(keys_of_ids(["graph 3"]).tobytes().hex(), "bce80b64469491c02c7c6a8e100082fd")


class Slow(torch.nn.Module):
    """A teacher whose rows are large, and tell the item."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.arange(1.0, 5001.0))

    def forward(self, x):
        return x * self.scale


class Kills(unittest.TestCase):
    def test_no_kill_leaves_a_wrong_row(self):
        """Kills trainings that fill a cache at random moments, two at once in half of the rounds."""
        rounds = 20 if os.environ.get("SOAK_TESTS") else 6
        chance = random.Random(int(os.environ.get("KDGAT_TEST_SEED", "7")))
        inputs = torch.arange(1.0, 801.0)[:, None]
        with tempfile.TemporaryDirectory() as folder:

            def train(seed: int) -> None:
                generator = torch.Generator().manual_seed(seed)
                loader = torch.utils.data.DataLoader(
                    torch.utils.data.TensorDataset(inputs), batch_size=16, shuffle=True, generator=generator
                )
                with kdgat.Teacher(Slow(), cache=folder, log=lambda line: None) as teacher:
                    for _ in teacher.distill(loader, burst=2):
                        pass

            def records() -> int:
                return sum(path.stat().st_size for path in pathlib.Path(folder).glob("*.index")) // 32

            filled = []
            for number in range(rounds):
                children = []
                for process in range(1 + number % 2):
                    child = os.fork()
                    if child == 0:
                        try:
                            train(10 * number + process)
                            os._exit(0)
                        except BaseException:
                            traceback.print_exc()
                            os._exit(1)
                    children.append(child)
                # After some more records, and then anywhere in the next milliseconds.
                goal = min(len(inputs), records() + chance.randrange(1, 2 * len(inputs) // rounds))
                ended = []
                while records() < goal and not ended:
                    ended = [child for child in children if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT)]
                    time.sleep(0.0005)
                time.sleep(chance.uniform(0.0, 0.01))
                for child in children:
                    os.kill(child, signal.SIGKILL)
                    _, status = os.waitpid(child, 0)
                    self.assertIn(status, (0, signal.SIGKILL))
                filled.append(self.check(folder, inputs))
            self.assertEqual(filled, sorted(filled), "no record is lost")
            train(1)
            self.assertEqual(self.check(folder, inputs), len(inputs))
            print(f"{rounds} rounds of kills; records after each: {filled}")

    def check(self, folder, inputs) -> int:
        """Compares every row of a cache with a new one. Returns their number."""
        if not os.path.exists(os.path.join(folder, "cache.json")):
            return 0
        with kdgat.Teacher(Slow(), cache=folder, log=lambda line: None) as teacher:
            keys = teacher._reading.items([inputs]).keys()
            places = numpy.flatnonzero(teacher.store.find(keys))
            expected = Slow()(inputs).detach().numpy()
            whole = 0
            for place in places:
                try:
                    [[row], _] = teacher.store.read(keys[place : place + 1])
                except Damaged:
                    continue
                self.assertTrue(numpy.array_equal(row[0], expected[place]), f"item {place}")
                whole += 1
            return whole


if __name__ == "__main__":
    warnings.simplefilter("error", UserWarning)
    unittest.main()
