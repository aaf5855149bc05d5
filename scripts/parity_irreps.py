"""Writes tests/data/parity/irreps.safetensors: values and gradients of e3nn's parts, and of layers made of them.

    python scripts/parity_irreps.py tests/data/parity/irreps.safetensors

Needs torch and e3nn (`benches/peer/install molecules` installs both into an environment of their own). See tests/data/README.md.
"""

import math
import sys
import warnings

import torch
from safetensors.torch import save_file

warnings.filterwarnings("ignore")
from e3nn import o3  # noqa: E402
from e3nn.nn import Gate  # noqa: E402

CUTOFF, FUNCTIONS, HIDDEN, NEIGHBOURS = 3.0, 4, 5, 2.5
HARMONICS = o3.Irreps("0e+1o+2e")
# The third case begins with scalars and has neither gate nor layer norm.
CASES = {"even": ("6x0e+4x1o+2x2e", "6x0e+4x1o+2x2e", True), "all": ("2x0o+5x0e+3x1o+2x1e+1x2o+2x2e", "2x0o+5x0e+3x1o+2x1e+1x2o+2x2e", True),
         "first": ("6x0e", "6x0e+4x1o+2x2e", False)}


def in_single(tensor):
    """The nearest values in single precision: e3nn computes in double precision from numbers that kdgat has, too."""
    return tensor.float().double()


def act(irrep):
    return torch.tanh if irrep.p == -1 else torch.nn.functional.silu


def gate_of(irreps):
    scalars = o3.Irreps([part for part in irreps if part.ir.l == 0])
    gated = o3.Irreps([part for part in irreps if part.ir.l > 0])
    gates = o3.Irreps([(part.mul, "0e") for part in gated])
    return Gate(scalars, [act(part.ir) for part in scalars], gates, [torch.sigmoid for _ in gates], gated)


def radial_inputs(distances):
    """Bessel functions and a polynomial cutoff (Klicpera et al. 2020)."""
    ratio = distances / CUTOFF
    functions = math.sqrt(2 / CUTOFF) * torch.sin(torch.arange(1, FUNCTIONS + 1) * math.pi * ratio) / distances
    return functions, (1 - 28 * ratio**6 + 48 * ratio**7 - 21 * ratio**8) * (ratio < 1)


class Norm(torch.nn.Module):
    """The layer norm of Equiformer (Liao & Smidt 2023)."""

    def __init__(self, irreps):
        super().__init__()
        self.irreps = irreps
        self.weight = torch.nn.Parameter(torch.rand(irreps.num_irreps) + 0.5)
        self.bias = torch.nn.Parameter(torch.rand(sum(part.mul for part in irreps if str(part.ir) == "0e")))

    def forward(self, x):
        columns, first = [], 0
        for part, columns_of_part in zip(self.irreps, self.irreps.slices()):
            rows = x[:, columns_of_part].reshape(len(x), part.mul, part.ir.dim)
            if str(part.ir) == "0e":
                rows = rows - rows.mean(1, keepdim=True)
            rows = rows / (rows.square().mean((1, 2), keepdim=True) + 1e-5).sqrt() * self.weight[first:first + part.mul, None]
            if str(part.ir) == "0e":
                rows = rows + self.bias[:, None]
            first += part.mul
            columns.append(rows.flatten(1))
        return torch.cat(columns, 1)


class Layer(torch.nn.Module):
    def __init__(self, irreps_in, irreps_out, gated):
        super().__init__()
        self.gate = gate_of(irreps_out) if gated else None
        before = self.gate.irreps_in if gated else irreps_out
        self.linear_in = o3.Linear(irreps_in, irreps_in)
        self.product = o3.FullyConnectedTensorProduct(irreps_in, HARMONICS, before, shared_weights=False, internal_weights=False)
        self.radial_mlp = torch.nn.Sequential(torch.nn.Linear(FUNCTIONS, HIDDEN), torch.nn.SiLU(), torch.nn.Linear(HIDDEN, HIDDEN),
                                              torch.nn.SiLU(), torch.nn.Linear(HIDDEN, self.product.weight_numel))
        self.self_connection = o3.Linear(irreps_in, before)
        self.layer_norm = Norm(irreps_out) if gated else None
        self.is_residual = irreps_in == irreps_out

    def forward(self, x, vectors, targets, sources):
        distances = vectors.norm(dim=1, keepdim=True)
        harmonics = o3.spherical_harmonics(HARMONICS, vectors / distances, normalize=False, normalization="component")
        functions, fading = radial_inputs(distances)
        messages = self.product(self.linear_in(x)[sources], harmonics, self.radial_mlp(functions) * fading)
        rows = torch.zeros(len(x), messages.shape[1]).index_add(0, targets, messages) / NEIGHBOURS**0.5 + self.self_connection(x)
        rows = self.gate(rows) if self.gate else rows
        rows = rows + x if self.is_residual else rows
        return self.layer_norm(rows) if self.layer_norm else rows


def main():
    torch.set_default_dtype(torch.float64)
    generator = torch.Generator().manual_seed(3)
    positions = in_single(torch.rand(9, 3, generator=generator) * 3.5)
    pairs = [(i, j) for i in range(9) for j in range(9) if i != j and (positions[i] - positions[j]).norm() <= CUTOFF and 4 not in (i, j)]
    targets, sources = torch.tensor(pairs).T.contiguous()
    tensors = {"positions": positions, "targets": targets, "sources": sources}
    for degrees in [(a, b, c) for a in range(3) for b in range(3) for c in range(3) if abs(a - b) <= c <= a + b]:
        tensors["wigner." + "".join(map(str, degrees))] = o3.wigner_3j(*degrees)
    for name, (irreps_in, irreps_out, gated) in CASES.items():
        torch.manual_seed(5)
        irreps_in, irreps_out = o3.Irreps(irreps_in), o3.Irreps(irreps_out)
        layer = Layer(irreps_in, irreps_out, gated)
        for path, parameter in layer.named_parameters():
            parameter.data = in_single(parameter.data)
            tensors[f"{name}.state.{path}"] = parameter.detach().clone()
        x = in_single(torch.randn(len(positions), irreps_in.dim, generator=generator)).requires_grad_()
        at = positions.clone().requires_grad_()
        factors = in_single(torch.randn(len(positions), irreps_out.dim, generator=generator))
        rows = layer(x, at[sources] - at[targets], targets, sources)
        tensors |= {f"{name}.x": x.detach().clone(), f"{name}.factors": factors, f"{name}.rows": rows.detach()}
        # A loss of the rows and of their derivatives, as of energies and forces.
        energy = (rows * factors).sum()
        forces = torch.autograd.grad(energy, at, create_graph=True)[0]
        (rows.square().mean() + forces.square().mean()).backward()
        tensors |= {f"{name}.forces": forces.detach(), f"{name}.gradient.x": x.grad, f"{name}.gradient.positions": at.grad}
        tensors |= {f"{name}.gradient.{path}": parameter.grad for path, parameter in layer.named_parameters()}
    single = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    save_file({name: tensor.contiguous() for name, tensor in single.items()}, sys.argv[1])


main()
