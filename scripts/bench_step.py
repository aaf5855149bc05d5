#!/usr/bin/env python3
"""Measures steps of kdgat and of another program in turn, A B A B, on the same graphs, batches and threads.

`scripts/bench step` runs this. To run it directly, with programs that are already built:

    python3 bench_step.py --kdgat PATH/step --peer benches/peer/peer.py --peer-python python3 --graphs PATH/graphs.safetensors

The peer runs twice: with the C library set to cache freed memory ("tuned"), and with default settings ("untuned"). A ratio is the
median over the pairs' ratios. The limit of a row is the time of its matrix products at the rate of large products, plus its minimum
memory traffic at the rate of a large copy; both rates are measured first. A fraction is that time divided by the measured time.
"""
import argparse
import datetime
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path

TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "268435456"}
PEER = "PyTorch Geometric"

# On a GPU: creates the peer's models there, moves its batches there, and synchronizes after each step.
ON_CUDA = """
import runpy, sys, torch
path = sys.argv[1]; sys.argv = sys.argv[1:]
source = open(path).read().replace("if __name__ == '__main__':", "if False:")
peer = {'__name__': 'peer', '__file__': path}
exec(compile(source, path, 'exec'), peer)
load, timed = peer['load_batches'], peer['median_seconds']
def load_batches(*arguments):
    torch.set_default_device('cpu')
    batches = load(*arguments)
    torch.set_default_device('cuda')
    for batch in batches:
        for name, value in vars(batch).items():
            if torch.is_tensor(value):
                setattr(batch, name, value.cuda())
    return batches
def median_seconds(step, batches, seconds):
    def waited(batch):
        result = step(batch)
        torch.cuda.synchronize()
        return result
    return timed(waited, batches, seconds)
peer['load_batches'], peer['median_seconds'] = load_batches, median_seconds
torch.set_default_device('cuda')
peer['main']()
"""


class Row:
    """A row of the table: the arguments of kdgat and of the peer for the same work."""

    def __init__(self, name, what, model, size, batch=512, threads=None, peer_what=None, peer_batch=None):
        self.name, self.threads = name, threads
        self.kdgat = [what, "--model", model, "--size", size, "--batch", str(batch)]
        self.peer = [peer_what or what, "--model", model, "--size", size, "--batch", str(peer_batch or batch)]


def rows(quick):
    def one(model, size="student"):
        return Row(f"inference of 1 graph, 1 thread, {model} {size}", "infer", model, size, batch=1, threads=1)

    if quick:
        return [
            Row("training, vgae student", "train", "vgae", "student"),
            Row("training, gat student", "train", "gat", "student"),
            Row("training, gin student", "train", "gin", "student"),
            Row("cached KD against running the teacher, vgae student", "cached", "vgae", "student", peer_what="kd"),
            one("vgae"),
        ]
    found = []
    for model in ("vgae", "gat"):
        for size in ("student", "teacher", "teacher_xl"):
            found.append(Row(f"training, {model} {size}", "train", model, size))
        found.append(Row(f"KD, teacher in every step, {model} student", "kd", model, "student"))
        found.append(Row(f"cached KD, {model} student", "cached", model, "student"))
        name = f"cached KD against running the teacher, {model} student"
        found.append(Row(name, "cached", model, "student", peer_what="kd"))
        for size in ("student", "teacher", "teacher_xl"):
            found.append(Row(f"inference, {model} {size}", "infer", model, size))
        found.append(one(model))
    for model in ("gin", "sage"):
        for size in ("student", "teacher"):
            found.append(Row(f"training, {model} {size}", "train", model, size))
        found.append(Row(f"cached KD, {model} student", "cached", model, "student"))
    found.append(Row("scoring against one graph at a time", "score", "vgae", "student", batch=500, peer_batch=1))
    found.append(Row("scoring against batches of 500", "score", "vgae", "student", batch=500))
    return found


def run(command, environment=None):
    """Runs a program and returns the JSON in the last line of its output."""
    finished = subprocess.run(command, env={**os.environ, **(environment or {})}, capture_output=True, text=True)
    if finished.returncode != 0:
        sys.exit(f"bench: error: {' '.join(map(str, command))} failed:\n{finished.stderr[-3000:]}")
    return json.loads(finished.stdout.strip().splitlines()[-1])


def median(values):
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


class Bench:
    def __init__(self, options):
        self.options = options
        self.common = ["--seconds", str(options.seconds)]
        self.graphs = ["--graphs", str(options.graphs)] if options.graphs else []

    def kdgat(self, row):
        threads = ["--threads", str(row.threads or self.options.threads), "--device", self.options.device]
        graphs = ["--cuda-graphs"] if self.options.cuda_graphs else []
        return run([self.options.kdgat, *row.kdgat, *threads, *graphs, *self.common, *self.graphs])

    def peer(self, row, tuned):
        threads = ["--threads", str(row.threads or self.options.threads)]
        script = [str(self.options.peer)]
        if self.options.device != "cpu":
            script = ["-c", ON_CUDA, *script]
        command = [self.options.peer_python, *script, *row.peer, *threads, *self.common, *self.graphs]
        return run(command, TUNED if tuned else None)

    def limits(self):
        return run([self.options.kdgat, "limits", "--threads", str(self.options.threads), "--device", self.options.device])

    def measure(self, row):
        """Measures in turn: the tuned peer, kdgat, and the untuned peer."""
        ours, tuned, untuned = [], [], []
        for pair in range(self.options.pairs):
            if self.options.peer:
                tuned.append(self.peer(row, True))
            ours.append(self.kdgat(row))
            # The C library's memory settings have no effect on a GPU.
            if self.options.peer and self.options.device == "cpu":
                untuned.append(self.peer(row, False))
            rate = lambda found: f"{found[-1]['graphs_per_second']:.0f}" if found else "-"
            print(f"  {row.name}: pair {pair + 1}: kdgat {rate(ours)}, tuned peer {rate(tuned)}, peer {rate(untuned)}"
                  " graphs/s", file=sys.stderr)
        return ours, tuned, untuned


def rate(found):
    return median([each["graphs_per_second"] for each in found])


def today():
    return datetime.datetime.now(datetime.timezone.utc).date().isoformat()


def summarize(row, measured, limits):
    ours, tuned, untuned = measured
    limit = ours[0]["operations"] / limits["operations_per_second"] + ours[0]["bytes"] / limits["bytes_per_second"]
    summary = {
        "row": row.name,
        # Rows are kept across runs, so each has its own date.
        "date": today(),
        "limits": {name: limits[name] for name in ("operations_per_second", "bytes_per_second")},
        "graphs_per_second": rate(ours),
        "microseconds": 1e6 * median([each["median_seconds"] for each in ours]),
        "fraction_of_limit": limit / median([each["median_seconds"] for each in ours]),
        "peak_rss_mib": ours[0]["peak_rss_mib"],
        "runs": {"kdgat": ours, "peer_tuned": tuned, "peer": untuned},
    }
    for name, found in (("tuned", tuned), ("untuned", untuned)):
        if found:
            summary[name] = rate(found)
            pairs = [a["graphs_per_second"] / b["graphs_per_second"] for a, b in zip(ours, found)]
            summary[f"ratio_{name}"] = median(pairs)
            summary[f"peak_rss_mib_{name}"] = found[0]["peak_rss_mib"]
    return summary


def json_rows(summary):
    """Rows in the format that all benches print."""
    def row(metric, value, unit, peer=None, peer_value=None, ratio=None):
        return {"bench": "step", "row": summary["row"], "metric": metric, "value": value, "unit": unit,
                "peer": peer, "peer_value": peer_value, "ratio": ratio}

    found = [row("rate", summary["graphs_per_second"], "graphs/s", f"{PEER}, {name}", summary[name], summary[f"ratio_{name}"])
             for name in ("tuned", "untuned") if name in summary]
    found = found or [row("rate", summary["graphs_per_second"], "graphs/s")]
    found.append(row("time of a step", summary["microseconds"], "us"))
    found.append(row("fraction of the machine's limit", summary["fraction_of_limit"], ""))
    return found


def table(summaries):
    lines = ["| row | kdgat, graphs/s | a step, ms | peer tuned | ratio | peer untuned | ratio | of the limit |",
             "|---|--:|--:|--:|--:|--:|--:|--:|"]
    for each in summaries:
        number = lambda key, form="{:.0f}": form.format(each[key]) if key in each else ""
        lines.append(f"| {each['row']} | {number('graphs_per_second')} | {each['microseconds'] / 1e3:.3f} | {number('tuned')} | "
                     f"{number('ratio_tuned', '{:.2f}')} | {number('untuned')} | {number('ratio_untuned', '{:.2f}')} | "
                     f"{each['fraction_of_limit']:.2f} |")
    return "\n".join(lines) + "\n"


def write(folder, measured, limits):
    """Writes the rows measured so far, merged with those already in the folder, so a stopped run loses none.

    Text below the first table of the page is preserved.
    """
    folder.mkdir(parents=True, exist_ok=True)
    hardware = limits["hardware"]
    name = "step-" + re.sub("[^a-z0-9]+", "-", hardware["name"].lower()).strip("-")
    document, page = folder / f"{name}.json", folder / f"{name}.md"
    before = json.loads(document.read_text())["measurements"] if document.exists() else []
    by_name = {each["row"]: each for each in before + measured}
    order = {row.name: place for place, row in enumerate(rows(False))}
    summaries = sorted(by_name.values(), key=lambda each: order.get(each["row"], len(order)))
    lines = iter(page.read_text().splitlines(keepends=True) if page.exists() else [])
    below_heading = itertools.dropwhile(lambda line: not line.startswith("|"), lines)
    notes = "".join(itertools.dropwhile(lambda line: line.startswith("|"), below_heading))
    content = {"bench": "step", "date": today(), "version": limits["version"], "hardware": hardware, "limits": limits,
               "rows": [row for each in summaries for row in json_rows(each)], "measurements": summaries}
    document.write_text(json.dumps(content, indent=1) + "\n")
    heading = (f"# step\n\n{today()}, kdgat {limits['version']}, {hardware['description']}; matrix products "
               f"{limits['operations_per_second'] / 1e9:.0f} GFLOP/s, memory traffic {limits['bytes_per_second'] / 1e9:.0f} GB/s\n\n")
    page.write_text(heading + table(summaries) + notes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kdgat", required=True, help="path of the built bench `step`")
    parser.add_argument("--peer", type=Path, help="path of peer.py (default: measure only kdgat)")
    parser.add_argument("--peer-python", default="python3", help="a Python interpreter with PyTorch Geometric")
    parser.add_argument("--graphs", type=Path, help="path of graphs.safetensors (default: simulated traffic)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--cuda-graphs", action="store_true", help="kdgat replays captured steps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pairs", type=int, help="number of measurements of each program")
    parser.add_argument("--seconds", type=float, help="duration of each measurement in seconds")
    parser.add_argument("--only", action="append", help="only rows whose names contain this text; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a few rows, under three minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row instead of a table")
    parser.add_argument("--results", type=Path, help="folder for the full results, merged with rows already in it")
    options = parser.parse_args()
    options.pairs = options.pairs or (1 if options.quick else 5)
    options.seconds = options.seconds or (2.0 if options.quick else 4.0)
    bench = Bench(options)
    limits = bench.limits()
    summaries = []
    for row in rows(options.quick):
        if any(text in row.name for text in options.only or [""]):
            summaries.append(summarize(row, bench.measure(row), limits))
            if options.results:
                write(options.results, summaries, limits)
            if options.json:
                for each in json_rows(summaries[-1]):
                    print(json.dumps(each), flush=True)
    if not options.json:
        print(table(summaries), end="")
    if options.results:
        print(f"bench: written to {options.results}", file=sys.stderr)


if __name__ == "__main__":
    main()
