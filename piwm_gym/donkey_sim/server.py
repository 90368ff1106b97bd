"""The simulator's process: finds its client, keeps the clock, starts again when the client goes."""

import os
import socket
import time
from collections.abc import Callable, Iterator

from piwm_gym.courses import get_course
from piwm_gym.donkey_sim.car import FRAME_DT
from piwm_gym.donkey_sim.line import Disconnected, Line
from piwm_gym.donkey_sim.protocol import MessageParser, ProtocolError
from piwm_gym.donkey_sim.renderer import build_world
from piwm_gym.donkey_sim.session import Session
from piwm_gym.donkey_sim.settings import ServerSettings

HEARTBEAT = 0.0015
"""s between heartbeats in lock-step: old clients send only when something arrives."""
RESTING_HEARTBEAT = 0.02
RESTING_AFTER = 2.0
KEEP_ALIVE = 3.0
RETRY = 0.1
POLL = 0.05


def serve(settings: ServerSettings, report: Callable[[str], None]) -> None:
    """Serve one client after the other.

    Args:
        settings: Everything.
        report: Called once, with the address, when a client can connect or is being dialled.

    Raises:
        ConnectionError: The port cannot be used, or nobody answers there.
    """
    build_world(get_course(settings.course))  # now, not while a client waits for its car
    for connection in _connections(settings, report):
        line = Line(connection, settings.quirks, settings.seed)
        try:
            end = _converse(settings, line)
        finally:
            line.close()
        if end or settings.once:
            return


def _connections(
    settings: ServerSettings, report: Callable[[str], None]
) -> Iterator[socket.socket]:
    if settings.role == "dial":
        report(f"dialling {settings.host}:{settings.port}")
        while True:
            yield _dial(settings)
    with _listen(settings) as listener:
        host, port = listener.getsockname()[:2]
        report(f"listening on {host}:{port}")
        while True:
            yield listener.accept()[0]


def _listen(settings: ServerSettings) -> socket.socket:
    listener = socket.socket()
    if os.name == "posix":  # elsewhere this would let two processes share the port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(1)
    except OSError as error:
        listener.close()
        raise ConnectionError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}; end "
            "the process that uses the port, or choose another (0 takes a free one), or use "
            "--role dial if it is a client that listens there"
        ) from error
    return listener


def _dial(settings: ServerSettings) -> socket.socket:
    deadline = time.monotonic() + settings.connect_timeout
    while True:
        left = deadline - time.monotonic()
        try:
            connection = socket.create_connection((settings.host, settings.port), max(left, RETRY))
            if connection.getsockname() != connection.getpeername():
                return connection
            connection.close()  # of a free port, TCP may connect it to itself
            reason = "connected to itself"
        except OSError as error:
            reason = error.strerror or str(error)
        if left <= RETRY:
            raise ConnectionError(
                f"nobody listened on {settings.host}:{settings.port} within "
                f"{settings.connect_timeout:g} s ({reason}); start the client that listens "
                "there, or use --role listen"
            )
        time.sleep(RETRY)


def _converse(settings: ServerSettings, line: Line) -> bool:
    """Talk to a client until it goes; whether it asked the process to end."""
    session, parser = Session(settings, line), MessageParser()
    clock = _Clock()
    try:
        session.start()
        while not session.quit:
            data = line.receive(clock.patience(session))
            for message in parser.feed(data):
                session.handle(message)
            clock.heard(bool(data))
            clock.tick(session, line)
    except (Disconnected, ProtocolError):
        return False
    return session.quit


class _Clock:
    """When to step in real time, and when to send a heartbeat."""

    def __init__(self) -> None:
        self._now = self._last_heard = self._last_beat = time.monotonic()
        self._next = self._now

    def patience(self, session: Session) -> float:
        """How long to wait for the client, s."""
        if session.lockstep:
            rested = self._now - self._last_heard > RESTING_AFTER
            return RESTING_HEARTBEAT if rested else HEARTBEAT
        if session.simulator is None:
            return POLL
        return min(max(self._next - time.monotonic(), 0.0), POLL)

    def heard(self, anything: bool) -> None:
        """Note the time, and whether something has arrived."""
        self._now = time.monotonic()
        if anything:
            self._last_heard = self._last_beat = self._now

    def tick(self, session: Session, line: Line) -> None:
        """Send what is due."""
        if session.lockstep:
            if self._last_heard != self._now:
                line.heartbeat()
            return
        if self._now - self._last_beat > KEEP_ALIVE:
            self._last_beat = self._now
            line.heartbeat()
        if session.simulator is None:
            self._next = self._now
        elif self._now >= self._next:
            late = self._now - self._next > 5 * FRAME_DT
            self._next = (self._now if late else self._next) + FRAME_DT
            session.advance(report=line.idle)


__all__ = ["serve"]
