#!/usr/bin/env python3
"""Trains the networks of benches/results/molecules.md or trees.md, evaluates them, and prints their tables.

    scripts/report_space.py molecules TRAIN.npz TEST.npz [--peer PYTHON] [--seeds 1,2,3]
    scripts/report_space.py properties FOLDER [--peer PYTHON] [--seeds 1,2,3]
    scripts/report_space.py trees FOLDER [--seeds 1,2,3] [--tables none,types]

`molecules` reads conformations in the layout of rMD17: PaiNN and SchNet with the presets' settings, the same networks of schnetpack if --peer names a Python
that has it (`benches/peer/install molecules`), a network of representations, and students of PaiNN, alone and with their teacher. Every tenth conformation of
TRAIN.npz validates.
`properties` reads the tables of molecules that `scripts/qm9_to_tables.py --cutoff 0` writes: the same networks, of each ten molecules one for test and one that validates.
`trees` reads a folder of SWC files, with and without the types of points: SGMP from scratch and pre-trained, GIN from scratch and begun as a VGAE, students.

Finished runs are not repeated, so that a study can be stopped, and extended by more seeds. --arms trains only the rows of the tables that it lists. A table has
the rows whose runs are finished for all --seeds. Runs, their output and the seconds of processor time they took (seconds.csv) are in --runs. Trainings run
one after the other, each on --threads threads. Needs Python 3.11 and nothing else.
"""

import argparse
import csv
import json
import math
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tomllib

PROJECT = pathlib.Path(__file__).resolve().parent.parent
EPOCHS = 100
PROPERTY_EPOCHS = 20
# Chosen on validation molecules of ethanol with seed 1, by their force error.
DISTILLATION = {
    "painn": ["--kd-alpha", "0.5", "--kd-hint-weight", "0.01"],
    "schnet": ["--kd-alpha", "0.5", "--kd-hint-weight", "0"],
}

# Every 20th point between root, branch points and tips; 95 % of their distances are below 100 µm.
RESAMPLE = 20
FOLDS = 5
SGMP = ["--preset", "sgmp,teacher", "--cutoff", "100", "--hidden", "32", "--layers", "2"]
SGMP_STUDENT = ["--preset", "sgmp,student", "--cutoff", "100", "--hidden", "8", "--layers", "2"]
GIN = ["--preset", "gin,teacher", "--hidden", "64", "--layers", "3"]
TREE_EPOCHS = ["--max-epochs", "30"]
# With 30 epochs at the preset's rate, 240 steps, growth is hardly learned: chosen by the loss on validation trees of fold 0.
PRETRAINING = ["--max-epochs", "200", "--lr", "0.003"]
GIN_EPOCHS = ["--max-epochs", "100"]

# 97.5 % quantiles of Student's t by degrees of freedom.
T = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764}


class Study:
    def __init__(self, options):
        self.program = options.program
        self.threads = str(options.threads)
        self.arms = options.arms
        self.runs = pathlib.Path(options.runs).resolve()
        self.runs.mkdir(parents=True, exist_ok=True)

    def call(self, run, command, output):
        """Runs a command, with its output in a file, and notes its processor time, also if it fails or is interrupted."""
        output.parent.mkdir(parents=True, exist_ok=True)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with open(output, "w") as file:
            child = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=self.runs)
        try:
            try:
                code = child.wait()
            finally:
                # Ctrl-C reaches the command, too: a training saves its state, and its time is known when it has ended.
                child.wait()
        finally:
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
            with open(self.runs / "seconds.csv", "a") as file:
                file.write(f"{run},{seconds:.1f}\n")
        if code != 0:
            sys.exit(f"report_space: {' '.join(command)} failed with {code}; its output is in {output}")

    def wanted(self, arm):
        return self.arms is None or arm in self.arms

    def run(self, arm, place, *arguments):
        """Trains with kdgat unless the run is finished or not wanted; its folder, or None if it is not finished."""
        run = f"{arm.replace(' ', '-')}/{place}"
        folder = self.runs / run
        if not (folder / "summary.json").exists():
            if not self.wanted(arm.split("/")[-1]):
                return None
            print(f"report_space: {run}", file=sys.stderr)
            command = [self.program, *arguments, "--threads", self.threads, "--run-dir", str(folder), "--resume"]
            self.call(run, command, folder.with_name(folder.name + ".log"))
        return str(folder)

    def evaluated(self, name, runs, *arguments):
        """Results of `kdgat evaluate` by the keys of the runs."""
        if not runs:
            return {}
        output = self.runs / f"evaluation-{name}"
        output.mkdir(exist_ok=True)
        command = [self.program, "evaluate", *arguments, "--output", str(output), "--threads", self.threads, *runs.values()]
        with open(output / "log.txt", "w") as log:
            if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, cwd=self.runs).returncode != 0:
                sys.exit(f"report_space: {' '.join(command[:6])} ... failed; its output is in {log.name}")
        return dict(zip(runs, json.loads((output / "graph_metrics.json").read_text())["models"], strict=True))

    def seconds(self, arm):
        """Mean processor seconds of an arm's runs, for a table; a resumed run's are added up."""
        taken = {}
        if (self.runs / "seconds.csv").exists():
            with open(self.runs / "seconds.csv") as file:
                for run, seconds in csv.reader(file):
                    if run.startswith(arm.replace(" ", "-") + "/"):
                        taken[run] = taken.get(run, 0.0) + float(seconds)
        return f"{statistics.mean(taken.values()):.0f}" if taken else ""


def value(result, metric):
    return next(found["value"] for found in result["metrics"] if found["name"] == metric)


def spread(values, overlap=0.0):
    """Mean, standard deviation, and half of the 95 % interval of the mean (with an overlap: Nadeau & Bengio 2003)."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, None, None
    deviation = statistics.stdev(values)
    return mean, deviation, t_quantile(len(values) - 1) * deviation * math.sqrt(1 / len(values) + overlap)


def t_quantile(degrees):
    """97.5 % quantile of Student's t distribution. From 5 on its expansion in 1/degrees (Abramowitz & Stegun, 26.7.5), as `kdgat evaluate` has it."""
    inverse = 1 / degrees
    return T.get(degrees, 1.959964 + inverse * (2.372271 + inverse * (2.822499 + inverse * (2.555850 + inverse * 1.589534))))


def table(title, header, rows):
    """Prints a table under its title, if it has rows."""
    if not rows:
        return
    if title:
        print(f"{title}\n")
    for cells in (header, ["---", *["--:"] * (len(header) - 1)], *rows):
        print("| " + " | ".join(str(cell) for cell in cells) + " |")
    print()


# Molecules


def molecules(options):
    study = Study(options)
    train, test = (pathlib.Path(path).resolve() for path in (options.train, options.test))
    count = conformations(train)
    folds = study.runs / "folds.json"
    division = {"train": [i for i in range(count) if i % 10 != 9], "validation": list(range(9, count, 10))}
    folds.write_text(json.dumps([{"test": list(range(count, count + conformations(test))), "model_selection": [division]}]))
    data = ["--data", str(train), "--test-data", str(test)]
    common = [*data, "--folds-file", str(folds), "--max-epochs", str(EPOCHS)]
    runs, peers = {}, {}
    for seed in options.seeds:
        for model in ("painn", "schnet"):
            def trained(arm, *arguments):
                runs[arm, seed] = study.run(arm, seed, "train", *common, "--seed", str(seed), *arguments)
            trained(f"{model}-teacher", "--preset", f"{model},teacher")
            peers[model, seed] = peer(study, options, model, seed, "train_molecules.py", ["--train", train, "--test", test, "--folds-file", folds, "--epochs", EPOCHS])
            teacher = runs["painn-teacher", seed]
            student = ["--preset", f"{model},student"]
            trained(f"{model}-alone", *student, "--use-kd", "false")
            if teacher:
                trained(f"{model}-distilled", *student, *DISTILLATION[model], "--teacher-path", teacher, "--offload-teacher")
            else:
                runs[f"{model}-distilled", seed] = None
        runs["irreps-teacher", seed] = study.run("irreps-teacher", seed, "train", *common, "--seed", str(seed), "--preset", "irreps,teacher")
    runs = finished(runs)
    by_run = study.evaluated("molecules", runs, *data)
    metrics = {"energy MAE": "energies MAE", "RMSE": "energies RMSE", "forces MAE": "forces MAE", "forces RMSE": "forces RMSE"}
    keys = ("energy_mae", "energy_rmse", "forces_mae", "forces_rmse")
    networks(by_run, {place: last and {name: last[key] for name, key in zip(metrics, keys)} for place, last in peers.items()}, metrics, options.seeds, study)
    students(by_run, options.seeds, study)


def finished(runs):
    """The runs of the arms that have all their runs."""
    incomplete = {arm for (arm, *_), run in runs.items() if run is None}
    return {key: run for key, run in runs.items() if key[0] not in incomplete}


def conformations(path):
    """Number of conformations: the first length in the header of the array of energies."""
    import re
    import zipfile
    with zipfile.ZipFile(path) as archive, archive.open("energies.npy") as array:
        return int(re.search(rb"'shape': \((\d+),", array.read(200))[1])


def properties(options):
    study = Study(options)
    folder = pathlib.Path(options.folder).resolve()
    with open(folder / "graphs.csv", newline="") as file:
        reader = csv.reader(file)
        targets = [name for name in next(reader) if name.startswith("y_")]
        count = sum(1 for _ in reader)
    folds = study.runs / "folds.json"
    training, validation, test = ([place for place in range(count) if place % 10 in chosen] for chosen in (range(8), [8], [9]))
    folds.write_text(json.dumps([{"test": test, "model_selection": [{"train": training, "validation": validation}]}]))
    data = ["--data", str(folder)]
    common = [*data, "--folds-file", str(folds), "--max-epochs", str(PROPERTY_EPOCHS)]
    runs, peers = {}, {}
    for seed in options.seeds:
        for model in ("painn", "schnet", "irreps"):
            arm = f"{model}-teacher"
            runs[arm, seed] = study.run(arm, seed, "train", *common, "--seed", str(seed), "--preset", f"{model},teacher")
        for model in ("painn", "schnet"):
            last = peer(study, options, model, seed, "train_properties.py", ["--data", folder, "--folds-file", folds, "--epochs", PROPERTY_EPOCHS])
            peers[model, seed] = last and {f"{name[2:]} MAE": error for name, error in last["mae"].items()}
    runs = finished(runs)
    by_run = study.evaluated("properties", runs, *data)
    networks(by_run, peers, {f"{name[2:]} MAE": f"{name} MAE" for name in targets}, options.seeds, study)


def peer(study, options, model, seed, script, arguments):
    """The last line of schnetpack's training with the preset's rate and average of weights, or None if it is not finished and not wanted."""
    preset = tomllib.loads((PROJECT / "presets" / f"{model}.toml").read_text())["size"]["teacher"]
    same = ["--lr", str(preset["lr"]), "--ema-decay", str(preset.get("ema_decay", 0.0))]
    output = study.runs / f"peer-{model}" / f"{seed}{''.join(same)}.jsonl"
    if not (output.exists() and '"best_epoch"' in output.read_text()):
        if not options.peer or not study.wanted(f"peer-{model}"):
            return None
        print(f"report_space: schnetpack's {model} {seed}", file=sys.stderr)
        command = [options.peer, str(PROJECT / "benches/peer" / script), "--model", model, *map(str, arguments)]
        study.call(f"peer-{model}/{seed}", [*command, *same, "--seed", str(seed), "--threads", study.threads], output)
    return json.loads(output.read_text().splitlines()[-1])


def networks(by_run, peers, metrics, seeds, study):
    """A table of the networks with the widths of teachers and of schnetpack's. `metrics`: names of the columns and those of `kdgat evaluate`; `peers` have the first."""
    rows = []
    for model in ("painn", "schnet", "irreps"):
        own = [by_run[key] for seed in seeds if (key := (f"{model}-teacher", seed)) in by_run]
        found = [last for seed in seeds if (last := peers.get((model, seed)))]
        if own:
            ours = {key: [value(result, name) for result in own] for key, name in metrics.items()}
            seconds = study.seconds(f"{model}-teacher")
            rows.append([f"{model}, kdgat", own[0]["parameters"], *(with_deviation(values) for values in ours.values()), seconds])
        if len(found) == len(seeds):
            theirs = {key: [result[key] for result in found] for key in metrics}
            seconds = study.seconds(f"peer-{model}")
            rows.append([f"{model}, schnetpack", "", *(with_deviation(values) for values in theirs.values()), seconds])
            if own:
                ratios = {key: statistics.mean(values) / statistics.mean(theirs[key]) for key, values in ours.items()}
                rows.append([f"{model}, ratio", "", *(f"{ratio:.3f}" for ratio in ratios.values()), ""])
    table("", ["network, program", "parameters", *metrics, "CPU seconds a run"], rows)


def with_deviation(values):
    mean, deviation, _ = spread(values)
    return f"{mean:.4f}" + ("" if deviation is None else f" ± {deviation:.4f}")


def students(by_run, seeds, study):
    rows = []
    of = lambda arm, metric: [value(by_run[arm, seed], metric) for seed in seeds]
    for model in ("painn", "schnet"):
        for way in ("alone", "distilled"):
            arm, shares = f"{model}-{way}", ["", ""]
            if (arm, seeds[0]) not in by_run:
                continue
            if way == "distilled" and all((other, seeds[0]) in by_run for other in (f"{model}-alone", "painn-teacher")):
                shares = [closed(of(f"{model}-alone", metric), of(arm, metric), of("painn-teacher", metric)) for metric in ("forces MAE", "energies MAE")]
            errors = [with_deviation(of(arm, metric)) for metric in ("energies MAE", "forces MAE")]
            rows.append([f"{model} {way}", by_run[arm, seeds[0]]["parameters"], *errors, *shares, study.seconds(arm)])
    header = ["student", "parameters", "energy MAE", "forces MAE", "share of the gap closed, forces (95 %)", "energies (95 %)", "CPU seconds a run"]
    table("", header, rows)


def closed(alone, distilled, teacher):
    """Share of the gap between a student alone and its teacher that distillation closes, seed by seed."""
    shares = [(before - after) / (before - best) for before, after, best in zip(alone, distilled, teacher)]
    mean, _, half = spread(shares)
    return f"{mean:.2f}" + ("" if half is None else f" ({mean - half:.2f} to {mean + half:.2f})")


# Trees


def trees(options):
    study = Study(options)
    for name in options.tables:
        runs = {}
        data = prepared(study, pathlib.Path(options.folder), name)
        for seed in options.seeds:
            for fold in range(FOLDS):
                of_fold(study, name, data, (seed, fold), runs)
        runs = finished(runs)
        classifiers = {key: run for key, run in runs.items() if not key[0].startswith("start")}
        starts = {key: run for key, run in runs.items() if key[0] in ("start gt-ssl", "start masked")}
        title = f"{'With' if name == 'types' else 'Without'} types of points:"
        accuracies(study, name, title, data, classifiers)
        pretraining(study, name, "" if classifiers else title, data, starts)


def prepared(study, source, name):
    """A copy of the folder with the settings of the study."""
    target = study.runs / f"trees-{name}"
    if not target.exists():
        copy = target.with_name(target.name + "-new")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(source, copy)
        kinds = 'kinds = "none"\n' if name == "none" else ""
        (copy / "kdgat-graphs.toml").write_text(f'{kinds}length_unit = "µm"\nresample = {RESAMPLE}\n')
        os.rename(copy, target)
    return ["--data", str(target), "--folds", str(FOLDS)]


def of_fold(study, name, data, place, runs):
    seed, fold = place
    common = [*data, "--seed", str(seed), "--fold", str(fold)]

    def trained(arm, command, *arguments):
        # Teachers are registered by fold; pre-training has none.
        registry = [] if command == "pretrain" else ["--teachers-dir", f"teachers-{name}-{seed}-{fold}"]
        runs[arm, seed, fold] = study.run(f"{name}/{arm}", f"{seed}-{fold}", command, *common, *registry, *arguments)
        return runs[arm, seed, fold]

    def following(arm, first, flag, *arguments):
        """Trains with the weights or the answers of a first run, if that is finished."""
        runs[arm, seed, fold] = None
        if first:
            trained(arm, "train", *arguments, flag, first)

    trained("gin scratch", "train", *GIN, *GIN_EPOCHS)
    start = trained("start vgae", "autoencoder", "--preset", "vgae,teacher", "--encoder", "gin", *GIN[2:], *GIN_EPOCHS)
    following("gin vgae", start, "--init-from", *GIN, *GIN_EPOCHS)
    teacher = trained("sgmp scratch", "train", *SGMP, *TREE_EPOCHS)
    for objective in ("masked", "gt-ssl"):
        start = trained(f"start {objective}", "pretrain", "--objective", objective, *SGMP, *PRETRAINING)
        following(f"sgmp {objective}", start, "--init-from", *SGMP, *TREE_EPOCHS)
    trained("student alone", "train", *SGMP_STUDENT, *TREE_EPOCHS, "--use-kd", "false")
    for arm, taught_by in (("student distilled", teacher), ("student of masked", runs["sgmp masked", seed, fold])):
        following(arm, taught_by, "--teacher-path", *SGMP_STUDENT, *TREE_EPOCHS, "--offload-teacher")


def accuracies(study, name, title, data, runs):
    if not runs:
        return
    by_run = study.evaluated(name, runs, *data[:2])
    arms = list(dict.fromkeys(arm for arm, _, _ in runs))
    scratch = {"sgmp gt-ssl": "sgmp scratch", "sgmp masked": "sgmp scratch", "gin vgae": "gin scratch"}
    scratch |= {arm: "student alone" for arm in ("student distilled", "student of masked")}
    rows = []
    first = [result for (arm, _, _), result in by_run.items() if arm == arms[0]]
    for baseline, key in (("most frequent class", "baseline"), ("logistic regression on descriptors", "linear")):
        folds = by_fold([(result["fold"], of_baseline(result, key, "accuracy")) for result in first])
        others = [statistics.mean(of_baseline(result, key, metric) for result in first) for metric in ("macro_f1", "roc_auc")]
        rows.append([baseline, "", interval(folds, first), *(f"{other:.3f}" for other in others), "", ""])
    for arm in arms:
        found = [result for (own, _, _), result in by_run.items() if own == arm]
        folds = by_fold([(result["fold"], value(result, "accuracy")) for result in found])
        others = [statistics.mean(value(result, metric) for result in found) for metric in ("macro_f1", "roc_auc")]
        difference = ""
        if scratch.get(arm) in arms:
            before = by_fold([(result["fold"], value(result, "accuracy")) for (own, _, _), result in by_run.items() if own == scratch[arm]])
            mean, _, half = spread([after - start for after, start in zip(folds, before, strict=True)], overlap(found))
            difference = f"{mean:+.3f}" + ("" if half is None else f" ({mean - half:+.3f} to {mean + half:+.3f})")
        seconds = study.seconds(f"{name}/{arm}")
        rows.append([arm, found[0]["parameters"], interval(folds, found), *(f"{other:.3f}" for other in others), difference, seconds])
    header = ["", "parameters", "accuracy ± deviation over folds (95 %)", "macro F1", "ROC AUC", "difference (95 %)", "CPU seconds a run"]
    table(title, header, rows)


def of_baseline(result, key, metric):
    return next(found["value"] for found in result[key] if found["name"] == metric)


def by_fold(values):
    """Means over seeds, in the order of the folds."""
    folds = {}
    for fold, found in values:
        folds.setdefault(fold, []).append(found)
    return [statistics.mean(folds[fold]) for fold in sorted(folds)]


def overlap(results):
    return results[0]["test_graphs"] / results[0]["seen_graphs"]


def interval(folds, results):
    mean, deviation, half = spread(folds, overlap(results))
    return f"{mean:.3f}" + ("" if half is None else f" ± {deviation:.3f} ({mean - half:.3f} to {mean + half:.3f})")


def pretraining(study, name, title, data, runs):
    by_run = study.evaluated(name + "-starts", runs, *data[:2])
    rows = []
    for objective in ("gt-ssl", "masked"):
        found = [result for (arm, _, _), result in by_run.items() if arm == f"start {objective}"]
        if not found:
            continue
        for metric in [each["name"] for each in found[0]["metrics"]]:
            mean, deviation, _ = spread([value(result, metric) for result in found])
            constant = statistics.mean(of_baseline(result, "baseline", metric) for result in found)
            rows.append([f"{objective}: {metric}", f"{mean:.4f}", "" if deviation is None else f"{deviation:.4f}", f"{constant:.4f}"])
    table(title, ["held-out trees", "pre-trained", "deviation over runs", "constant"], rows)


def main():
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3])
    common.add_argument("--threads", type=int, default=1)
    common.add_argument("--program", default=str(PROJECT / "scripts/kdgat"))
    common.add_argument("--runs", help="folder of the runs (default: runs/report- and the study)")
    common.add_argument("--arms", type=lambda text: text.split(","), help='rows to train, such as "painn-teacher,peer-painn" or "gin scratch" (default: all)')
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    studies = parser.add_subparsers(required=True, dest="study")
    of_molecules = studies.add_parser("molecules", parents=[common])
    of_molecules.add_argument("train")
    of_molecules.add_argument("test")
    of_molecules.add_argument("--peer", help="Python of `benches/peer/install molecules`; without it, kdgat's networks alone")
    of_molecules.set_defaults(run=molecules)
    of_properties = studies.add_parser("properties", parents=[common])
    of_properties.add_argument("folder")
    of_properties.add_argument("--peer", help="as for molecules")
    of_properties.set_defaults(run=properties)
    of_trees = studies.add_parser("trees", parents=[common])
    of_trees.add_argument("folder")
    of_trees.add_argument("--tables", type=lambda text: text.split(","), default=["none", "types"], help="none: without types of points (default: both)")
    of_trees.set_defaults(run=trees)
    options = parser.parse_args()
    options.runs = options.runs or f"runs/report-{options.study}"
    options.run(options)


if __name__ == "__main__":
    main()
