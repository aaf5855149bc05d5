"""Make a wheel of the program, for `pip install` beside PyTorch. `scripts/wheel` and pip (PEP 517, pyproject.toml) call this.

  scripts/wheel                       build program and module, and write dist/kdgat-VERSION-py3-none-PLATFORM.whl
  scripts/wheel --program FILE        take a program that is built already; the module is built, or taken from --module FILE
  scripts/wheel --output FOLDER       another folder than dist

The wheel holds the program with all its optional parts, shell completions and the teacher of the simulated car, and no libtorch: the
program loads that of the installed PyTorch, whose minor version must be the one it was built for. The module kdgat._native, the sampler of
one large graph, needs no PyTorch and works with any CPython from 3.9 on (abi3); other Pythons do not see it, and sample with NumPy. The
platform in the wheel's name is the oldest C library that both run with, so build releases on an old system.
"""

import argparse
import base64
import hashlib
import os
import pathlib
import platform
import re
import struct
import subprocess
import sys
import tempfile
import zipfile

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
# From the program's folder in site-packages: PyTorch's libraries beside the package, then those of CUDA.
RUN_PATH = "$ORIGIN/../../torch/lib:$ORIGIN/../../nvidia/cu13/lib"
DYNAMIC_STRINGS, DYNAMIC_RUN_PATH = 5, 29


def fail(text):
    print(f"wheel: error: {text}", file=sys.stderr)
    raise SystemExit(2)


def cargo_build(*arguments):
    """Builds a package of the workspace. Returns the folder of its results."""
    subprocess.run(["cargo", "build", "--release", *arguments], cwd=REPOSITORY, check=True)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "release"


def build():
    """Builds the program with all optional parts. Returns its path."""
    subprocess.run([REPOSITORY / "scripts/setup"], check=True)
    return cargo_build("--bin", "kdgat", "--features", "full") / "kdgat"


def build_module():
    """Builds the compiled module of the package. Returns its path."""
    return cargo_build("--package", "kdgat-python") / "lib_native.so"


def section(program, name):
    """Returns offset and size of a section of a 64-bit ELF file."""
    offset, = struct.unpack_from("<Q", program, 0x28)
    size, count, names = struct.unpack_from("<HHH", program, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", program, offset + index * size) for index in range(count)]
    for header in headers:
        begin = headers[names][4] + header[0]
        if program[begin:program.index(b"\0", begin)] == name:
            return header[4], header[5]
    fail(f"the program has no section {name.decode()}")


def with_run_path(program):
    """Replaces the run path, which names this machine's libtorch, by one relative to the program."""
    program = bytearray(program)
    offset, size = section(program, b".dynamic")
    strings, _ = section(program, b".dynstr")
    entries = [struct.unpack_from("<QQ", program, at) for at in range(offset, offset + size, 16)]
    found = [value for tag, value in entries if tag == DYNAMIC_RUN_PATH]
    if not found:
        fail("the program has no run path; build it with scripts/wheel")
    begin = strings + found[0]
    end = program.index(b"\0", begin)
    text = RUN_PATH.encode()
    if len(text) > end - begin:
        fail(f"the run path of this build is shorter than {RUN_PATH}; put libtorch into a folder with a longer name")
    program[begin:end] = text.ljust(end - begin, b"\0")
    return bytes(program)


def platform_tag(*files):
    """Returns the platform of the oldest C library (PEP 600) that has all symbols of these programs and libraries."""
    found = [re.findall(rb"GLIBC_2\.(\d+)", path.read_bytes()) for path in files]
    for path, versions in zip(files, found):
        if not versions:
            fail(f"{path} needs no symbol of the C library; is it built for Linux?")
    versions = sum(found, [])
    return f"manylinux_2_{max(map(int, versions))}_{platform.machine()}"


def metadata(version):
    readme = (REPOSITORY / "README.md").read_text()
    fields = [
        "Metadata-Version: 2.1",
        "Name: kdgat",
        f"Version: {version}",
        "Summary: Knowledge distillation of graph networks, for machines that are too small for teacher and student together",
        "License: MIT OR Apache-2.0",
        "Requires-Python: >=3.9",
        # Not required, so that pip never replaces the PyTorch of an environment.
        "Provides-Extra: torch",
        "Requires-Dist: torch==2.11.*; extra == 'torch'",
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(fields) + "\n\n" + readme


def contents(program, module, version):
    """Returns the files of the wheel by their paths, with their modes."""
    files = {}
    package = REPOSITORY / "python/kdgat"
    for path in [*sorted(package.glob("*.py")), package / "py.typed"]:
        files[f"kdgat/{path.name}"] = (path.read_bytes(), 0o644)
    files["kdgat/_native.abi3.so"] = (module.read_bytes(), 0o755)
    files["kdgat/bin/kdgat"] = (with_run_path(program.read_bytes()), 0o755)
    for path in sorted((REPOSITORY / "teachers").rglob("*")):
        if path.is_file():
            files[f"kdgat/teachers/{path.relative_to(REPOSITORY / 'teachers')}"] = (path.read_bytes(), 0o644)
    shells = {"bash": "bash-completion/completions/kdgat", "zsh": "zsh/site-functions/_kdgat", "fish": "fish/vendor_completions.d/kdgat.fish"}
    for shell, place in shells.items():
        text = subprocess.run([program, "completions", shell], check=True, capture_output=True).stdout
        files[f"kdgat-{version}.data/data/share/{place}"] = (text, 0o644)
    info = f"kdgat-{version}.dist-info"
    for name in ("LICENSE-MIT", "LICENSE-APACHE"):
        files[f"{info}/{name}"] = ((REPOSITORY / name).read_bytes(), 0o644)
    files[f"{info}/METADATA"] = (metadata(version).encode(), 0o644)
    files[f"{info}/entry_points.txt"] = (b"[console_scripts]\nkdgat = kdgat.launch:main\n", 0o644)
    return files


def write(path, files, version, tag):
    info = f"kdgat-{version}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: kdgat\nRoot-Is-Purelib: false\nTag: py3-none-{tag}\n"
    files[f"{info}/WHEEL"] = (wheel.encode(), 0o644)
    records = []
    for name, (content, _) in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        records.append(f"{name},sha256={digest},{len(content)}\n")
    records.append(f"{info}/RECORD,,\n")
    files[f"{info}/RECORD"] = ("".join(records).encode(), 0o644)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".partial", delete=False) as partial:
        try:
            with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, (content, mode) in files.items():
                    # A fixed time: the same content makes the same wheel.
                    entry = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    entry.external_attr = (0o100000 | mode) << 16
                    archive.writestr(entry, content)
            os.chmod(partial.name, 0o644)
            os.replace(partial.name, path)
        except BaseException:
            os.unlink(partial.name)
            raise


def make(program, module, output):
    """Writes the wheel of a program and the module to a folder. Returns its path."""
    version = re.search(r'^version = "([^"]*)"', (REPOSITORY / "Cargo.toml").read_text(), re.M).group(1)
    tag = platform_tag(program, module)
    path = output / f"kdgat-{version}-py3-none-{tag}.whl"
    write(path, contents(program, module, version), version, tag)
    return path


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Builds the program and its wheel: the hook of PEP 517 that pip calls."""
    return make(build(), build_module(), pathlib.Path(wheel_directory)).name


def build_sdist(sdist_directory, config_settings=None):
    """Refuses: the clone of the repository is the source."""
    fail("there is no source archive; clone the repository")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path)
    parser.add_argument("--module", type=pathlib.Path)
    parser.add_argument("--output", type=pathlib.Path, default=REPOSITORY / "dist")
    arguments = parser.parse_args()
    print(make(arguments.program or build(), arguments.module or build_module(), arguments.output))


if __name__ == "__main__":
    main()
