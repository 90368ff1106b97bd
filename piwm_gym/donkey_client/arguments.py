"""Checks of the environment's arguments."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from piwm_gym.choices import unknown
from piwm_gym.donkey_client.backend import LOOPBACK, Peer, Role

DEFAULT_PORT = 9091
"""Where Donkey Car simulators listen."""


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise ValueError for a value that is not among the choices."""
    if value not in choices:
        raise ValueError(unknown(name, value, map(str, choices)))


def check_positive(name: str, value: float) -> None:
    """Raise ValueError for what is not a positive, finite number."""
    if not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value!r}; expected a positive, finite number")


def read_peer(host: str | None, port: int | None, role: Role) -> Peer | None:
    """Address of a running simulator; None to start the embedded one.

    Raises:
        ValueError: Not a port, or a role without an address.
    """
    if host is None and port is None:
        if role != "listen":
            raise ValueError(f"role is {role!r} without host and port; expected an address")
        return None
    lowest = 0 if role == "dial" else 1
    number = DEFAULT_PORT if port is None else port
    if isinstance(number, bool) or not isinstance(number, int) or not lowest <= number <= 65535:
        raise ValueError(f"port is {port!r}; expected an integer from {lowest} to 65535")
    return Peer(role, LOOPBACK if host is None else host, number)


def launch_options(
    peer: Peer | None, course: str | None, seed: int | None, simulator: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Options for starting the embedded simulator; empty for one that runs already.

    Raises:
        ValueError: Some are given for one that runs already.
    """
    options = dict(simulator or {}) if seed is None else {"seed": seed, **(simulator or {})}
    if peer is not None and options:
        raise ValueError(
            f"{', '.join(options)} given together with host or port; expected one or the other: "
            "they are for the embedded simulator, which is started without an address"
        )
    return options if course is None or peer is not None else {"course": course, **options}


__all__ = ["check_choice", "check_positive", "launch_options", "read_peer"]
