"""kdgat: knowledge distillation that fits into small memory.

The package holds the program ``kdgat``, which runs on the libtorch of the PyTorch that is installed beside it, and :class:`Teacher`, the
teacher around any PyTorch module, with the losses of :mod:`kdgat.losses`. PyTorch is imported when these are used; the readers of the program's data,
:class:`Store`, :class:`NodeStore` and :class:`Targets`, and :class:`Run`, :func:`run`, :func:`check`, :func:`build` and :class:`Detector` import none.
"""

import importlib
from typing import TYPE_CHECKING

from kdgat.launch import TORCH_VERSION, NotStarted, main, program

if TYPE_CHECKING:
    from kdgat import losses
    from kdgat.cached_targets import Targets
    from kdgat.command import ProgramError, build, check, run
    from kdgat.detector import Detector, Verdict
    from kdgat.graph_batch import GraphBatch
    from kdgat.graph_store import Store
    from kdgat.mapped_file import StoreError
    from kdgat.node_store import NodeStore
    from kdgat.rows import BatchTargets, TopK
    from kdgat.runs import Run, RunError
    from kdgat.teacher import Teacher

__all__ = [
    "TORCH_VERSION",
    "BatchTargets",
    "Detector",
    "GraphBatch",
    "NodeStore",
    "NotStarted",
    "ProgramError",
    "Run",
    "RunError",
    "Store",
    "StoreError",
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
    "BatchTargets": "kdgat.rows",
    "Detector": "kdgat.detector",
    "GraphBatch": "kdgat.graph_batch",
    "NodeStore": "kdgat.node_store",
    "ProgramError": "kdgat.command",
    "Run": "kdgat.runs",
    "RunError": "kdgat.runs",
    "Store": "kdgat.graph_store",
    "StoreError": "kdgat.mapped_file",
    "Targets": "kdgat.cached_targets",
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
