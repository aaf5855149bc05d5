#!/usr/bin/env python3
"""Writes molecules of QM9 (Ramakrishnan et al. 2014) as tables for `kdgat train`.

    pip download qm9pack==1.0.3 --no-deps
    python scripts/qm9_to_tables.py qm9pack-1.0.3-py3-none-any.whl qm9 --molecules 10000 --seed 1
    kdgat data check --data qm9

SOURCE is the wheel, or a folder with its three files qm9_part1.csv to qm9_part3.csv. Without --seed the first molecules are taken, with it
random ones; without --molecules, all 130,831. Targets in eV: y_U0, the internal energy at 0 K (of the molecule, not of its atomisation), and
y_gap, the gap between HOMO and LUMO. Positions are in Å; edges are made from them within --cutoff, none with --cutoff 0. Needs Python 3.8 alone.
"""

import argparse
import ast
import contextlib
import csv
import io
import math
import os
import random
import shutil
import sys
import zipfile

PARTS = ["qm9_part1.csv", "qm9_part2.csv", "qm9_part3.csv"]
EV_PER_HARTREE = 27.211386245988
TARGETS = {"y_U0": "InternalEnergy_0K_au", "y_gap": "HOMO_LUMO_gap_au"}
csv.field_size_limit(1 << 20)


@contextlib.contextmanager
def opened(source, part):
    """A part as text, from the wheel or the folder."""
    if os.path.isdir(source):
        with open(os.path.join(source, part), newline="", encoding="utf-8") as file:
            yield file
        return
    with zipfile.ZipFile(source) as wheel, wheel.open(f"qm9pack/data/{part}") as member:
        yield io.TextIOWrapper(member, encoding="utf-8", newline="")


def molecules(source):
    """All rows of the parts in their order, each with its file and line for errors."""
    for part in PARTS:
        with opened(source, part) as file:
            rows = csv.DictReader(file)
            for row in rows:
                yield f"{part}, line {rows.line_num}", row


def chosen(source, count, seed):
    """The rows to write: the first ones, or random ones in the order of the source."""
    if seed is None:
        wanted = None
    else:
        total = sum(1 for _ in molecules(source))
        if count > total:
            raise ValueError(f"{count} molecules, but {source} has {total}: use --molecules {total} or less")
        wanted = set(random.Random(seed).sample(range(total), count))
    written = 0
    for position, molecule in enumerate(molecules(source)):
        if written == count:
            return
        if wanted is None or position in wanted:
            written += 1
            yield molecule
    if count is not None and written < count:
        raise ValueError(f"{count} molecules, but {source} has {written}: use --molecules {written} or less")


def atoms(row):
    """Element and position of each atom."""
    elements, positions = ast.literal_eval(row["Elements"]), ast.literal_eval(row["XYZ_Ang"])
    if not len(elements) == len(positions) == int(row["N_atoms"]):
        raise ValueError(f"{row['N_atoms']} atoms, but {len(elements)} elements and {len(positions)} positions")
    for element, position in zip(elements, positions):
        x, y, z = (float(value) for value in position)
        if not all(map(math.isfinite, (x, y, z))):
            raise ValueError(f"position {position}")
        yield element, x, y, z


def write(source, folder, count, seed, cutoff):
    """Writes the tables into an existing folder; returns the numbers of molecules and atoms."""
    num_graphs = num_nodes = 0
    with open(os.path.join(folder, "graphs.csv"), "w", newline="") as graph_file, open(
        os.path.join(folder, "nodes.csv"), "w", newline=""
    ) as node_file:
        graphs, nodes = csv.writer(graph_file), csv.writer(node_file)
        graphs.writerow(["graph_id", *TARGETS])
        nodes.writerow(["graph_id", "node_id", "c_element", "pos_x", "pos_y", "pos_z"])
        for place, row in chosen(source, count, seed):
            try:
                graphs.writerow([row["Index"], *(f"{float(row[name]) * EV_PER_HARTREE:.6f}" for name in TARGETS.values())])
                for node, atom in enumerate(atoms(row)):
                    nodes.writerow([row["Index"], node, *atom])
                    num_nodes += 1
            except (KeyError, TypeError, ValueError, SyntaxError) as error:
                raise ValueError(f"{place}: {error!r}; is this qm9pack 1.0.3?") from error
            num_graphs += 1
    with open(os.path.join(folder, "kdgat-graphs.toml"), "w", encoding="utf-8") as settings:
        settings.write('name = "qm9"\ntask = "regression"\nlength_unit = "Å"\nenergy_unit = "eV"\n')
        if cutoff > 0:
            settings.write(f"cutoff = {cutoff}\n")
    return num_graphs, num_nodes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="the wheel of qm9pack, or a folder with its CSV files")
    parser.add_argument("folder", help="new folder for the tables")
    parser.add_argument("--molecules", type=int, help="number of molecules (default: all)")
    parser.add_argument("--seed", type=int, help="take random molecules (default: the first ones)")
    parser.add_argument("--cutoff", type=float, default=5.0, help="largest distance of an edge in Å (default: 5; 0: no edges, for networks in space)")
    arguments = parser.parse_args()
    if arguments.molecules is not None and arguments.molecules < 1:
        parser.error(f"--molecules {arguments.molecules}: at least 1")
    if arguments.seed is not None and arguments.molecules is None:
        parser.error("--seed without --molecules would be ignored: all molecules are taken")
    if not (math.isfinite(arguments.cutoff) and arguments.cutoff >= 0):
        parser.error(f"--cutoff {arguments.cutoff}: a positive number, or 0")
    if os.path.exists(arguments.folder):
        parser.error(f"{arguments.folder} exists: name a new folder")
    # Written beside and renamed, so that a folder of this name is complete.
    unfinished = arguments.folder.rstrip("/") + ".unfinished"
    os.makedirs(unfinished, exist_ok=True)
    try:
        counts = write(arguments.source, unfinished, arguments.molecules, arguments.seed, arguments.cutoff)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        shutil.rmtree(unfinished)
        sys.exit(f"qm9_to_tables: {error}")
    os.rename(unfinished, arguments.folder)
    print("{}: {} molecules, {} atoms".format(arguments.folder, *counts))


if __name__ == "__main__":
    main()
