"""Checks of the environment's arguments."""

from collections.abc import Mapping, Sequence
from typing import Any

from piwm_gym.checks import check_host, check_whole
from piwm_gym.choices import unknown
from piwm_gym.donkey_client.backend import LOOPBACK, Peer, Role

DEFAULT_PORT = 9091
"""Where Donkey Car simulators listen."""
ADDRESS = ("role", "host", "port")
"""Options of the embedded simulator that the way of connecting to it decides."""


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise ValueError for a value that is not among the choices."""
    if value not in choices:
        raise ValueError(unknown(name, value, map(str, choices)))


def check_kind(name: str, value: object, kind: type, expected: str) -> None:
    """Raise ValueError for what is not of a kind."""
    if not isinstance(value, kind):
        raise ValueError(f"{name} is {value!r}; expected {expected}")


def check_text(name: str, value: object) -> None:
    """Raise ValueError for what is neither None nor a text that is not empty."""
    if value is not None and not (isinstance(value, str) and value):
        raise ValueError(f"{name} is {value!r}; expected a name")


def read_peer(host: str | None, port: int | None, role: Role) -> Peer | None:
    """Address of a running simulator; None to start the embedded one.

    Raises:
        ValueError: Not a host, not a port, or a role without an address.
    """
    if host is None and port is None:
        if role != "listen":
            raise ValueError(f"role is {role!r} without host and port; expected an address")
        return None
    if host is not None:
        check_host("host", host)
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
        ValueError: Some are given for one that runs already, or it has none such.
    """
    options = {} if simulator is None else read_simulator(simulator)
    if seed is not None:
        check_whole("seed", seed, 0)
        options = {"seed": int(seed), **options}
    if peer is not None and options:
        raise ValueError(
            f"{', '.join(options)} given together with host or port; expected one or the other: "
            "they are for the embedded simulator, which is started without an address"
        )
    return options if course is None or peer is not None else {"course": course, **options}


def read_simulator(simulator: object) -> dict[str, Any]:
    """Options of the embedded simulator, by name.

    Raises:
        ValueError: Not a mapping, an unknown name, or one that is not to be chosen.
    """
    if not isinstance(simulator, Mapping):
        raise ValueError(f"simulator is {simulator!r}; expected a dict of options")
    from piwm_gym.donkey_sim.process import OPTIONS

    allowed = [name for name in OPTIONS if name not in (*ADDRESS, "course")]
    for name in simulator:
        if name in ADDRESS or name == "course":
            reach = ", of a simulator that runs already" if name in ADDRESS else ""
            raise ValueError(
                f"simulator has the option {name!r}; expected {name}= as an argument of its "
                f"own{reach}, and in simulator only {', '.join(allowed)}"
            )
        if name not in allowed:
            raise ValueError(unknown("option of simulator", name, allowed))
    return dict(simulator)


__all__ = [
    "check_choice",
    "check_kind",
    "check_text",
    "launch_options",
    "read_peer",
    "read_simulator",
]
