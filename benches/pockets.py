"""Makes binding pockets up: atoms in ellipsoids, as extended XYZ, and an embedding of each by a hidden network.

    python benches/pockets.py FOLDER [--pockets 160] [--atoms 200 600] [--columns 1536] [--bonds 2.0 [--paths]]

FOLDER gets `pockets.xyz`, `kdgat-graphs.toml` and `targets.safetensors`. The hidden network reads how many pairs of each two
elements are at which distance below 4, so that an embedding tells a pocket's shape and composition, whatever its place and
orientation. With --bonds, atoms up to that distance apart have a bond, and it reads the angles and dihedrals along the bonds
instead. With --paths, each angle and dihedral has a parameter, and it reads at which cosines there are stiff and soft ones of each
kind; FOLDER then gets tables, `angles.csv` and `dihedrals.csv` among them, instead of `pockets.xyz`. Figures: benches/results/space.md.
"""

import argparse
import json
import pathlib
import struct

import numpy as np

ELEMENTS = ["C", "N", "O", "P"]
# Number of the pair of two elements.
PAIRS = np.array([[0, 1, 2, 3], [1, 4, 5, 6], [2, 5, 7, 8], [3, 6, 8, 9]])
BINS = 10


def pocket(random, atoms):
    """Positions `[atoms, 3]` at least 1 apart in an ellipsoidal shell, and numbers of elements `[atoms]`."""
    axes, radius = random.uniform(0.6, 1.6, 3), 1.7 * atoms ** (1 / 3)
    places = np.empty((0, 3))
    while len(places) < atoms:
        place = random.normal(size=3)
        place *= radius * axes * random.uniform(0.5, 1) ** (1 / 3) / np.linalg.norm(place)
        if len(places) == 0 or np.min(((places - place) ** 2).sum(1)) > 1:
            places = np.vstack([places, place])
    return places, random.choice(4, size=atoms, p=random.dirichlet([3, 2, 2, 1]))


def counts(places, kinds):
    """Logarithms of the numbers of pairs of each two elements at each distance below 4, `[10 * BINS]`."""
    distances = np.sqrt(((places[:, None] - places[None]) ** 2).sum(-1))
    one, other = np.triu_indices(len(places), 1)
    near = distances[one, other] < 4
    bins = np.minimum(((distances[one, other][near] - 1) / 3 * BINS).astype(int), BINS - 1)
    found = np.zeros((10, BINS))
    np.add.at(found, (PAIRS[kinds[one], kinds[other]][near], bins), 1)
    return (np.log1p(found).ravel() - 3) / 1.5


def cosines(one, other):
    squares = (one**2).sum(-1) * (other**2).sum(-1)
    return (one * other).sum(-1) / np.sqrt(np.maximum(squares, 1e-12))


def bonded(places, length):
    """True for two atoms up to a length apart, `[atoms, atoms]`."""
    distances = np.sqrt(((places[:, None] - places[None]) ** 2).sum(-1))
    return (distances <= length) & (distances > 0)


def paths(bonds):
    """The angles `[angles, 3]` and dihedrals `[dihedrals, 4]` along the bonds, each once."""
    angles, dihedrals = [], []
    near = [np.flatnonzero(row) for row in bonds]
    for j, of_j in enumerate(near):
        first, second = np.triu_indices(len(of_j), 1)
        angles += [(i, j, k) for i, k in zip(of_j[first], of_j[second])]
        for k in of_j[of_j > j]:
            dihedrals += [(i, j, k, l) for i in of_j if i != k for l in near[k] if l not in (i, j)]
    return np.array(angles, int).reshape(-1, 3), np.array(dihedrals, int).reshape(-1, 4)


def turns(places, kinds, angles, dihedrals, stiff=None):
    """Logarithms of the numbers of angles by the element in the middle, and of dihedrals, at each cosine, `[5 * BINS]`; of the soft and of the
    stiff ones, `[10 * BINS]`, if it is said which are stiff."""
    i, j, k = places[angles].transpose(1, 0, 2)
    own = cosines(i - j, k - j)
    i, j, k, l = places[dihedrals].transpose(1, 0, 2)
    values = np.concatenate([own, cosines(np.cross(j - i, k - j), np.cross(k - j, l - k))])
    groups = np.concatenate([kinds[angles[:, 1]], np.full(len(dihedrals), 4)])
    found = np.zeros((5 if stiff is None else 10, BINS))
    bins = np.minimum(((values + 1) / 2 * BINS).astype(int), BINS - 1)
    np.add.at(found, (groups if stiff is None else groups + 5 * stiff, bins), 1)
    return (np.log1p(found).ravel() - 3) / 1.5


def stiffness(random, kinds, angles, dihedrals):
    """A parameter of each angle, then of each dihedral: around 60 for stiff and around 30 for soft ones. Which are stiff is chance, and more so in
    some pockets, by the element in the middle."""
    groups = np.concatenate([kinds[angles[:, 1]], np.full(len(dihedrals), 4)])
    stiff = random.uniform(size=len(groups)) < random.uniform(0.05, 0.95, 5)[groups]
    return stiff.astype(int), np.where(stiff, 60, 30) + random.normal(0, 4, len(groups))


class Tables:
    """The tables of a dataset of graphs."""

    COLUMNS = {
        "graphs": "graph_id,size",
        "nodes": "graph_id,node_id,c_element,pos_x,pos_y,pos_z",
        "edges": "graph_id,source,target",
        "angles": "graph_id,i,j,k,a_stiffness",
        "dihedrals": "graph_id,i,j,k,l,d_stiffness",
    }

    def __init__(self, folder):
        self.files = {name: open(folder / f"{name}.csv", "w") for name in self.COLUMNS}
        for name, columns in self.COLUMNS.items():
            self.files[name].write(columns + "\n")

    def add(self, number, places, kinds, bonds, listed, parameters):
        rows = {name: [] for name in self.COLUMNS}
        rows["graphs"].append((len(places),))
        rows["nodes"] = [(atom, ELEMENTS[kind], *(f"{value:.4f}" for value in place)) for atom, (kind, place) in enumerate(zip(kinds, places))]
        rows["edges"] = np.argwhere(np.triu(bonds))
        angles, dihedrals = listed
        values = [f"{value:.3f}" for value in parameters]
        rows["angles"] = [(*path, value) for path, value in zip(angles, values)]
        rows["dihedrals"] = [(*path, value) for path, value in zip(dihedrals, values[len(angles) :])]
        for name, of_name in rows.items():
            self.files[name].writelines(f"{number},{','.join(map(str, row))}\n" for row in of_name)

    def close(self):
        for file in self.files.values():
            file.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--pockets", type=int, default=160)
    parser.add_argument("--atoms", type=int, nargs=2, default=[200, 600])
    parser.add_argument("--columns", type=int, default=1536)
    parser.add_argument("--bonds", type=float)
    parser.add_argument("--paths", action="store_true")
    options = parser.parse_args()
    if options.paths and options.bonds is None:
        parser.error("--paths: angles and dihedrals are those along bonds; give their length, too (--bonds 2.0)")
    random = np.random.default_rng(7)
    inputs = 5 * BINS if options.bonds is not None and not options.paths else 10 * BINS
    first = random.normal(size=(inputs, 128)) / 3
    second = random.normal(size=(128, options.columns)) / 11
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    tables = Tables(options.folder) if options.paths else None
    frames = None if options.paths else open(options.folder / "pockets.xyz", "w")
    for number in range(options.pockets):
        atoms = int(np.exp(random.uniform(*np.log(options.atoms))))
        places, kinds = pocket(random, atoms)
        bonds = None if options.bonds is None else bonded(places, options.bonds)
        if tables is not None:
            listed = paths(bonds)
            stiff, parameters = stiffness(random, kinds, *listed)
            read = turns(places, kinds, *listed, stiff)
            tables.add(number, places, kinds, bonds, listed, parameters)
        else:
            read = counts(places, kinds) if bonds is None else turns(places, kinds, *paths(bonds))
            frames.write(f"{atoms}\nProperties=species:S:1:pos:R:3 size={atoms}.0\n")
            for kind, (x, y, z) in zip(kinds, places):
                frames.write(f"{ELEMENTS[kind]} {x:.4f} {y:.4f} {z:.4f}\n")
        rows.append(np.tanh(read @ first) @ second)
    (frames if tables is None else tables).close()
    # A dataset of graphs has a target; nothing is learned from it with --kd-alpha 1.
    edges = "directed = false\n" if options.paths else "" if options.bonds is None else f"cutoff = {options.bonds}\n"
    (options.folder / "kdgat-graphs.toml").write_text('targets = ["size"]\n' + edges)
    rows = np.array(rows, dtype="<f4")
    layout = {"dtype": "F32", "shape": list(rows.shape), "data_offsets": [0, rows.nbytes]}
    header = json.dumps({"embedding": layout}).encode()
    (options.folder / "targets.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + rows.tobytes())


if __name__ == "__main__":
    main()
