"""Starts the program with the libtorch of the installed PyTorch. PyTorch itself is not imported: that takes seconds."""

import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import sys

#: Version of PyTorch whose libtorch the program was built for: its C++ interface changes with each minor version.
TORCH_VERSION = "2.11"
_PACKAGE = pathlib.Path(__file__).resolve().parent


def _stop(text):
    """Ends with kdgat's exit code for wrong input."""
    print(f"Error: {text}", file=sys.stderr)
    raise SystemExit(2)


def _libtorch():
    """Returns the folder with the libraries of the installed PyTorch."""
    advice = f"install it with `pip install 'torch=={TORCH_VERSION}.*'`"
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        _stop(f"kdgat needs PyTorch {TORCH_VERSION}, and this Python ({sys.executable}) has none; {advice}")
    version = importlib.metadata.version("torch")
    if version.split("+")[0].split(".")[:2] != TORCH_VERSION.split("."):
        _stop(f"kdgat needs PyTorch {TORCH_VERSION}, and this Python ({sys.executable}) has {version}; {advice}")
    folder = pathlib.Path(found.submodule_search_locations[0]) / "lib"
    if not (folder / "libtorch_cpu.so").exists():
        _stop(f"{folder} has no libtorch_cpu.so: PyTorch is installed incompletely; {advice}")
    return folder


def program():
    """Returns the path of the program and the environment to start it with: that of the package, else the one in PATH (of a clone)."""
    environment = dict(os.environ)
    if not (_PACKAGE / "bin" / "kdgat").exists() and (built := shutil.which("kdgat")):
        teachers = _PACKAGE.parent.parent / "teachers"
        if teachers.is_dir():
            environment.setdefault("KDGAT_SHIPPED_TEACHERS", str(teachers))
        return pathlib.Path(built), environment
    libraries = _libtorch()
    # The program finds PyTorch beside its package by itself; it may be in another folder, such as that of the user.
    if libraries != _PACKAGE.parent / "torch" / "lib":
        others = environment.get("LD_LIBRARY_PATH")
        environment["LD_LIBRARY_PATH"] = f"{libraries}:{others}" if others else str(libraries)
    environment.setdefault("KDGAT_SHIPPED_TEACHERS", str(_PACKAGE / "teachers"))
    return _PACKAGE / "bin" / "kdgat", environment


def main():
    """Replaces this process with the program, so that signals and the exit code are its own."""
    path, environment = program()
    os.execve(path, ["kdgat", *sys.argv[1:]], environment)
