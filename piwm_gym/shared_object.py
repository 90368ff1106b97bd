"""C++ as a shared object, compiled by a process of its own while Python goes on."""

import atexit
import contextlib
import os
import platform
import subprocess
import time
from ctypes import PyDLL
from functools import cache
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from piwm_gym.compiler import cpp_compiler

FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-w", "-fPIC", "-shared")
"""Arithmetic as it is written: nothing here may cost a bit."""
SCRIPT = """
draft=$1 made=$2; shift 2
"$@" "$draft.cpp" -o "$draft.so" && mv "$draft.so" "$made"
status=$?; rm -f "$draft.cpp" "$draft.so"; exit $status
"""
"""Compiles, and is left to itself if Python ends; no process ever sees half of an object."""
PATIENCE = 10
"""How long the end of Python waits for compilers that have begun, s."""


def cache_folder() -> Path:
    """Where shared objects are kept for later processes: nobody else may write there."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches) / "piwm-gym"


@cache
def shared_object(source: str) -> "SharedObject":
    """The shared object of a source, one in each process."""
    return SharedObject(source)


@cache
def _last_moment() -> float:
    """Until when the end of Python waits for compilers, all of them together."""
    return time.monotonic() + PATIENCE


class SharedObject:
    """Machine code in a file, which exists already or is being made.

    Args:
        source: C++.
    """

    def __init__(self, source: str) -> None:
        command = (cpp_compiler() or "", *FLAGS)
        name = sha256("\n".join((*command, platform.machine(), source)).encode()).hexdigest()
        self._path = cache_folder() / f"{name}.so"
        self._process: subprocess.Popen[bytes] | None = None
        if self._path.is_absolute() and not self._path.exists():  # it is not where there is no home
            with contextlib.suppress(OSError):  # no compiler, or no place to write to
                self._begin(command, source)

    def _begin(self, command: tuple[str, ...], source: str) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._path.with_suffix(f".{uuid4().hex}")  # nobody else writes to it
        Path(f"{draft}.cpp").write_text(source)
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(
            ("sh", "-c", SCRIPT, "sh", str(draft), str(self._path), *command),
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,  # which Ctrl-C does not reach
        )
        atexit.register(self._end)

    @property
    def ready(self) -> bool:
        """Whether :meth:`load` would not wait."""
        return self._process is None or self._path.exists() or self._process.poll() is not None

    def load(self) -> PyDLL | None:
        """The machine code, once it is there; None if there is none to be had.

        Its functions keep Python's lock.
        """
        if self._process is not None:
            self._process.wait()
        if not self._path.is_absolute():
            return None
        try:
            return PyDLL(str(self._path))
        except OSError:  # of no use to anybody; the next process makes another one
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            return None

    def _end(self) -> None:
        assert self._process is not None
        try:
            self._process.wait(max(_last_moment() - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            self._process.returncode = 0  # nobody asks; else there would be a warning


__all__ = ["SharedObject", "cache_folder", "shared_object"]
