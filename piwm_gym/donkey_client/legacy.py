"""The ``gym-donkeycar`` of PyPI (1.0.13): this side listens, the simulator dials in.

The package's server and its parser of messages are used as they are. Its environment is not: it
waits without time-outs, sleeps two seconds at each reset and breaks with today's NumPy.
"""

import logging
import socket
from typing import Any

from piwm_gym.donkey_client.backend import CLOSED, ENDLESS, LOOPBACK, MAX_MESSAGE, Backend, Peer
from piwm_gym.donkey_client.errors import DonkeyConnectionError
from piwm_gym.donkey_client.loop import shared_loop
from piwm_gym.donkey_client.mailbox import Mailbox
from piwm_gym.donkey_client.messages import Message
from piwm_gym.donkey_client.relay import Relay

from gym_donkeycar.core import tcp_server  # isort: skip  (after the loop: it imports asyncore)

_log = logging.getLogger(__name__)


def _report(*words: object) -> None:
    _log.debug(" ".join(map(str, words))[:500])


vars(tcp_server)["print"] = _report  # the package prints what it does; a log is the place for it


class _Handler(tcp_server.IMesgHandler):
    """What the package's server calls, in the loop's thread."""

    def __init__(self, backend: "LegacyBackend") -> None:
        self._backend = backend

    def on_connect(self, connection: Any) -> None:
        self._backend.accept(connection)

    def on_recv_message(self, message: Any) -> None:
        self._backend.mailbox.put(message)


class LegacyBackend(Backend):
    """A server of our own process, for one simulator.

    A simulator that listens itself is reached through a :class:`Relay`.
    """

    generation = "legacy"

    def __init__(self, peer: Peer, mailbox: Mailbox, timeout: float) -> None:
        super().__init__(peer, mailbox)
        self._connections: list[Any] = []
        self._trouble = ""
        self._relay: Relay | None = None
        self._open = True
        self._loop = shared_loop()
        address = (peer.host, peer.port) if peer.role == "dial" else (LOOPBACK, 0)
        self._server = self._loop.call(lambda: self._listen(address))
        host, port = self._server.address[:2]
        if peer.role == "dial":
            self.peer = Peer("dial", host, port)
            return
        try:
            self._relay = Relay((peer.host, peer.port), (host, port), timeout)
        except DonkeyConnectionError as error:
            self.close()
            raise DonkeyConnectionError(f"{error}; expected {peer}: {peer.advice}") from error

    def send(self, message: Message) -> None:
        """Send a message at once."""
        self._loop.post(lambda: self._queue(message))

    def close(self) -> None:
        """Close the connection and stop listening."""
        if not self._open:
            return
        self._open = False
        if self._relay is not None:
            self._relay.close()
        self._loop.call(self._close)

    def unfinished(self) -> int:
        """How much of a message has come whose end is missing, characters."""
        return sum(map(_pending, tuple(self._connections)))

    def accept(self, connection: Any) -> None:
        """Take a simulator's connection; the newest is the one that is spoken to."""
        self._loop.adopt(connection)
        connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.log_info = self._note
        connection.recv = _Unsplit(connection)
        self._connections.append(connection)
        self.mailbox.connect()

    def _note(self, text: str, kind: str = "info") -> None:
        """Stands in for asyncore's printing of errors."""
        self._trouble = text if kind == "error" else self._trouble
        _log.debug(text)

    def _listen(self, address: tuple[str, int]) -> Any:
        server = tcp_server.SimServer.__new__(tcp_server.SimServer)
        try:
            server.__init__(address, _Handler(self))
        except OSError as error:
            server.close()
            peer = Peer("dial", *address)
            raise DonkeyConnectionError(
                f"cannot listen on {peer.host}:{peer.port} for {peer} ({error}); expected a free "
                "port of this machine: end what uses it or choose another one, or use "
                f"role='listen' if it is {peer.other}, as builds since 2020 do"
            ) from error
        server.log_info = self._note
        self._loop.adopt(server)
        self._loop.watch(self._check)
        return server

    def _queue(self, message: Message) -> None:
        if self._connections:
            self._connections[-1].queue_message(message)

    def _check(self) -> None:
        """After reading: end messages that never end, forget closed connections."""
        for connection in tuple(self._connections):
            if _pending(connection) > MAX_MESSAGE:
                self.mailbox.lose(ENDLESS)
                connection.close()
            if not connection.connected:
                self._connections.remove(connection)
                if not self._connections:
                    self.mailbox.lose(self._trouble or CLOSED)

    def _close(self) -> None:
        self._loop.unwatch(self._check)
        self._server.close()
        for connection in self._connections:
            connection.close()
        self._connections.clear()


class _Unsplit:
    """Reads for the package's parser, which drops the first brace of a message that comes alone.

    Such a brace is kept until more of the message has come; the rest of it would never be
    understood without, nor would anything that follows.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._read = connection.recv
        self._kept = b""

    def __call__(self, size: int) -> bytes:
        data: bytes = self._read(size)
        if not data:
            return data
        data, self._kept = self._kept + data, b""
        if data.endswith(b"\n{") or (data == b"{" and not _pending(self._connection)):
            self._kept = b"{"
            return data[:-1] or b"\n"  # nothing at all would be the connection's end
        return data


def _pending(connection: Any) -> int:
    return sum(map(len, getattr(connection, "data_to_read", ())))


__all__ = ["LegacyBackend"]
