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


class NotStarted(RuntimeError):
    """An error that keeps the program from starting."""


def _libtorch():
    """Returns the folder with the libraries of the installed PyTorch. Raises NotStarted if there is none that fits."""
    advice = f"install it with `pip install 'torch=={TORCH_VERSION}.*'`"
    found = importlib.util.find_spec("torch")
    if found is None or not found.submodule_search_locations:
        raise NotStarted(f"kdgat needs PyTorch {TORCH_VERSION}, and this Python ({sys.executable}) has none; {advice}")
    version = importlib.metadata.version("torch")
    if version.split("+")[0].split(".")[:2] != TORCH_VERSION.split("."):
        raise NotStarted(f"kdgat needs PyTorch {TORCH_VERSION}, and this Python ({sys.executable}) has {version}; {advice}")
    folder = pathlib.Path(found.submodule_search_locations[0]) / "lib"
    if not (folder / "libtorch_cpu.so").exists():
        raise NotStarted(f"{folder} has no libtorch_cpu.so: PyTorch is installed incompletely; {advice}")
    return folder


def program():
    """Returns the path of the program and the environment to start it with. In a clone, which has no program in the package, it is the one in
    PATH. Raises NotStarted without a PyTorch that fits.
    """
    environment = dict(os.environ)
    clone = _PACKAGE.parent.parent
    if not (_PACKAGE / "bin" / "kdgat").exists() and (clone / "Cargo.toml").exists() and (built := shutil.which("kdgat")):
        environment.setdefault("KDGAT_SHIPPED_TEACHERS", str(clone / "teachers"))
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
    try:
        path, environment = program()
    except NotStarted as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from None  # kdgat's exit code for wrong input
    os.execve(path, ["kdgat", *sys.argv[1:]], environment)
