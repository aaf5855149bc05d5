"""Makes binding pockets up: atoms in ellipsoids, as extended XYZ, and an embedding of each by a hidden network.

    python benches/pockets.py FOLDER [--pockets 160] [--atoms 200 600] [--columns 1536] [--bonds 2.0]

FOLDER gets `pockets.xyz`, `kdgat-graphs.toml` and `targets.safetensors`. The hidden network reads how many pairs of each two
elements are at which distance below 4, so that an embedding tells a pocket's shape and composition, whatever its place and
orientation. With --bonds, atoms up to that distance apart have a bond, and it reads the angles and dihedrals along the bonds
instead. Figures: benches/results/space.md.
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


def turns(places, kinds, length):
    """Logarithms of the numbers of angles by the element in the middle, and of dihedrals, at each cosine, `[5 * BINS]`."""
    distances = np.sqrt(((places[:, None] - places[None]) ** 2).sum(-1))
    bonded = (distances <= length) & (distances > 0)
    found = np.zeros((5, BINS))

    def bins(values):
        return np.minimum(((values + 1) / 2 * BINS).astype(int), BINS - 1)

    for j in range(len(places)):
        near = np.flatnonzero(bonded[j])
        sides = places[near] - places[j]
        first, second = np.triu_indices(len(near), 1)
        np.add.at(found[kinds[j]], bins(cosines(sides[first], sides[second])), 1)
        for k in near[near > j]:
            ends = [(i, l) for i in near if i != k for l in np.flatnonzero(bonded[k]) if l not in (i, j)]
            if ends:
                i, l = np.array(ends).T
                middle = places[k] - places[j]
                planes = np.cross(places[j] - places[i], middle), np.cross(middle, places[l] - places[k])
                np.add.at(found[4], bins(cosines(*planes)), 1)
    return (np.log1p(found).ravel() - 3) / 1.5


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--pockets", type=int, default=160)
    parser.add_argument("--atoms", type=int, nargs=2, default=[200, 600])
    parser.add_argument("--columns", type=int, default=1536)
    parser.add_argument("--bonds", type=float)
    options = parser.parse_args()
    random = np.random.default_rng(7)
    inputs = 10 * BINS if options.bonds is None else 5 * BINS
    first = random.normal(size=(inputs, 128)) / 3
    second = random.normal(size=(128, options.columns)) / 11
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = []
    with open(options.folder / "pockets.xyz", "w") as file:
        for _ in range(options.pockets):
            atoms = int(np.exp(random.uniform(*np.log(options.atoms))))
            places, kinds = pocket(random, atoms)
            read = counts(places, kinds) if options.bonds is None else turns(places, kinds, options.bonds)
            rows.append(np.tanh(read @ first) @ second)
            file.write(f"{atoms}\nProperties=species:S:1:pos:R:3 size={atoms}.0\n")
            for kind, (x, y, z) in zip(kinds, places):
                file.write(f"{ELEMENTS[kind]} {x:.4f} {y:.4f} {z:.4f}\n")
    # A dataset of graphs has a target; nothing is learned from it with --kd-alpha 1.
    bonds = "" if options.bonds is None else f"cutoff = {options.bonds}\n"
    (options.folder / "kdgat-graphs.toml").write_text('targets = ["size"]\n' + bonds)
    rows = np.array(rows, dtype="<f4")
    layout = {"dtype": "F32", "shape": list(rows.shape), "data_offsets": [0, rows.nbytes]}
    header = json.dumps({"embedding": layout}).encode()
    (options.folder / "targets.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + rows.tobytes())


if __name__ == "__main__":
    main()
