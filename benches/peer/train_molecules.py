"""Trains schnetpack's PaiNN or SchNet on conformations in the layout of rMD17, with the settings of `kdgat train --preset painn,teacher`.

    python benches/peer/train_molecules.py --model painn --train train.npz --test test.npz --epochs 100 --seed 1

The last conformations of the training file are for validation, or those of `--folds-file`, which `kdgat train` reads, too; the epoch with the lowest
validation loss is scored on the test file. Energies are standardised by the mean and the deviation of the training ones, and forces divided by that
deviation. Prints a line of JSON for each epoch, then one with the errors in the units of the data.
"""

import argparse
import copy
import json
import math
import sys
import time
import typing

import numpy
import torch
import torch.utils.data.dataloader as dataloader

# torch 2.11 has dropped a name that schnetpack 2.1.1 imports.
dataloader.T_co = getattr(dataloader, "T_co", typing.TypeVar("T_co", covariant=True))
import schnetpack.atomistic as atomistic  # noqa: E402
import schnetpack.nn as layers  # noqa: E402
import schnetpack.representation as representation  # noqa: E402
from schnetpack import properties  # noqa: E402

NETWORKS = {"painn": representation.PaiNN, "schnet": representation.SchNet}


def settings(description, epochs):
    """A parser of the settings that all trainings have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=NETWORKS, required=True)
    parser.add_argument("--columns", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--radial-functions", type=int, default=20)
    parser.add_argument("--cutoff", type=float, default=5.0)
    parser.add_argument("--epochs", type=int, default=epochs)
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.002)
    parser.add_argument("--gradient-clip", type=float, default=1.0)
    parser.add_argument("--ema-decay", type=float, default=0.0, help="of the moving average of the weights, which is validated and scored; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    return parser


def arguments():
    parser = settings(__doc__, epochs=100)
    parser.add_argument("--train", required=True)
    parser.add_argument("--test", required=True)
    parser.add_argument("--validation", type=int, default=50, help="conformations at the end of the training file that validate")
    parser.add_argument("--folds-file", help="JSON list whose first fold has the training and validation conformations (`model_selection`)")
    parser.add_argument("--energy-weight", type=float, default=0.01)
    parser.add_argument("--force-weight", type=float, default=0.99)
    return parser.parse_args()


def near_pairs(positions, cutoff):
    """Pairs of atoms within the cutoff, `[pairs, 2]`: target and source. `positions`: `[atoms, 3]`, f64."""
    near = torch.cdist(positions, positions) <= cutoff
    near.fill_diagonal_(False)
    return near.nonzero()


def joined(kinds, positions, pairs):
    """A batch of molecules as schnetpack reads it."""
    atoms = [len(each) for each in kinds]
    firsts = torch.tensor(atoms).cumsum(0) - torch.tensor(atoms)
    targets, sources = torch.cat([each + first for each, first in zip(pairs, firsts)]).T
    return {
        properties.Z: torch.cat(kinds),
        properties.R: torch.cat(positions),
        properties.idx_i: targets.contiguous(),
        properties.idx_j: sources.contiguous(),
        properties.idx_m: torch.arange(len(atoms)).repeat_interleave(torch.tensor(atoms)),
        properties.offsets: torch.zeros(len(targets), 3),
    }


def network(options):
    """The representation of atoms."""
    basis = layers.GaussianRBF(options.radial_functions, options.cutoff)
    return NETWORKS[options.model](n_atom_basis=options.columns, n_interactions=options.layers, radial_basis=basis,
                                   cutoff_fn=layers.CosineCutoff(options.cutoff))


class Average:
    """The moving average of a model's weights that `kdgat train --ema-decay` keeps; with a decay of 0 the weights themselves."""

    def __init__(self, model, decay):
        self.weights = list(model.parameters())
        self.decay, self.steps = decay, 0
        self.average = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def follow(self):
        share = 1 - min(self.decay, self.steps / (self.steps + 9))
        torch._foreach_lerp_(self.average, self.weights, share)
        self.steps += 1

    @torch.no_grad()
    def exchange(self):
        for weight, average in zip(self.weights, self.average):
            kept = weight.clone()
            weight.copy_(average)
            average.copy_(kept)


def fit(options, model, training, loss_of, validate):
    """Trains, and leaves the weights of the epoch with the lowest validation loss in the model. `loss_of` gives the loss of some items, `validate` the
    validation loss with what else is to be printed. Returns the best epoch, its loss and the seconds."""
    optimizer, average = torch.optim.Adam(model.parameters(), lr=options.lr), Average(model, options.ema_decay)
    best, best_loss, best_epoch, start = None, math.inf, 0, time.time()
    for epoch in range(1, options.epochs + 1):
        rate = 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (epoch - 1) / options.epochs))
        for group in optimizer.param_groups:
            group["lr"] = options.lr * rate
        model.train()
        total = 0.0
        for batch in training[torch.randperm(len(training))].split(options.batch_size):
            loss = loss_of(batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), options.gradient_clip)
            optimizer.step()
            average.follow()
            total += float(loss.detach()) * len(batch)
        model.eval()
        average.exchange()
        own, shown = validate()
        if own < best_loss:
            best, best_loss, best_epoch = copy.deepcopy(model.state_dict()), own, epoch
        average.exchange()
        line = {"epoch": epoch, "loss": total / len(training), "validation": own, **shown, "seconds": round(time.time() - start, 1)}
        print(json.dumps(line), flush=True)
    model.load_state_dict(best)
    return best_epoch, best_loss, round(time.time() - start, 1)


class Molecules:
    """Conformations of one molecule, with the pairs of atoms within the cutoff."""

    def __init__(self, path, cutoff):
        data = numpy.load(path)
        self.kinds = torch.from_numpy(data["nuclear_charges"].astype(numpy.int64))
        positions = torch.from_numpy(data["coords"].astype(numpy.float64))
        self.positions = positions.float()
        self.energies = torch.from_numpy(data["energies"].astype(numpy.float64))
        self.forces = torch.from_numpy(data["forces"].astype(numpy.float64))
        self.pairs = [near_pairs(conformation, cutoff) for conformation in positions]

    def inputs(self, chosen):
        return joined([self.kinds] * len(chosen), [self.positions[index] for index in chosen], [self.pairs[index] for index in chosen])


class Model(torch.nn.Module):
    def __init__(self, options):
        super().__init__()
        self.steps = torch.nn.ModuleList([atomistic.PairwiseDistances(), network(options), atomistic.Atomwise(options.columns, output_key="energy"),
                                          atomistic.Forces(energy_key="energy")])

    def forward(self, inputs):
        inputs[properties.R].requires_grad_()
        for step in self.steps:
            inputs = step(inputs)
        return inputs["energy"], inputs["forces"]


def division(options, count):
    """The conformations for training and for validation, by their place in the training file."""
    if options.folds_file is None:
        return torch.arange(count - options.validation), torch.arange(count - options.validation, count)
    with open(options.folds_file) as file:
        chosen = json.load(file)[0]["model_selection"][0]
    return torch.tensor(chosen["train"]), torch.tensor(chosen["validation"])


def main():
    options = arguments()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    known, test = Molecules(options.train, options.cutoff), Molecules(options.test, options.cutoff)
    training, validation = division(options, len(known.energies))
    mean, deviation = known.energies[training].mean(), known.energies[training].std(unbiased=False)
    model = Model(options)

    def answers(molecules, chosen):
        energies, forces = model(molecules.inputs(chosen))
        true_energies = ((molecules.energies[chosen] - mean) / deviation).float()
        true_forces = (molecules.forces[chosen] / deviation).float().reshape(-1, 3)
        return energies - true_energies, forces - true_forces

    def loss_of(energies, forces):
        return options.energy_weight * energies.square().mean() + options.force_weight * forces.square().mean()

    def all_answers(molecules, chosen):
        model.eval()
        found = [[part.detach() for part in answers(molecules, batch)] for batch in chosen.split(100)]
        return [torch.cat(parts) for parts in zip(*found)]

    def validate():
        errors = all_answers(known, validation)
        return float(loss_of(*errors)), {name: float(error.abs().mean() * deviation) for name, error in zip(("energy", "forces"), errors)}

    best_epoch, best_loss, seconds = fit(options, model, training, lambda batch: loss_of(*answers(known, batch)), validate)
    energies, forces = (errors.double() * deviation for errors in all_answers(test, torch.arange(len(test.energies))))
    print(json.dumps({"model": options.model, "seed": options.seed, "best_epoch": best_epoch, "validation": best_loss,
                      "energy_mae": float(energies.abs().mean()), "energy_rmse": float(energies.square().mean().sqrt()),
                      "forces_mae": float(forces.abs().mean()), "forces_rmse": float(forces.square().mean().sqrt()), "seconds": seconds}))


if __name__ == "__main__":
    sys.exit(main())
