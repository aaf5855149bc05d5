"""kdgat: knowledge distillation that fits into small memory.

The package holds the program ``kdgat``, which runs on the libtorch of the PyTorch that is installed beside it, and :class:`Teacher`, the
teacher around any PyTorch module, with the losses of :mod:`kdgat.losses`. PyTorch is imported when these are used.
"""

import importlib

from kdgat.launch import TORCH_VERSION, main, program

__all__ = ["TORCH_VERSION", "Targets", "Teacher", "TopK", "losses", "main", "program"]

_LAZY = {"Teacher": "kdgat.teacher", "Targets": "kdgat.rows", "TopK": "kdgat.rows"}


def __getattr__(name):
    """Imports what needs PyTorch when it is used."""
    if name == "losses":
        return importlib.import_module("kdgat.losses")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'kdgat' has no attribute '{name}'")
