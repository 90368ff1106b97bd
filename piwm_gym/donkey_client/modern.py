"""The ``gym-donkeycar`` of GitHub (1.1 and later): the simulator listens, this side dials.

The package's client and its parser of messages are used as they are, but the parser reads through a
socket that watches for it: it takes the end of a connection for silence, and it would go on
collecting a message that never ends.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

from gym_donkeycar.core.message import IMesgHandler
from gym_donkeycar.core.sim_client import SimClient

from piwm_gym.donkey_client.backend import CLOSED, ENDLESS, MAX_MESSAGE, Backend, Peer
from piwm_gym.donkey_client.errors import DonkeyConnectionError
from piwm_gym.donkey_client.mailbox import Mailbox
from piwm_gym.donkey_client.messages import Message
from piwm_gym.donkey_client.relay import RETRY, nobody

MESSAGE_END = b"}\n"
"""What the package's parser takes for it."""


class _Handler(IMesgHandler):
    """What the package's client calls, in its own thread."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def on_connect(self, client: Any) -> None:
        """Nothing to do: the client is at hand."""

    def on_recv_message(self, message: Any) -> None:
        if isinstance(message, dict) and message.get("msg_type") == "aborted":
            self.lose("the package's client gave up reading")
        else:
            self._mailbox.put(message)

    def on_disconnect(self) -> None:
        self.lose(CLOSED)

    def on_close(self) -> None:
        """Nothing to do: it was this side that closed."""

    def lose(self, reason: str) -> None:
        """The connection is lost."""
        self._mailbox.lose(reason)


class _Client(SimClient):
    """The package's client, whose thread reads through a watched socket."""

    watched: "_Watched | None" = None

    def proc_msg(self, sock: Any) -> None:
        self.watched = _Watched(sock, self._end)
        super().proc_msg(self.watched)

    def _end(self, reason: str) -> None:
        self.msg_handler.lose(reason)
        self.do_process_msgs = False  # ends the package's thread


class _Watched:
    """A socket that says when there is nothing more to be had from it.

    Args:
        connection: The socket.
        end: Called with the reason: it was closed, it broke, or a message does not end.

    Attributes:
        unfinished: Bytes since the last message's end.
    """

    def __init__(self, connection: Any, end: Callable[[str], None]) -> None:
        self._connection = connection
        self._end = end
        self._last = b""
        self.unfinished = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def recv(self, size: int) -> bytes:
        """What has come; nothing after the end."""
        try:
            data: bytes = self._connection.recv(size)
        except OSError as error:
            self._end(f"{CLOSED} ({error})")
            return b""
        if not data:
            self._end(CLOSED)
        self._measure(data)
        if self.unfinished > MAX_MESSAGE:
            self._end(ENDLESS)
            return b""
        return data

    def _measure(self, data: bytes) -> None:
        end = (self._last + data).rfind(MESSAGE_END)  # which two segments may share
        begun = len(self._last) + len(data) - end - len(MESSAGE_END)
        self.unfinished = self.unfinished + len(data) if end < 0 else begun
        self._last = data[-1:]


class _Attempt:
    """Connects in a thread, because the package's constructor has no time-out."""

    def __init__(self, peer: Peer, mailbox: Mailbox, timeout: float) -> None:
        self._peer, self._mailbox = peer, mailbox
        self._deadline = time.monotonic() + timeout
        self._lock, self._abandoned = threading.Lock(), False
        self.client: Any = None
        self.error: Exception | None = None
        thread = threading.Thread(target=self._run, name="donkey-connect", daemon=True)
        thread.start()
        thread.join(timeout)
        with self._lock:
            self._abandoned = self.client is None

    def _run(self) -> None:
        while time.monotonic() < self._deadline:
            try:
                client = _Client((self._peer.host, self._peer.port), _Handler(self._mailbox))
            except Exception as error:  # the package raises a bare one for a refused connection
                self.error = error
                time.sleep(RETRY)
                continue
            with self._lock:
                if not self._abandoned:
                    self.client = client
                    return
            client.close()


class ModernBackend(Backend):
    """A client of a simulator that listens."""

    generation = "modern"

    def __init__(self, peer: Peer, mailbox: Mailbox, timeout: float) -> None:
        super().__init__(peer, mailbox)
        if peer.role != "listen":
            raise DonkeyConnectionError(
                "role is 'dial'; expected 'listen': the installed gym-donkeycar only reaches "
                "simulators that listen (1.0.13 of PyPI is for those that dial)"
            )
        attempt = _Attempt(peer, mailbox, timeout)
        if attempt.client is None:
            why = nobody((peer.host, peer.port), timeout, attempt.error or "no answer")
            raise DonkeyConnectionError(f"{why}; expected {peer}: {peer.advice}")
        self._client: Any = attempt.client
        mailbox.connect()

    def send(self, message: Message) -> None:
        """Send a message at once."""
        try:
            self._client.send_now(message)
        except (OSError, AttributeError) as error:  # the package drops its socket when it closes
            self.mailbox.lose(f"sending failed ({error})")

    def close(self) -> None:
        """Close the connection and wait for the package's thread."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def unfinished(self) -> int:
        """How much of a message has come whose end is missing, characters."""
        watched = self._client.watched if self._client is not None else None
        return 0 if watched is None else watched.unfinished


__all__ = ["ModernBackend"]
