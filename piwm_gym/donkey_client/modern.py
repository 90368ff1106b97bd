"""The ``gym-donkeycar`` of GitHub (1.1 and later): the simulator listens, this side dials."""

import threading
import time
from typing import Any

from gym_donkeycar.core.message import IMesgHandler
from gym_donkeycar.core.sim_client import SimClient

from piwm_gym.donkey_client.backend import Backend, Peer
from piwm_gym.donkey_client.errors import DonkeyConnectionError
from piwm_gym.donkey_client.mailbox import Mailbox
from piwm_gym.donkey_client.messages import Message
from piwm_gym.donkey_client.relay import RETRY


class _Handler(IMesgHandler):
    """What the package's client calls, in its own thread."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def on_connect(self, client: Any) -> None:
        """Nothing to do: the client is at hand."""

    def on_recv_message(self, message: Any) -> None:
        if isinstance(message, dict) and message.get("msg_type") == "aborted":
            self._mailbox.lose("the simulator closed the connection")
        else:
            self._mailbox.put(message)

    def on_disconnect(self) -> None:
        self._mailbox.lose("the simulator closed the connection")

    def on_close(self) -> None:
        """Nothing to do: it was this side that closed."""


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
                client = SimClient((self._peer.host, self._peer.port), _Handler(self._mailbox))
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
            raise DonkeyConnectionError(
                f"nobody accepted a connection on {peer.host}:{peer.port} within {timeout:g} s "
                f"({attempt.error or 'no answer'}); {peer.advice}"
            )
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


__all__ = ["ModernBackend"]
