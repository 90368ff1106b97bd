"""A byte pump between a simulator that listens and a client that listens.

It lets the client on PyPI, which waits for simulators to dial in, drive those of today, which wait
for clients.
"""

import select
import socket
import threading
import time
from contextlib import suppress

from piwm_gym.donkey_client.errors import DonkeyConnectionError

Address = tuple[str, int]
RETRY = 0.2
"""Pause between two attempts to connect, s."""


def dial(address: Address, timeout: float) -> socket.socket:
    """Connect, trying again until a time-out: simulators take a while to start.

    Raises:
        OSError: Nobody accepted in time.
    """
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        try:
            connection = socket.create_connection(address, timeout=max(left, 0.01))
        except OSError:
            if left <= RETRY:
                raise
            time.sleep(RETRY)
        else:
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection


def nobody(address: Address, timeout: float, reason: object) -> str:
    """Text of the error for an address where nobody listens."""
    return (
        f"nobody accepted a connection on {address[0]}:{address[1]} within {timeout:g} s ({reason})"
    )


class Relay:
    """Dials both sides and copies bytes both ways until one of them closes.

    Args:
        simulator: Address on which the simulator listens.
        client: Address on which the client listens.
        timeout: Seconds until both must have accepted.

    Raises:
        DonkeyConnectionError: One of them did not.
    """

    def __init__(self, simulator: Address, client: Address, timeout: float) -> None:
        opened: list[socket.socket] = []
        try:
            for address in (simulator, client):
                opened.append(dial(address, timeout))
        except OSError as error:
            for connection in opened:
                connection.close()
            raise DonkeyConnectionError(nobody(address, timeout, error)) from error
        self._ends = (opened[0], opened[1])
        self._thread = threading.Thread(target=self._pump, name="donkey-relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close both connections and end the thread."""
        for end in self._ends:
            with suppress(OSError):  # closed by the other side
                end.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=1.0)

    def _pump(self) -> None:
        first, second = self._ends
        other = {first: second, second: first}
        try:
            while True:
                for end in select.select(self._ends, (), ())[0]:
                    data = end.recv(1 << 16)
                    if not data:
                        return
                    other[end].sendall(data)
        except OSError:
            pass  # a side broke off; the other one sees it below
        finally:
            for end in self._ends:
                end.close()


__all__ = ["Relay", "dial", "nobody"]
