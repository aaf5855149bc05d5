"""Steps of schnetpack's PaiNN and SchNet, energies and forces, for `scripts/bench space`.

Reads molecules from a safetensors file, then makes one step for each line of its input and prints the milliseconds and the peak of memory.
"""

import argparse
import typing

import torch
import torch.utils.data.dataloader as dataloader
from safetensors.torch import load_file

from stepping import answer, tune

# torch 2.11 has dropped a name that schnetpack 2.1.1 imports.
dataloader.T_co = getattr(dataloader, "T_co", typing.TypeVar("T_co", covariant=True))
import schnetpack.atomistic as atomistic  # noqa: E402
import schnetpack.nn as layers  # noqa: E402
import schnetpack.representation as representation  # noqa: E402
from schnetpack import properties  # noqa: E402

NETWORKS = {"painn": representation.PaiNN, "schnet": representation.SchNet}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=NETWORKS, required=True)
    parser.add_argument("--molecules", required=True)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    tune(options.threads)
    data = load_file(options.molecules)
    network = NETWORKS[options.model](n_atom_basis=128, n_interactions=3, radial_basis=layers.GaussianRBF(20, 5.0),
                                      cutoff_fn=layers.CosineCutoff(5.0))
    head = atomistic.Atomwise(128, output_key="energy")
    model = torch.nn.ModuleList([network, head])
    targets, sources = data["targets"], data["sources"]

    def step():
        positions = data["positions"].clone().requires_grad_()
        inputs = {properties.Z: data["kinds"], properties.Rij: positions[sources] - positions[targets], properties.idx_i: targets,
                  properties.idx_j: sources, properties.idx_m: data["molecule"]}
        energies = head(network(inputs))["energy"]
        forces = -torch.autograd.grad(energies.sum(), positions, create_graph=True)[0]
        (energies.square().mean() + forces.square().mean()).backward()
        model.zero_grad(set_to_none=False)

    answer(step)


main()
