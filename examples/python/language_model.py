"""A small language model that learns from a larger one, with top-64 targets of a vocabulary of 32,000.

    python3 language_model.py            the loop of kdgat.Teacher, beside all logits: bytes a token, loss
    python3 language_model.py --trainer  the same with transformers.Trainer

The models are made from their configuration, and the language is made up: each class of words is followed by likely classes, and few words of
a class are frequent. Nothing is downloaded; a run takes a few minutes on two cores. Needs transformers (pip install transformers; --trainer also needs accelerate).
"""

import argparse
import os
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import kdgat


def texts(number: int, length: int, vocabulary: int, classes: int = 20) -> torch.Tensor:
    """Texts of the made-up language, ``[number, length]``."""
    generator = torch.Generator().manual_seed(1)
    follows = torch.softmax(4 * torch.randn(classes, classes, generator=generator), 1)
    words = vocabulary // classes
    # The n-th word of a class has the weight 1/n².
    frequency = torch.arange(1.0, words + 1) ** -2
    at = torch.randint(0, classes, (number,), generator=generator)
    tokens = []
    for _ in range(length):
        tokens.append(at * words + torch.multinomial(frequency.expand(number, -1), 1, generator=generator)[:, 0])
        at = torch.multinomial(follows[at], 1, generator=generator)[:, 0]
    return torch.stack(tokens, 1)


def model(layers: int, width: int, vocabulary: int, length: int) -> GPT2LMHeadModel:
    config = GPT2Config(vocab_size=vocabulary, n_positions=length, n_embd=width, n_layer=layers, n_head=4, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config)


def train_teacher(teacher: GPT2LMHeadModel, batches, steps: int) -> float:
    """Trains a teacher on the language itself. Returns its last loss."""
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=3e-3)
    for step in range(steps):
        loss = teacher(**batches[step % len(batches)]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def distil(student: GPT2LMHeadModel, teacher: kdgat.Teacher, batches, epochs: int) -> list:
    """Trains a student. Returns the mean distillation loss of each epoch."""
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
    means = []
    for _ in range(epochs):
        total = 0.0
        for batch, targets in teacher.distill(batches, burst=8):
            output = student(**batch)
            distillation = kdgat.losses.kl(output.logits, targets)
            loss = 0.5 * distillation + 0.5 * output.loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += distillation.item()
        means.append(total / len(batches))
    return means


def with_trainer(student: GPT2LMHeadModel, teacher: kdgat.Teacher, tokens: torch.Tensor, epochs: int, batch: int) -> None:
    """The same with transformers.Trainer: the targets of a batch in `compute_loss`."""
    from transformers import Trainer, TrainingArguments

    class Distiller(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, **_):
            output = model(**inputs)
            # A copy of the dictionary: the trainer's batches may have more than the teacher reads.
            loss = 0.5 * kdgat.losses.kl(output.logits, teacher.targets(inputs)) + 0.5 * output.loss
            return (loss, output) if return_outputs else loss

    dataset = [{"input_ids": row, "labels": row} for row in tokens]
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            folder,
            num_train_epochs=epochs,
            per_device_train_batch_size=batch,
            learning_rate=3e-3,
            report_to=[],
            save_strategy="no",
            use_cpu=not torch.cuda.is_available(),
            disable_tqdm=True,
        )
        Distiller(model=student, args=settings, train_dataset=dataset).train()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", action="store_true")
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--teacher-steps", type=int, default=700)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    tokens = texts(arguments.texts, arguments.length, arguments.vocabulary)
    batches = [{"input_ids": part, "labels": part} for part in tokens.split(arguments.batch)]
    big = model(4, 128, arguments.vocabulary, arguments.length)
    print(f"teacher's loss after {arguments.teacher_steps} steps: {train_teacher(big, batches, arguments.teacher_steps):.3f}")

    def student() -> GPT2LMHeadModel:
        torch.manual_seed(1)
        return model(1, 64, arguments.vocabulary, arguments.length)

    with tempfile.TemporaryDirectory() as folder:
        settings = {"outputs": lambda out: out.logits, "inputs": ["input_ids"], "top_k": 64, "temperatures": [1.0]}
        with kdgat.Teacher(big, cache=f"{folder}/targets", **settings) as teacher:
            if arguments.trainer:
                with_trainer(student(), teacher, tokens, arguments.epochs, arguments.batch)
                print(teacher.summary())
                return
            top = distil(student(), teacher, batches, arguments.epochs)
            print(teacher.summary())
        size = sum(entry.stat().st_size for entry in os.scandir(f"{folder}/targets"))
        print(f"on disk: {size / tokens.numel():.1f} bytes a token; all logits would be {4 * arguments.vocabulary}")
    with kdgat.Teacher(big, lambda out: out.logits, inputs=["input_ids"]) as teacher:
        whole = distil(student(), teacher, batches, arguments.epochs)
    for epoch, (one, other) in enumerate(zip(top, whole), 1):
        print(
            f"epoch {epoch}: distillation loss {one:.4f} from the 64 largest logits, {other:.4f} from all "
            f"({100 * (one / other - 1):+.2f} %)"
        )


if __name__ == "__main__":
    main()
