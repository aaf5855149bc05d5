"""Trains schnetpack's PaiNN or SchNet on properties of molecules in the tables that `scripts/qm9_to_tables.py` writes, with the settings of `kdgat train`.

    python benches/peer/train_properties.py --model painn --data qm9 --folds-file folds.json --epochs 20 --seed 1

The first fold of the JSON list names the molecules for test (`test`), training and validation (`model_selection`) by their place in graphs.csv. One network
for all targets: of each the part that is linear in the numbers of atoms of each element, fitted on the training molecules, is taken off, and the rest is
standardised. The epoch with the lowest validation loss is scored. Prints a line of JSON for each epoch, then one with the mean absolute errors on the test
molecules in the units of the tables.
"""

import csv
import json
import os
import sys

import numpy
import torch

from train_molecules import atomistic, fit, joined, near_pairs, network, properties, settings

ELEMENTS = {"H": 1, "C": 6, "N": 7, "O": 8, "F": 9}


def arguments():
    parser = settings(__doc__, epochs=20)
    parser.add_argument("--data", required=True, help="folder with graphs.csv and nodes.csv")
    parser.add_argument("--folds-file", required=True)
    return parser.parse_args()


class Tables:
    """Molecules with their pairs of atoms within the cutoff, the numbers of atoms of each element `[molecules, elements]` and targets `[molecules, targets]`."""

    def __init__(self, folder, cutoff):
        with open(os.path.join(folder, "graphs.csv"), newline="") as file:
            rows = list(csv.DictReader(file))
        self.names = [name for name in rows[0] if name.startswith("y_")]
        self.targets = torch.tensor([[float(row[name]) for name in self.names] for row in rows], dtype=torch.float64)
        atoms = {row["graph_id"]: [] for row in rows}
        with open(os.path.join(folder, "nodes.csv"), newline="") as file:
            for row in csv.DictReader(file):
                atoms[row["graph_id"]].append((ELEMENTS[row["c_element"]], *(float(row[axis]) for axis in ("pos_x", "pos_y", "pos_z"))))
        self.kinds = [torch.tensor([atom[0] for atom in molecule]) for molecule in atoms.values()]
        positions = [torch.tensor([atom[1:] for atom in molecule], dtype=torch.float64) for molecule in atoms.values()]
        self.pairs = [near_pairs(molecule, cutoff) for molecule in positions]
        self.positions = [molecule.float() for molecule in positions]
        counts = [[int((kinds == element).sum()) for element in ELEMENTS.values()] for kinds in self.kinds]
        self.counts = torch.tensor(counts, dtype=torch.float64)

    def inputs(self, chosen):
        return joined(*([parts[index] for index in chosen] for parts in (self.kinds, self.positions, self.pairs)))


class Model(torch.nn.Module):
    def __init__(self, options, targets):
        super().__init__()
        outputs = atomistic.Atomwise(options.columns, n_out=targets, output_key="values")
        self.steps = torch.nn.ModuleList([atomistic.PairwiseDistances(), network(options), outputs])

    def forward(self, inputs):
        for step in self.steps:
            inputs = step(inputs)
        return inputs["values"]


def main():
    options = arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    molecules = Tables(options.data, options.cutoff)
    with open(options.folds_file) as file:
        fold = json.load(file)[0]
    test, training, validation = (torch.tensor(chosen) for chosen in (fold["test"], *(fold["model_selection"][0][part] for part in ("train", "validation"))))

    # The linear part without an intercept, as kdgat has it; the rest has a mean.
    weights = torch.from_numpy(numpy.linalg.lstsq(molecules.counts[training].numpy(), molecules.targets[training].numpy(), rcond=None)[0])
    rest = molecules.targets - molecules.counts @ weights
    mean, deviation = rest[training].mean(0), rest[training].std(0, unbiased=False)
    standardised = ((rest - mean) / deviation).float()
    model = Model(options, len(molecules.names))

    def errors(chosen):
        return model(molecules.inputs(chosen)) - standardised[chosen]

    def all_errors(chosen):
        with torch.no_grad():
            return torch.cat([errors(batch) for batch in chosen.split(100)])

    def validate():
        found = all_errors(validation)
        return float(found.square().mean()), dict(zip(molecules.names, (found.abs().mean(0) * deviation).tolist()))

    best_epoch, best_loss, seconds = fit(options, model, training, lambda batch: errors(batch).square().mean(), validate)
    found = (all_errors(test).double() * deviation).abs().mean(0)
    print(json.dumps({"model": options.model, "seed": options.seed, "best_epoch": best_epoch, "validation": best_loss,
                      "parameters": sum(each.numel() for each in model.parameters()), "mae": dict(zip(molecules.names, found.tolist())), "seconds": seconds}))


if __name__ == "__main__":
    sys.exit(main())
