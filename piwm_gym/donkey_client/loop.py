"""One thread for all asyncore sockets of the process.

The package's own controller starts one loop per environment, and all of them read the same
sockets; two environments in one process then break each other. Here every socket belongs to one
private table and one daemon thread, and everything that touches a socket runs in that thread.
"""

import logging
import os
import socket
import threading
import warnings
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # gone in Python 3.12: pyasyncore
    import asyncore

_log = logging.getLogger(__name__)
TICK = 0.5
"""Longest wait for a socket, s; a call from another thread ends it at once."""


class _Alarm(asyncore.dispatcher):
    """Reading end of a pair of sockets: a byte on it ends the wait."""

    def __init__(self, channels: dict[int, Any]) -> None:
        reading, self.writing = socket.socketpair()
        self.writing.setblocking(False)
        super().__init__(reading, channels)

    def writable(self) -> bool:
        return False

    def handle_read(self) -> None:
        self.recv(4096)

    def ring(self) -> None:
        """End the wait."""
        with suppress(BlockingIOError):  # it is ringing already
            self.writing.send(b"x")


class Loop:
    """The thread and its sockets."""

    def __init__(self) -> None:
        self._channels: dict[int, Any] = {}
        self._alarm = _Alarm(self._channels)
        self._calls: deque[Callable[[], None]] = deque()
        self._watchers: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._run, name="donkey-client", daemon=True)
        self._thread.start()

    def post(self, function: Callable[[], None]) -> None:
        """Run a function in the thread, soon."""
        self._calls.append(function)
        self._alarm.ring()

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in the thread and return what it returns."""
        result: Future[Any] = Future()

        def run() -> None:
            try:
                result.set_result(function())
            except BaseException as error:
                result.set_exception(error)

        self.post(run)
        return result.result()

    def adopt(self, channel: Any) -> None:
        """Move an asyncore socket from the process's table to this loop's; in the thread."""
        channel.del_channel()
        channel._fileno, channel._map = channel.socket.fileno(), self._channels
        channel.add_channel(self._channels)

    def watch(self, function: Callable[[], None]) -> None:
        """Call a function whenever something has been read; in the thread."""
        self._watchers.append(function)

    def unwatch(self, function: Callable[[], None]) -> None:
        """End what :meth:`watch` began; in the thread."""
        self._watchers.remove(function)

    def _run(self) -> None:
        while True:
            asyncore.loop(timeout=TICK, use_poll=True, map=self._channels, count=1)
            while self._calls:
                _shielded(self._calls.popleft())
            for watcher in tuple(self._watchers):
                _shielded(watcher)


def _shielded(function: Callable[[], None]) -> None:
    """Call a function whose failure must not end the thread, on which others rely."""
    try:
        function()
    except Exception:
        _log.exception("a task of the Donkey Car client failed")


_loops: dict[int, Loop] = {}
_lock = threading.Lock()


def shared_loop() -> Loop:
    """The loop of this process; a forked child gets its own."""
    with _lock:
        if os.getpid() not in _loops:
            _loops.clear()
            _loops[os.getpid()] = Loop()
        return _loops[os.getpid()]


__all__ = ["Loop", "shared_loop"]
