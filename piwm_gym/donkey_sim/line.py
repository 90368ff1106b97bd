"""The connection to a client, with the faults that it may be asked to have."""

import os
import select
import socket

import numpy as np

from piwm_gym.donkey_sim.protocol import HEARTBEAT, Message, encode
from piwm_gym.donkey_sim.settings import Quirks

CHUNK = 65536
BACKLOG = 1 << 20
OVERSIZED = 32 << 20
EXIT_CODE = 3


class Disconnected(Exception):  # noqa: N818
    """The client is gone, or a fault has closed the connection."""


class Line:
    """Sends and receives without ever blocking for longer than asked.

    Args:
        connection: A connected socket; closed by :meth:`close`.
        quirks: Misbehaviour.
        seed: Of the places where messages are cut.
    """

    def __init__(self, connection: socket.socket, quirks: Quirks, seed: int) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._socket = connection
        self._quirks = quirks
        self._rng = np.random.default_rng([seed, 2])
        self._out = bytearray()
        self._sent = 0
        self._silent = self._endless = self._last = False

    @property
    def idle(self) -> bool:
        """Whether everything has been sent."""
        return not self._out

    def send(self, message: Message) -> None:
        """Queue a message and send what can be sent.

        Raises:
            Disconnected: The client is gone.
        """
        if self._silent:
            return
        data = encode(message, self._quirks.decimal_comma)
        if message["msg_type"] == "telemetry":
            data = self._with_fault(data)
            self._sent += 1
        self._out += data
        self.flush()

    def heartbeat(self) -> None:
        """Send an empty message if nothing waits to be sent."""
        if self.idle and not self._silent:
            self._out += HEARTBEAT
            self.flush()

    def flush(self) -> None:
        """Send what can be sent without waiting.

        Raises:
            Disconnected: The client is gone.
        """
        while True:
            if self._endless and len(self._out) < CHUNK:
                self._out += b"A" * CHUNK
            if not self._out:
                break
            piece = CHUNK
            if self._quirks.cut_segments:
                piece = int(self._rng.integers(1, max(2, min(len(self._out), 2000))))
            try:
                sent = self._socket.send(self._out[:piece])
            except BlockingIOError:
                return
            except OSError as error:
                raise Disconnected(str(error)) from error
            del self._out[:sent]
        if self._last:
            raise Disconnected("closed on request")

    def receive(self, timeout: float) -> bytes:
        """What arrives within a time; nothing if nothing does, or if too much waits to be sent.

        Args:
            timeout: s.

        Raises:
            Disconnected: The client is gone.
        """
        readers = [self._socket] if len(self._out) < BACKLOG or self._endless else []
        writers = [] if self.idle else [self._socket]
        readable, writable, _ = select.select(readers, writers, [], max(timeout, 0.0))
        if writable:
            self.flush()
        if not readable:
            return b""
        try:
            data = self._socket.recv(CHUNK)
        except BlockingIOError:
            return b""
        except OSError as error:
            raise Disconnected(str(error)) from error
        if not data:
            raise Disconnected("closed by the client")
        return data

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _with_fault(self, data: bytes) -> bytes:
        if self._sent != self._quirks.fault_after:
            return data
        match self._quirks.fault:
            case "exit":
                os._exit(EXIT_CODE)
            case "drop":
                raise Disconnected("dropped on request")
            case "malformed":
                return b'{"msg_type":"telemetry","speed":}\n'
            case "truncated":
                self._silent = self._last = True
                return data[: len(data) // 2]
            case "oversized":
                self._silent = True
                return data[:-3] + b"A" * OVERSIZED + data[-3:]
            case "endless":
                self._silent = self._endless = True
                return data[:-3]
            case "silent":
                self._silent = True
                return b""
        return data


__all__ = ["Disconnected", "Line"]
