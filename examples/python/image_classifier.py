"""A small image classifier that learns from a larger one, in a loop of your own or with Lightning.

    python3 image_classifier.py              the loop of kdgat.Teacher, with workers that load images
    python3 image_classifier.py --lightning  the same with Lightning (pip install lightning)

The images are made up: stripes of four directions under noise.
"""

import argparse
import tempfile

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import kdgat


def images(number: int, seed: int, size: int = 16):
    """Images ``[number, 3, size, size]`` and their classes, the direction of the stripes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (number,), generator=generator)
    rows, columns = torch.meshgrid(torch.arange(float(size)), torch.arange(float(size)), indexing="ij")
    waves = torch.stack([rows, columns, rows + columns, rows - columns])[labels]
    phases = 6.28 * torch.rand(number, 1, 1, generator=generator)
    stripes = torch.sin(1.3 * waves + phases)[:, None].expand(-1, 3, -1, -1)
    return stripes + 1.5 * torch.randn(number, 3, size, size, generator=generator), labels


def network(width: int) -> nn.Module:
    def block(inputs: int, outputs: int) -> list:
        return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(
        *block(3, width), *block(width, 2 * width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(2 * width, 4)
    )


def accuracy(module: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.no_grad():
        return (module.eval()(inputs).argmax(1) == labels).float().mean().item()


def train_teacher(module: nn.Module, dataset: TensorDataset, epochs: int) -> None:
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    for _ in range(epochs):
        for inputs, labels in DataLoader(dataset, batch_size=64, shuffle=True):
            loss = nn.functional.cross_entropy(module.train()(inputs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def own_loop(student: nn.Module, teacher: kdgat.Teacher, loader: DataLoader, epochs: int) -> None:
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
    for _ in range(epochs):
        for (inputs, labels), targets in teacher.distill(loader, burst=8):
            logits = student.train()(inputs)
            loss = 0.5 * kdgat.losses.dkd(logits, targets, labels, temperature=2.0) + nn.functional.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def with_lightning(student: nn.Module, teacher: kdgat.Teacher, loader: DataLoader, epochs: int) -> None:
    """The targets of a batch in `training_step`. The teacher is no attribute of the module, so that it is neither saved nor moved."""
    import lightning

    class Distiller(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.student = student

        def training_step(self, batch, _):
            inputs, labels = batch
            logits = self.student(inputs)
            targets = teacher.targets(batch)
            return 0.5 * kdgat.losses.dkd(logits, targets, labels, temperature=2.0) + nn.functional.cross_entropy(logits, labels)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    settings = {
        "max_epochs": epochs,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    lightning.Trainer(accelerator="auto", devices=1, **settings).fit(Distiller(), loader)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lightning", action="store_true")
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    dataset, held_out = TensorDataset(*images(arguments.images, 1)), images(512, 2)
    big, student = network(32), network(4)
    train_teacher(big, dataset, arguments.epochs)
    loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=arguments.workers)
    with tempfile.TemporaryDirectory() as folder:
        # Position 0 of a batch is the images; the labels are no input of the teacher.
        with kdgat.Teacher(big, inputs=[0], cache=f"{folder}/targets") as teacher:
            (with_lightning if arguments.lightning else own_loop)(student, teacher, loader, arguments.epochs)
            print(teacher.summary())
    print(f"accuracy on held-out images: teacher {accuracy(big, *held_out):.3f}, student {accuracy(student, *held_out):.3f}")


if __name__ == "__main__":
    main()
