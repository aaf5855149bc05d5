"""kdgat: knowledge distillation of graph networks that fits into small memory.

The package holds the program ``kdgat``, which runs on the libtorch of the PyTorch that is installed beside it.
"""

from kdgat.launch import TORCH_VERSION, main, program

__all__ = ["TORCH_VERSION", "main", "program"]
