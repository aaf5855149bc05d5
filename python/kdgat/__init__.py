"""kdgat: knowledge distillation that fits into small memory.

The package holds the program ``kdgat``, which runs on the libtorch of the PyTorch that is installed beside it, and :class:`Teacher`, the
teacher around any PyTorch module, with the losses of :mod:`kdgat.losses`. PyTorch is imported when these are used; :class:`Run`, :func:`run`,
:func:`check`, :func:`build` and :class:`Detector` import none.
"""

import importlib

from kdgat.launch import TORCH_VERSION, main, program

__all__ = [
    "TORCH_VERSION",
    "Detector",
    "ProgramError",
    "Run",
    "RunError",
    "Targets",
    "Teacher",
    "TopK",
    "Verdict",
    "build",
    "check",
    "losses",
    "main",
    "program",
    "run",
]

_LAZY = {
    "Detector": "kdgat.detector",
    "ProgramError": "kdgat.command",
    "Run": "kdgat.runs",
    "RunError": "kdgat.runs",
    "Targets": "kdgat.rows",
    "Teacher": "kdgat.teacher",
    "TopK": "kdgat.rows",
    "Verdict": "kdgat.detector",
    "build": "kdgat.command",
    "check": "kdgat.command",
    "run": "kdgat.command",
}


def __getattr__(name):
    """Imports what needs PyTorch or NumPy when it is used."""
    if name == "losses":
        return importlib.import_module("kdgat.losses")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'kdgat' has no attribute '{name}'")
