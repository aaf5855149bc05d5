"""Writes tests/data/parity/space_models.safetensors: energies, forces and gradients of schnetpack's SchNet and PaiNN.

    python scripts/parity_molecules.py tests/data/parity/space_models.safetensors

Needs torch and schnetpack (`benches/peer/install molecules` installs both into an environment of their own). See tests/data/README.md.
"""

import sys
import typing

import torch
import torch.utils.data.dataloader as dataloader

# torch 2.11 has dropped a name that schnetpack 2.1.1 imports.
dataloader.T_co = getattr(dataloader, "T_co", typing.TypeVar("T_co", covariant=True))
import schnetpack.atomistic as atomistic  # noqa: E402
import schnetpack.nn as layers  # noqa: E402
import schnetpack.representation as representation  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from schnetpack import properties  # noqa: E402

COLUMNS, INTERACTIONS, FUNCTIONS, CUTOFF = 8, 2, 5, 3.0
# Number of atoms of each molecule; the third one's atom has no neighbour.
SIZES = [6, 4, 1, 7]
# The cell of the last molecule is periodic along its first axis, with this length.
PERIOD = 4.5

NETWORKS = {"painn": (representation.PaiNN, layers.GaussianRBF, "sum"), "schnet": (representation.SchNet, layers.GaussianRBF, "sum"),
            "bessel": (representation.PaiNN, layers.BesselRBF, "avg")}


def molecules():
    generator = torch.Generator().manual_seed(3)
    kinds, positions, pairs, shifts, first = [], [], [], [], 0
    for molecule, atoms in enumerate(SIZES):
        spots = torch.rand(atoms, 3, generator=generator) * 3
        kinds.append(torch.tensor([6, 1, 8, 7])[torch.randint(4, (atoms,), generator=generator)])
        positions.append(spots)
        images = (-1, 0, 1) if molecule == len(SIZES) - 1 else (0,)
        for target in range(atoms):
            for source in range(atoms):
                for image in images:
                    shift = torch.tensor([image * PERIOD, 0, 0])
                    distance = float((spots[source] + shift - spots[target]).norm())
                    if 0 < distance <= CUTOFF:
                        pairs.append((first + target, first + source))
                        shifts.append(shift)
        first += atoms
    molecule = torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))
    return torch.cat(kinds), torch.cat(positions), torch.tensor(pairs).T.contiguous(), torch.stack(shifts), molecule


def main():
    kinds, positions, (targets, sources), shifts, molecule = molecules()
    tensors = {"kinds": kinds, "positions": positions, "targets": targets, "sources": sources, "shifts": shifts, "molecule": molecule}
    for name, (network, basis, mode) in NETWORKS.items():
        torch.manual_seed(5)
        parts = torch.nn.ModuleDict({
            "representation": network(n_atom_basis=COLUMNS, n_interactions=INTERACTIONS, radial_basis=basis(FUNCTIONS, cutoff=CUTOFF),
                                      cutoff_fn=layers.CosineCutoff(CUTOFF)),
            "output_modules": torch.nn.ModuleList([atomistic.Atomwise(COLUMNS, aggregation_mode=mode, output_key="energy")]),
        })
        for path, parameter in parts.named_parameters():
            if path.endswith("bias"):
                torch.nn.init.uniform_(parameter, -0.5, 0.5)
            tensors[f"{name}.state.{path}"] = parameter.detach().clone()
        at = positions.clone().requires_grad_()
        inputs = {properties.Z: kinds, properties.Rij: at[sources] + shifts - at[targets], properties.idx_i: targets,
                  properties.idx_j: sources, properties.idx_m: molecule, properties.n_atoms: torch.tensor(SIZES)}
        energies = parts["output_modules"][0](parts["representation"](inputs))["energy"]
        forces = -torch.autograd.grad(energies.sum(), at, create_graph=True)[0]
        (energies.square().mean() + forces.square().mean()).backward()
        tensors |= {f"{name}.energies": energies.detach(), f"{name}.forces": forces.detach()}
        tensors |= {f"{name}.gradient.{path}": parameter.grad for path, parameter in parts.named_parameters()}
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, sys.argv[1])


main()
