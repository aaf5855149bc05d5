"""Steps of a network of representations on a pocket with e3nn, for `scripts/bench space`.

Reads the edges from a safetensors file, then makes one step for each line of its input and prints the milliseconds and the peak of memory above
that before the first step, in MiB.
"""

import argparse
import warnings

import torch
from safetensors.torch import load_file

from stepping import answer, tune

warnings.filterwarnings("ignore")
from e3nn import o3  # noqa: E402
from e3nn.nn import Gate  # noqa: E402

IRREPS, HARMONICS = o3.Irreps("32x0e+16x1o+8x2e"), o3.Irreps("0e+1o+2e")
GATE = Gate(o3.Irreps("32x0e"), [torch.nn.functional.silu], o3.Irreps("24x0e"), [torch.sigmoid], o3.Irreps("16x1o+8x2e"))
LAYERS, HIDDEN, NEIGHBOURS, SHARE = 6, 64, 36, 0.2


class Layer(torch.nn.Module):
    def __init__(self, inputs, self_connection):
        super().__init__()
        self.linear = o3.Linear(IRREPS, IRREPS)
        self.product = o3.FullyConnectedTensorProduct(IRREPS, HARMONICS, GATE.irreps_in, shared_weights=False, internal_weights=False)
        self.radial = torch.nn.Sequential(torch.nn.Linear(inputs, HIDDEN), torch.nn.SiLU(), torch.nn.Linear(HIDDEN, HIDDEN), torch.nn.SiLU(),
                                          torch.nn.Linear(HIDDEN, self.product.weight_numel))
        self.self_connection = o3.Linear(IRREPS, GATE.irreps_in) if self_connection else None
        self.gate = GATE

    def forward(self, x, edges):
        sources, targets, harmonics, radial = edges
        messages = self.product(self.linear(x)[sources], harmonics, self.radial(radial))
        rows = torch.zeros(len(x), messages.shape[1]).index_add(0, targets, messages) / NEIGHBOURS**0.5
        return self.gate(rows + self.self_connection(x) if self.self_connection is not None else rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--pocket", required=True)
    options = parser.parse_args()
    tune(options.threads)
    data = load_file(options.pocket)

    def edges(name):
        harmonics = o3.spherical_harmonics(HARMONICS, data[f"{name}.directions"], normalize=True, normalization="component")
        return data[f"{name}.sources"], data[f"{name}.targets"], harmonics, data[f"{name}.radial"]

    bonded, near = edges("bonded"), edges("near")
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.ModuleList([Layer(bonded[3].shape[1], True), Layer(near[3].shape[1], False)]) for _ in range(LAYERS)])

    def step():
        x = data["rows"]
        for of_bonds, of_near in layers:
            x = x + of_bonds(x, bonded) + SHARE * of_near(x, near)
        x[:, :32].square().mean().backward()
        layers.zero_grad(set_to_none=False)

    answer(step)


main()
