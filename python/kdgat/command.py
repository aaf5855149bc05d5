"""Runs the program from Python: its progress is shown, and its errors are exceptions."""

from __future__ import annotations

import codecs
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from typing import Any, Optional, Sequence, Union

from kdgat.launch import NotStarted, program

#: Exit codes of a command that handles interrupts, after one: it saved its state, or ended at once after a second one.
INTERRUPTED = (75, 130)
#: Bytes of what the program says that are kept for an error.
_KEPT = 80_000

Word = Union[str, "os.PathLike[str]"]


class ProgramError(RuntimeError):
    """An error of the program: its message, and its exit code (docs/commands.md)."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def flags(fields: dict[str, Any]) -> list[str]:
    """Returns fields of the configuration as flags: ``max_epochs=3`` as ``--max-epochs=3``, lists with commas, None as ``none``."""
    found = []
    for name, value in fields.items():
        if isinstance(value, bool):
            text = "true" if value else "false"
        elif isinstance(value, (list, tuple)):
            text = ",".join(str(one) for one in value)
        else:
            text = "none" if value is None else os.fspath(value) if isinstance(value, os.PathLike) else str(value)
        found.append(f"--{name.replace('_', '-')}={text}")
    return found


def run(arguments: Sequence[Word], show: bool = True, cwd: Optional[Word] = None, **fields: Any) -> str:
    """Runs the program with these arguments, and returns what it wrote to its standard output.

    ``fields`` are added as flags (``run(["autoencoder"], preset="vgae,student", offload_teacher=True)``). With ``show``, what the program
    says is shown while it runs, with its progress bar if this process has a terminal. Ctrl-C ends it as it does in a shell: it saves its
    state, then KeyboardInterrupt is raised; a second Ctrl-C ends it at once.

    Raises ProgramError with the program's message if it fails.
    """
    try:
        path, environment = program()
    except NotStarted as error:
        raise ProgramError(str(error), 2) from error
    words = [str(path), *map(os.fspath, arguments), *flags(fields)]
    reading, writing = pty.openpty() if show and sys.stderr.isatty() else os.pipe()
    try:
        # A session of its own: an interrupt of the terminal reaches this process alone, which passes it on once.
        child = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=writing, env=environment, cwd=cwd, start_new_session=True
        )
    except OSError as error:
        os.close(reading)
        raise ProgramError(f"{path} cannot be started: {error.strerror}", 2) from error
    finally:
        os.close(writing)
    said, written = bytearray(), bytearray()
    readers = [
        threading.Thread(target=_copy, args=(reading, said, _KEPT, sys.stderr if show else None), daemon=True),
        threading.Thread(target=_copy, args=(child.stdout.fileno(), written, None, sys.stdout if show else None), daemon=True),
    ]
    for reader in readers:
        reader.start()
    interrupted = _wait(child)
    for reader in readers:
        reader.join()
    os.close(reading)
    child.stdout.close()
    if interrupted and child.returncode in (0, -signal.SIGINT, *INTERRUPTED):
        raise KeyboardInterrupt
    if child.returncode != 0:
        raise ProgramError(_message(said, child.returncode), child.returncode)
    return written.decode(errors="replace")


def _wait(child: subprocess.Popen) -> bool:
    """Waits for the program, and passes interrupts on. Returns True after one; the program may have saved before it ended."""
    interrupted = False
    while True:
        try:
            child.wait()
            return interrupted
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            interrupted = True


def _copy(source: int, kept: bytearray, most: Optional[int], stream: Optional[Any]) -> None:
    """Keeps what comes from a file descriptor, the last ``most`` bytes if there is a limit, and shows it as long as somebody reads it."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    while True:
        try:
            block = os.read(source, 65536)
        except OSError:  # A pseudo-terminal that its last writer has closed.
            return
        if not block:
            return
        kept.extend(block)
        if most is not None:
            del kept[:-most]
        if stream is not None:
            try:
                stream.write(decode(block))
                stream.flush()
            except (OSError, ValueError):  # Closed, or without these letters: the program must not wait for it.
                stream = None


def _message(said: bytearray, code: int) -> str:
    """Returns the program's error, from the last line that begins with ``error:`` on."""
    if code < 0:
        return f"kdgat was ended by signal {-code} ({signal.Signals(-code).name})"
    text = bytes(said).decode(errors="replace").replace("\r\n", "\n").strip()
    lines = text.split("\n")
    begins = [number for number, line in enumerate(lines) if line.lower().startswith("error:")]
    if not begins:
        return text or f"kdgat ended with exit code {code}"
    return "\n".join(lines[begins[-1] :])[len("error:") :].strip()


def check(data: Word, **fields: Any) -> dict:
    """Checks a dataset without building anything (``kdgat data check``), and returns what it found.

    Raises ProgramError if the data cannot be used; the message names file and line.
    """
    return json.loads(run(["data", "check", "--json"], show=False, data=data, **fields))


def build(data: Word, show: bool = True, **fields: Any) -> None:
    """Builds the store of a dataset (``kdgat data build``), if there is none yet with the same content.

    Raises ProgramError if the data cannot be used.
    """
    run(["data", "build"], show=show, data=data, **fields)
