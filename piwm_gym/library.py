"""C++ as a shared library, compiled by a process of its own while Python goes on."""

import atexit
import contextlib
import os
import platform
import subprocess
from ctypes import PyDLL
from functools import cache
from hashlib import sha256
from pathlib import Path
from uuid import uuid4

from piwm_gym.compiler import cpp_compiler

FLAGS = ("-std=c++17", "-O1", "-ffp-contract=off", "-w", "-fPIC", "-shared", "-x", "c++", "-")
"""Arithmetic as it is written: nothing here may cost a bit."""


def cache_folder() -> Path:
    """Where libraries are kept for later processes: nobody else may write there."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(caches) / "piwm-gym"


@cache
def library(source: str) -> "Library":
    """The library of a source, one in each process."""
    return Library(source)


class Library:
    """A shared library, which exists already or is being made.

    Args:
        source: C++.
    """

    def __init__(self, source: str) -> None:
        command = (cpp_compiler() or "", *FLAGS)
        name = sha256("\n".join((*command, platform.machine(), source)).encode()).hexdigest()
        self._path = cache_folder() / f"{name}.so"
        self._draft = self._path.with_suffix(f".{uuid4().hex}")  # nobody else writes to it
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        if self._path.is_absolute() and not self._path.exists():  # it is not where there is no home
            with contextlib.suppress(OSError):  # no compiler, or no place to write to
                self._begin((*command, "-o", str(self._draft)), source)

    def _begin(self, command: tuple[str, ...], source: str) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)
        atexit.register(self._abandon)
        assert self._process.stdin is not None
        with self._process.stdin as pipe:
            pipe.write(source.encode())

    @property
    def ready(self) -> bool:
        """Whether :meth:`load` would not wait."""
        if self._process is None:
            return True
        if os.getpid() != self._owner:  # a forked process cannot ask about its parent's
            return self._path.exists()
        return self._process.poll() is not None

    def load(self) -> PyDLL | None:
        """The library, once it is there; None if there is none to be had.

        Its functions keep Python's lock.
        """
        if self._process is not None and os.getpid() == self._owner:
            with contextlib.suppress(OSError):
                if self._process.wait() == 0:
                    self._draft.replace(self._path)  # at once: no process sees half of it
            self._process = None
        try:
            return PyDLL(str(self._path))
        except OSError:
            return None

    def _abandon(self) -> None:
        """Python ends, and nobody waits any more."""
        if self._process is not None and os.getpid() == self._owner:
            self._process.kill()
            self._process.wait()
        self._draft.unlink(missing_ok=True)


__all__ = ["Library", "cache_folder", "library"]
