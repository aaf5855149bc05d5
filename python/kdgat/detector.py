"""A trained detector in this process, over its export as C: it needs a C compiler and the program once, and never PyTorch."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
from typing import Any, Iterable, Iterator, Optional, Sequence, Union

from kdgat.command import run

#: IDs that a verdict names at most: KDGAT_NAMED_NODES of kdgat_car.h.
_NAMED = 3
#: Bytes of a payload that the detector reads.
_PAYLOAD = 8

_BRIDGE = r"""
#include <stdlib.h>
#include <string.h>
#include "kdgat_car.h"
#if !KDGAT_PAIR
#include "kdgat_calibrate.h"
#endif
#if KDGAT_NAMED_NODES != 3
#error "the export names another number of IDs than this package reads: export it again, with the package's program"
#endif

typedef struct {
    uint64_t window, first_frame;
    double time, score, deviations;
    uint8_t attack, calibrated, num_nodes, num_culprits;
    uint32_t id[KDGAT_NAMED_NODES];
    float weight[KDGAT_NAMED_NODES];
    uint32_t culprit[KDGAT_NAMED_NODES];
    float surprise[KDGAT_NAMED_NODES];
    uint32_t num_gone, gone[KDGAT_NAMED_NODES];
} verdict;

kdgat_state *kdgat_bridge_new(int explains_all) {
    kdgat_state *state = malloc(sizeof *state);
    if (state) {
        kdgat_init(state);
        kdgat_explain_all(state, explains_all);
    }
    return state;
}

void kdgat_bridge_free(kdgat_state *state) { free(state); }

int kdgat_bridge_load(kdgat_state *state, const uint8_t *bytes, uint32_t length) {
#if KDGAT_PAIR
    (void)state, (void)bytes, (void)length;
    return -1;
#else
    return (int)kdgat_load(state, bytes, length);
#endif
}

int kdgat_bridge_push(kdgat_state *state, double time, uint32_t id, uint8_t length, const uint8_t *data, verdict *to) {
    kdgat_frame frame = {.time = time, .id = id, .length = length};
    kdgat_result result;
    memcpy(frame.data, data, length < 8 ? length : 8);
    if (!kdgat_push(state, &frame, &result)) return 0;
    memset(to, 0, sizeof *to);
    to->window = result.window, to->first_frame = result.first_frame, to->time = result.time;
    to->score = result.score, to->deviations = result.deviations, to->attack = result.attack, to->calibrated = result.calibrated;
    to->num_nodes = result.num_nodes;
    memcpy(to->id, result.id, sizeof to->id);
    memcpy(to->weight, result.weight, sizeof to->weight);
#if KDGAT_FEATURES == KDGAT_FEATURES_PROFILE
    to->num_culprits = result.num_culprits;
    memcpy(to->culprit, result.culprit, sizeof to->culprit);
    memcpy(to->surprise, result.surprise, sizeof to->surprise);
    to->num_gone = result.num_gone;
    memcpy(to->gone, result.gone, sizeof to->gone);
#endif
    return 1;
}
"""

#: Reasons to refuse a calibration, by the results of kdgat_load.
_REFUSED = {
    -1: "two models together have no calibration in C",
    4: "it has another length than a calibration of this model",
    5: "it is no calibration, or of another version",
    6: "it belongs to another model",
    7: "it is damaged",
    8: "a value in it is out of range",
}


class _CVerdict(ctypes.Structure):
    _fields_ = [
        ("window", ctypes.c_uint64),
        ("first_frame", ctypes.c_uint64),
        ("time", ctypes.c_double),
        ("score", ctypes.c_double),
        ("deviations", ctypes.c_double),
        ("attack", ctypes.c_uint8),
        ("calibrated", ctypes.c_uint8),
        ("num_nodes", ctypes.c_uint8),
        ("num_culprits", ctypes.c_uint8),
        ("id", ctypes.c_uint32 * _NAMED),
        ("weight", ctypes.c_float * _NAMED),
        ("culprit", ctypes.c_uint32 * _NAMED),
        ("surprise", ctypes.c_float * _NAMED),
        ("num_gone", ctypes.c_uint32),
        ("gone", ctypes.c_uint32 * _NAMED),
    ]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The verdict about a window of frames."""

    #: Number of the window, and of its first frame, from 0.
    window: int
    first_frame: int
    #: Time of its first frame in seconds.
    time: float
    #: A classifier's probability of an attack, an autoencoder's difficulty, or the mean of both in standard deviations. Higher: more suspicious.
    score: float
    #: Robust deviations above what is usual for the calibrated car; None without a calibration.
    deviations: Optional[float]
    is_attack: bool
    #: IDs that weigh most, with the drop of the log odds without them (classifier) or their error (autoencoder), the heaviest first.
    ids: tuple[tuple[int, float], ...]
    #: IDs that differ most from the car's profile, with their surprise in nats (models of the profile set).
    culprits: tuple[tuple[int, float], ...]
    #: IDs that are gone since this window, which makes it an attack whatever its score; each is named once until it returns (profile set).
    gone: tuple[int, ...]


class Detector:
    """A trained detector. Feed it every frame of one bus in the order of arrival; its verdicts are those of ``kdgat detect``."""

    def __init__(
        self,
        models: Union[str, "os.PathLike[str]", Sequence[Union[str, "os.PathLike[str]"]]],
        calibration: Optional[Union[str, "os.PathLike[str]"]] = None,
        threshold: Optional[Union[str, float]] = None,
        explain_all: bool = False,
        compiler: Optional[str] = None,
    ) -> None:
        """Makes the detector of a run, of two runs that judge together, or of a folder that ``kdgat export --c`` has written.

        ``calibration`` is the name of one that ``kdgat calibrate`` has made for the run, or a file ``*.calibration``. ``threshold`` is a
        score or a rule (``fpr:0.001``); default: the one that ``kdgat detect`` uses. With ``explain_all``, a classifier names IDs for every
        window (slower), not for alarms only. ``compiler``: default is the variable CC, else ``cc``.

        Raises ProgramError if the run cannot be exported, OSError without a compiler, ValueError for a calibration of another model.
        """
        paths = [models] if isinstance(models, (str, os.PathLike)) else list(models)
        self._state = None
        with tempfile.TemporaryDirectory(prefix="kdgat-detector-") as folder:
            is_export = len(paths) == 1 and (pathlib.Path(paths[0]) / "kdgat_car.h").exists()
            source = pathlib.Path(paths[0]) if is_export else pathlib.Path(folder) / "c"
            if is_export and threshold is not None:
                raise ValueError(f"{source} has its threshold already; export the run with --threshold, or name the run here")
            loaded = pathlib.Path(calibration) if calibration is not None and os.fspath(calibration).endswith(".calibration") else None
            if not is_export:
                words = ["export", *paths, "--c", source]
                words += [] if threshold is None else [f"--threshold={threshold}"]
                words += ["--calibration", calibration] if calibration is not None and loaded is None else []
                run(words, show=False)
            if calibration is not None and loaded is None:
                loaded = source / f"{os.fspath(calibration)}.calibration"
            self._library = _compiled(source, pathlib.Path(folder), compiler or os.environ.get("CC") or "cc")
            self._state = self._library.kdgat_bridge_new(int(explain_all))
            if not self._state:
                raise MemoryError("no memory for the detector's state")
            if loaded is not None:
                self._load(loaded)
        self._verdict = _CVerdict()

    def _load(self, path: pathlib.Path) -> None:
        content = path.read_bytes()
        code = self._library.kdgat_bridge_load(self._state, content, len(content))
        if code != 0:
            raise ValueError(f"{path}: {_REFUSED.get(code, f'refused with code {code}')}")

    def push(self, frame: Any) -> Optional[Verdict]:
        """Adds a frame, and returns the verdict about the window that it completed, if it did.

        ``frame`` is a message of python-can, or ``(time, id, data)`` with the time in seconds and the payload as bytes. Error frames are
        left out; a remote frame has an empty payload.
        """
        if self._state is None:
            raise ValueError("the detector is closed")
        if isinstance(frame, tuple):
            time, identifier, data = frame
        elif frame.is_error_frame:
            return None
        else:
            time, identifier = frame.timestamp, frame.arbitration_id
            data = b"" if frame.is_remote_frame else frame.data
        # Only the first bytes count, but the length of a CAN FD frame does, too.
        payload = bytes(data[:_PAYLOAD]).ljust(_PAYLOAD, b"\0")
        to = self._verdict
        if not self._library.kdgat_bridge_push(self._state, time, identifier, len(data), payload, ctypes.byref(to)):
            return None
        return Verdict(
            window=to.window,
            first_frame=to.first_frame,
            time=to.time,
            score=to.score,
            deviations=to.deviations if to.calibrated else None,
            is_attack=bool(to.attack),
            ids=tuple(zip(to.id[: to.num_nodes], to.weight[: to.num_nodes])),
            culprits=tuple(zip(to.culprit[: to.num_culprits], to.surprise[: to.num_culprits])),
            gone=tuple(to.gone[: to.num_gone]),
        )

    def watch(self, frames: Iterable[Any]) -> Iterator[Verdict]:
        """Yields the verdicts about frames as they come: of a ``can.Bus``, a ``can.LogReader``, or any iterable."""
        for frame in frames:
            verdict = self.push(frame)
            if verdict is not None:
                yield verdict

    def close(self) -> None:
        """Frees the detector's state."""
        if self._state is not None:
            self._library.kdgat_bridge_free(self._state)
            self._state = None

    def __enter__(self) -> "Detector":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_state", None) is not None:
            self.close()


def _compiled(source: pathlib.Path, folder: pathlib.Path, compiler: str) -> ctypes.CDLL:
    """Compiles an export with the functions above, and loads it. The file may be deleted afterwards."""
    command = shlex.split(compiler)
    if not command or shutil.which(command[0]) is None:
        raise FileNotFoundError(f"the C compiler `{compiler}` is not there; install one (Debian: gcc), or name it with compiler=")
    bridge, library = folder / "bridge.c", folder / "detector.so"
    bridge.write_text(_BRIDGE)
    words = [*command, "-std=c99", "-O2", "-shared", "-fPIC", "-I", source, bridge, *sorted(source.glob("*.c")), "-lm", "-o", library]
    made = subprocess.run([os.fspath(word) for word in words], capture_output=True, text=True)
    if made.returncode != 0:
        raise OSError(f"{compiler} does not compile {source}: {made.stderr.strip()}")
    loaded = ctypes.CDLL(os.fspath(library))
    loaded.kdgat_bridge_new.restype = ctypes.c_void_p
    loaded.kdgat_bridge_new.argtypes = [ctypes.c_int]
    loaded.kdgat_bridge_free.argtypes = [ctypes.c_void_p]
    loaded.kdgat_bridge_load.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32]
    loaded.kdgat_bridge_push.argtypes = [
        ctypes.c_void_p,
        ctypes.c_double,
        ctypes.c_uint32,
        ctypes.c_uint8,
        ctypes.c_char_p,
        ctypes.POINTER(_CVerdict),
    ]
    return loaded
