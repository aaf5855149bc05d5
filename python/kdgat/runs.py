"""A run's folder: configuration, metrics, weights. Neither the program nor PyTorch is needed."""

from __future__ import annotations

import csv
import json
import math
import os
import pathlib
from typing import Any, Union

import numpy as np

from kdgat.safetensors_file import read_tensors


class RunError(ValueError):
    """A folder that is no run, or a damaged file in it."""


class Run:
    """A run's folder (docs/runs.md), as the program wrote it: of a finished run, a stopped one, or one that is still training."""

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Opens a run. Raises RunError if the folder has no ``config.json`` of a run."""
        self.path = pathlib.Path(path)
        recorded = self._json("config.json")
        if not isinstance(recorded, dict) or not isinstance(recorded.get("config"), dict):
            raise RunError(f"{self.path} is no run of kdgat: it has no config.json of one")
        #: The command that trained: ``autoencoder``, ``classifier``, ``curriculum``, ``train`` or ``fusion``.
        self.command: str = recorded.get("command", "")
        #: Digests of data, teacher and division, and the size of batches.
        self.inputs: dict = recorded.get("inputs", {})
        #: The fields of the configuration, by section.
        self.sections: dict = recorded["config"]

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.command}, {'finished' if self.is_finished else 'unfinished'})"

    @property
    def config(self) -> dict:
        """All fields of the configuration, by name: ``run.config["lr"]``."""
        return {name: value for section in self.sections.values() for name, value in section.items()}

    @property
    def is_finished(self) -> bool:
        """True if the training ended by itself."""
        return (self.path / "summary.json").exists()

    @property
    def summary(self) -> dict:
        """The run's ending and its numbers; empty while it has not ended."""
        return self._json("summary.json") or {}

    @property
    def metrics(self) -> Any:
        """Losses and rates, a row an epoch: a DataFrame if pandas is installed, else a dictionary of columns ``[epochs]``."""
        return self._table("metrics.csv")

    @property
    def steps(self) -> Any:
        """A row every ``log_every_n_steps`` steps, in the same form."""
        return self._table("steps.csv")

    @property
    def memory(self) -> Any:
        """Bytes of the process and of its tensors by purpose, a row every ``memory_sample_seconds``, in the same form."""
        return self._table("memory.csv")

    def weights(self) -> dict[str, np.ndarray]:
        """Returns the tensors of the best epoch by name, mapped from the file. Raises RunError if there are none yet."""
        path = self.path / "best.safetensors"
        if not path.exists():
            raise RunError(f"{self.path} has no best.safetensors yet: its first epoch has not ended")
        try:
            return read_tensors(path)
        except ValueError as error:
            raise RunError(str(error)) from error

    def _json(self, name: str) -> Any:
        path = self.path / name
        try:
            return json.loads(path.read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{path}: damaged ({error})") from error

    def _table(self, name: str) -> Any:
        path = self.path / name
        if not path.exists():
            raise RunError(f"{self.path} has no {name} yet")
        columns = _columns(path)
        try:
            import pandas
        except ImportError:
            return columns
        return pandas.DataFrame(columns)


def _columns(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Reads a table: numbers as f64, with NaN where a cell is empty; other columns as texts."""
    text = path.read_text()
    # The program is writing the last line, or was killed while it did.
    rows = list(csv.reader(text[: text.rfind("\n") + 1].splitlines()))
    if not rows:
        raise RunError(f"{path}: empty, without a line of column names")
    names, rows = rows[0], rows[1:]
    for number, row in enumerate(rows, 2):
        if len(row) != len(names):
            raise RunError(f"{path}, line {number}: {len(row)} cells, where the line of names has {len(names)}")
    return {name: _column([row[index] for row in rows]) for index, name in enumerate(names)}


def _column(cells: list[str]) -> np.ndarray:
    try:
        return np.array([float(cell) if cell else math.nan for cell in cells])
    except ValueError:
        return np.array(cells)
