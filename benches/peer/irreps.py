"""Steps of a network of representations on a pocket with e3nn, for `scripts/bench space`.

Reads the edges from a safetensors file, then makes one step for each line of its input and prints the milliseconds and the peak of memory above
that before the first step, in MiB.
"""

import argparse
import ctypes
import resource
import sys
import time
import warnings

import torch
from safetensors.torch import load_file

warnings.filterwarnings("ignore")
from e3nn import o3  # noqa: E402
from e3nn.nn import Gate  # noqa: E402

IRREPS, HARMONICS = o3.Irreps("32x0e+16x1o+8x2e"), o3.Irreps("0e+1o+2e")
GATE = Gate(o3.Irreps("32x0e"), [torch.nn.functional.silu], o3.Irreps("24x0e"), [torch.sigmoid], o3.Irreps("16x1o+8x2e"))
LAYERS, HIDDEN, NEIGHBOURS, SHARE = 6, 64, 36, 0.2
# glibc's mallopt: thresholds above which freed memory is returned, and blocks are mapped anew.
TRIM_THRESHOLD, MMAP_THRESHOLD, LARGEST = -1, -3, 2**31 - 1


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
    libc = ctypes.CDLL(None)
    for parameter in (TRIM_THRESHOLD, MMAP_THRESHOLD):
        libc.mallopt(parameter, LARGEST)
    torch.set_num_threads(options.threads)
    data = load_file(options.pocket)

    def edges(name):
        harmonics = o3.spherical_harmonics(HARMONICS, data[f"{name}.directions"], normalize=True, normalization="component")
        return data[f"{name}.sources"], data[f"{name}.targets"], harmonics, data[f"{name}.radial"]

    bonded, near = edges("bonded"), edges("near")
    torch.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.ModuleList([Layer(bonded[3].shape[1], True), Layer(near[3].shape[1], False)]) for _ in range(LAYERS)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for line in sys.stdin:
        start = time.perf_counter()
        x = data["rows"]
        for of_bonds, of_near in layers:
            x = x + of_bonds(x, bonded) + SHARE * of_near(x, near)
        x[:, :32].square().mean().backward()
        layers.zero_grad(set_to_none=False)
        seconds = time.perf_counter() - start
        print(1e3 * seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, flush=True)


main()
