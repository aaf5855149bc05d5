"""Measure the teacher around a PyTorch module (`kdgat.Teacher`) on this machine's CPU or GPU.

    PYTHONPATH=python python3 benches/teacher_module.py [--rounds 5] [--steps 24] [--device cuda] [--width 128]

A student of two transformer layers under a teacher of twelve layers twice as wide. Each round runs all modes in turn, and ratios are of
times of one round, because other programs may use the machine: medians over the rounds.
"""

import argparse
import statistics
import tempfile
import time

import torch
from torch import nn

import kdgat


class Encoder(nn.Module):
    """A transformer encoder with a class for each text of tokens ``[items, tokens]``."""

    def __init__(self, layers: int, width: int, classes: int = 10, vocabulary: int = 1000) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        make = lambda: nn.TransformerEncoderLayer(width, width // 32, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.ModuleList(make() for _ in range(layers))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--width", type=int, default=128, help="of the student; the teacher's is twice that")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processor-time", action="store_true", help="on a CPU that other programs use: seconds of the processor")
    parser.add_argument("--only", action="append", default=[], help="modes whose names begin like this; the first two are always measured")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    items = arguments.steps * arguments.batch
    tokens = torch.randint(0, 1000, (items, arguments.tokens))
    labels, numbers = torch.randint(0, 10, (items,)), torch.arange(items)
    module = Encoder(12, 2 * arguments.width).eval()
    loader = [{"tokens": tokens[at], "label": labels[at], "id": numbers[at]} for at in torch.randperm(items).split(arguments.batch)]
    folder = tempfile.TemporaryDirectory()
    call = lambda teacher, batch: teacher(batch["tokens"])
    quiet = lambda line: None
    settings = {"inputs": ["tokens"], "call": call, "device": device, "log": quiet}
    cached = {
        "cached by ids": kdgat.Teacher(module, ids="id", cache=f"{folder.name}/ids", **settings),
        "cached by contents": kdgat.Teacher(module, cache=f"{folder.name}/contents", **settings),
    }
    live = kdgat.Teacher(module, strategy="forward", **settings)
    resident = Encoder(12, 2 * arguments.width).eval().to(device)
    resident.load_state_dict(module.state_dict())
    moved = Encoder(12, 2 * arguments.width).eval()
    moved.load_state_dict(module.state_dict())

    def in_each_step(teacher, moves):
        for batch in loader:
            if moves:
                teacher.to(device)
            with torch.no_grad():
                targets = teacher(batch["tokens"].to(device))
            if moves:
                teacher.to("cpu")
            yield batch, targets

    fixed = torch.randn(arguments.batch, 10, device=device)
    modes = {
        "student alone": lambda: ((batch, fixed) for batch in loader),
        "teacher resident, in each step": lambda: in_each_step(resident, False),
        "teacher moved by hand in each step": lambda: in_each_step(moved, True),
        "kdgat, forward": lambda: live.distill(loader, burst=8),
        "kdgat, cached by ids": lambda: cached["cached by ids"].distill(loader, burst=8),
        "kdgat, cached by contents": lambda: cached["cached by contents"].distill(loader, burst=8),
    }
    if device.type == "cpu":
        # Weights are in host memory anyway.
        del modes["teacher moved by hand in each step"]
    if arguments.only:
        first = list(modes)[:2]
        modes = {name: mode for name, mode in modes.items() if name in first or any(name.startswith(only) for only in arguments.only)}
    for teacher in cached.values():
        for _ in teacher.distill(loader, burst=8):
            pass

    def run(mode):
        torch.manual_seed(1)
        student = Encoder(2, arguments.width).to(device)
        optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
        losses = []
        if device.type == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        clock = time.process_time if arguments.processor_time else time.perf_counter
        started = clock()
        for batch, targets in modes[mode]():
            logits = student(batch["tokens"].to(device))
            loss = kdgat.losses.kl(logits, targets, 2.0) + nn.functional.cross_entropy(logits, batch["label"].to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = clock() - started
        peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
        return seconds / len(losses), [float(loss) for loss in losses], peak

    times = {mode: [] for mode in modes}
    found, peaks = {}, {}
    for mode in modes:
        run(mode)
    for _ in range(arguments.rounds):
        for mode in modes:
            seconds, found[mode], peaks[mode] = run(mode)
            times[mode].append(seconds)
    alone = times["student alone"]
    on_each = times["teacher resident, in each step"]
    size = sum(tensor.numel() for tensor in module.parameters())
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {device}; teacher of {size / 1e6:.1f} million parameters, "
        f"batches of {arguments.batch} x {arguments.tokens} tokens"
    )
    print(f"{'mode':36} {'ms a step':>10} {'by student alone':>17} {'speed-up':>9}" + ("  peak MiB" if device.type == "cuda" else ""))
    for mode in modes:
        ratio = statistics.median(one / other for one, other in zip(times[mode], alone))
        faster = statistics.median(one / other for one, other in zip(on_each, times[mode]))
        line = f"{mode:36} {1e3 * statistics.median(times[mode]):10.2f} {ratio:17.3f} {faster:9.2f}"
        print(line + (f" {peaks[mode] / (1 << 20):9.1f}" if device.type == "cuda" else ""))
    expected = found["teacher resident, in each step"]
    for mode in list(modes)[2:]:
        print(
            f"losses of '{mode}' and of the teacher in each step differ by "
            f"{max(abs(one - other) for one, other in zip(found[mode], expected)):.1e}"
        )


if __name__ == "__main__":
    main()
