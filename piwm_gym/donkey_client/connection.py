"""Ways to a simulator: one that runs already, or the embedded one in a process of its own."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from piwm_gym.donkey_client.backend import LOOPBACK, Backend, Peer, choose_backend, connect
from piwm_gym.donkey_client.errors import DonkeyConnectionError, DonkeyError
from piwm_gym.donkey_client.mailbox import Mailbox
from piwm_gym.donkey_client.session import Session, Timeouts


@dataclass
class Connection:
    """A session and, where this side started it, the simulator's process.

    Attributes:
        session: The conversation.
        backend: The connection under it.
        process: To be closed after the session; None for a simulator of someone else.
        owner: Id of the process that opened it; forked children leave it alone.
    """

    session: Session
    backend: Backend
    process: Any = None
    owner: int = field(default_factory=os.getpid)

    def close(self) -> None:
        """Close the connection and end the process."""
        if os.getpid() != self.owner:
            return
        try:
            self.session.close()
        finally:
            if self.process is not None:
                self.process.close()


def open_remote(peer: Peer, timeouts: Timeouts) -> Connection:
    """Connect to a simulator that runs already, or listen for it to dial in.

    Raises:
        DonkeyError: No package, a port in use, or nobody there.
    """
    backend = connect(peer, Mailbox(), timeouts.connect)
    return Connection(Session(backend, timeouts), backend)


def open_embedded(options: Mapping[str, Any], timeouts: Timeouts) -> Connection:
    """Start the embedded simulator and connect to it.

    Args:
        options: For :func:`piwm_gym.donkey_sim.launch`; by default its clock is lock-step.
        timeouts: How long to wait for what.

    Raises:
        DonkeyError: It does not start or connect.
    """
    options = {"clock": "lockstep", **options}
    if choose_backend() == "legacy":
        backend = connect(Peer("dial", LOOPBACK, 0), Mailbox(), timeouts.connect)
        try:
            process = _launch(role="dial", port=backend.peer.port, **options)
        except BaseException:
            backend.close()
            raise
    else:
        process = _launch(role="listen", port=0, **options)
        try:
            backend = connect(Peer("listen", LOOPBACK, process.port), Mailbox(), timeouts.connect)
        except DonkeyConnectionError:
            process.close()
            raise
    return Connection(Session(backend, timeouts), backend, process)


def _launch(**options: Any) -> Any:
    from piwm_gym.donkey_sim import launch

    try:
        return launch(**options)
    except (RuntimeError, TimeoutError) as error:
        raise DonkeyError(f"the embedded simulator did not start: {error}") from error


__all__ = ["Connection", "open_embedded", "open_remote"]
