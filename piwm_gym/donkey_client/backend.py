"""The two generations of the ``gym-donkeycar`` package behind one interface.

The generation on PyPI (1.0.13) listens, and the simulators of its time dial in. The one on GitHub
(1.1 and later) dials, and today's simulators listen. Both speak the same messages.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from ipaddress import ip_address
from typing import ClassVar, Literal

from piwm_gym.donkey_client.errors import DonkeyError
from piwm_gym.donkey_client.mailbox import Mailbox
from piwm_gym.donkey_client.messages import Message

Role = Literal["listen", "dial"]
"""What the simulator does; this side does the other."""
LEGACY, MODERN = "gym_donkeycar.core.tcp_server", "gym_donkeycar.core.sim_client"
INSTALL = (
    "pip install 'piwm-gym[donkey]' (or the newer client: "
    "pip install git+https://github.com/tawnkramer/gym-donkeycar)"
)
LOOPBACK = "127.0.0.1"
MAX_MESSAGE = 1 << 20
"""Longest message that is waited for, characters; frames of 120 x 160 pixels take 10,000."""
CLOSED = "the simulator closed the connection"
ENDLESS = f"a message of more than {MAX_MESSAGE} characters has no end"


@dataclass(frozen=True)
class Peer:
    """Where the simulator is, for connections and for the texts of errors.

    Attributes:
        role: What the simulator does: listens on the address, or dials it.
        host: Host name or address.
        port: TCP port; 0 for any free one, where this side listens.
    """

    role: Role
    host: str
    port: int

    def __str__(self) -> str:
        if self.role == "listen":
            return f"a simulator that listens on {self.host}:{self.port}"
        return f"a simulator that dials {self.host}:{self.port}, where this side listens"

    @property
    def other(self) -> "Peer":
        """The same address with the other role."""
        return replace(self, role="dial" if self.role == "listen" else "listen")

    @property
    def advice(self) -> str:
        """What to start, or which role to use."""
        if self.role == "listen":
            host = LOOPBACK if is_loopback(self.host) else "0.0.0.0"
            return (
                f"start the Donkey Car simulator (donkey_sim --host {host} --port {self.port}) "
                f"and wait until it shows its menu, or use role='dial' for {self.other}, as builds "
                "of 2018 and 2019 do"
            )
        return (
            f"start a simulator of 2018 or 2019 with {self.host}:{self.port} as its server, or "
            f"use role='listen' for {self.other}, as builds since 2020 do"
        )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine under a name that no other machine can use."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Backend(ABC):
    """One connection through the package; messages that come are put into a mailbox.

    Attributes:
        peer: The simulator's role and the address in use.
        mailbox: Where messages arrive.
    """

    generation: ClassVar[str]

    def __init__(self, peer: Peer, mailbox: Mailbox) -> None:
        self.peer = peer
        self.mailbox = mailbox

    @abstractmethod
    def send(self, message: Message) -> None:
        """Send a message at once; a lost connection shows in the mailbox, not here."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; may be called again."""

    def unfinished(self) -> int:
        """How much of a message has come whose end is missing, characters; 0 if unknown."""
        return 0


@lru_cache(maxsize=1)
def package_version() -> str:
    """Version of the installed ``gym-donkeycar``, or ``"unknown"``."""
    try:
        return version("gym-donkeycar")
    except PackageNotFoundError:
        return "unknown"


def choose_backend() -> Literal["legacy", "modern"]:
    """Which generation of ``gym-donkeycar`` is installed.

    Raises:
        DonkeyError: None is.
    """
    if find_spec("gym_donkeycar") is not None:
        if find_spec(MODERN) is not None:
            return "modern"
        if find_spec(LEGACY) is not None:
            return "legacy"
    raise DonkeyError(f"the package gym-donkeycar is not installed; expected one of: {INSTALL}")


def connect(peer: Peer, mailbox: Mailbox, timeout: float) -> Backend:
    """Open a connection, or begin to listen for one, with the installed package.

    Args:
        peer: The simulator's role and address.
        mailbox: Where messages shall arrive.
        timeout: For a simulator that listens, seconds until it must have accepted.

    Raises:
        DonkeyError: No package, a port in use, nobody listens, or the package cannot do it.
    """
    if choose_backend() == "legacy":
        from piwm_gym.donkey_client.legacy import LegacyBackend

        return LegacyBackend(peer, mailbox, timeout)
    from piwm_gym.donkey_client.modern import ModernBackend

    return ModernBackend(peer, mailbox, timeout)


__all__ = [
    "CLOSED",
    "ENDLESS",
    "INSTALL",
    "LOOPBACK",
    "MAX_MESSAGE",
    "Backend",
    "Peer",
    "Role",
    "choose_backend",
    "connect",
    "package_version",
]
