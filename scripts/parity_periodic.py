#!/usr/bin/env python3
"""Writes frames with periodic boundaries and their neighbours by ASE (Larsen et al. 2017), for `tests/datasets/graph_sources.rs`.

    pip install ase==3.29.0
    python scripts/parity_periodic.py

writes tests/data/parity/periodic.xyz and, for each of its frames, a list of [target, source, length] of all images within 5 Å, the images of
the atom itself included, to periodic.json.
"""

import json
import pathlib

import numpy
from ase import Atoms
from ase.neighborlist import neighbor_list

CUTOFF = 5.0
# Cells that are larger and smaller than twice the cutoff, skewed ones, and ones that are periodic along some axes only.
CELLS = [
    ([[12.0, 0.0, 0.0], [0.0, 11.5, 0.0], [0.0, 0.0, 13.0]], [True, True, True], 14),
    ([[4.1, 0.0, 0.0], [1.9, 3.6, 0.0], [-0.8, 1.1, 5.2]], [True, True, True], 3),
    ([[6.0, 0.5, 0.0], [-2.0, 7.0, 0.3], [0.0, 0.0, 30.0]], [True, True, False], 9),
    ([[20.0, 0.0, 0.0], [0.0, 20.0, 0.0], [1.0, 2.0, 4.5]], [False, False, True], 7),
]


def main():
    random = numpy.random.default_rng(5)
    folder = pathlib.Path(__file__).parent.parent / "tests" / "data" / "parity"
    text, edges = "", []
    for cell, pbc, count in CELLS:
        # Some atoms lie outside of the cell. Six decimals, as in the file.
        positions = numpy.round(random.uniform(-0.6, 1.4, (count, 3)) @ numpy.array(cell), 6)
        symbols = [str(symbol) for symbol in random.choice(["C", "H", "O"], count)]
        atoms = Atoms(symbols, positions=positions, cell=cell, pbc=pbc)
        targets, sources, lengths = neighbor_list("ijd", atoms, CUTOFF)
        edges.append([[int(i), int(j), float(d)] for i, j, d in zip(targets, sources, lengths)])
        lattice = " ".join(str(value) for row in cell for value in row)
        flags = " ".join("T" if flag else "F" for flag in pbc)
        text += f'{count}\nLattice="{lattice}" Properties=species:S:1:pos:R:3 pbc="{flags}" energy=-1.5\n'
        text += "".join(f"{symbol} {x:.6f} {y:.6f} {z:.6f}\n" for symbol, (x, y, z) in zip(symbols, positions))
    (folder / "periodic.xyz").write_text(text)
    (folder / "periodic.json").write_text(json.dumps({"cutoff": CUTOFF, "edges": edges}) + "\n")


if __name__ == "__main__":
    main()
