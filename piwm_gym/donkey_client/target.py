"""Where a reset puts the car, and whether a message shows it standing there."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from piwm_gym.donkey_client import messages
from piwm_gym.donkey_client.errors import DonkeyError
from piwm_gym.donkey_client.mailbox import Received
from piwm_gym.donkey_client.telemetry import Telemetry, Units, decode_frame, read, wrap

NEAR, ALIGNED, STANDING = 0.15, 0.1, 0.05
"""How far away, turned and fast the car may stand still, m, rad, m/s."""
STATE = ("x", "y", "heading", "speed")


@dataclass(frozen=True)
class Pose:
    """A place and a direction.

    Attributes:
        x: East, m.
        y: North, m.
        heading: Counter-clockwise from east, rad.
    """

    x: float
    y: float
    heading: float


@dataclass(frozen=True)
class Target:
    """What to send so that the car stands somewhere, and how to see that it does.

    Attributes:
        request: The message that puts it there.
        units: The simulator's scale.
        size: Height and width that frames shall have.
        pose: Where it shall stand; None for anywhere.
    """

    request: messages.Message
    units: Units
    size: tuple[int, int]
    pose: Pose | None = None

    def problem(self, message: Received) -> str | None:
        """What is not yet as wanted; what the message does not tell is not asked."""
        seen = read(message, self.units)
        if abs(seen.speed) > STANDING:
            return f"it moves at {seen.speed:.2f} m/s"
        if self.pose is not None:
            # Comparisons with NaN are false.
            away = math.hypot(seen.x - self.pose.x, seen.y - self.pose.y)
            if away > NEAR:
                return f"it is {away:.2f} m away"
            turned = wrap(seen.heading - self.pose.heading)
            if abs(turned) > ALIGNED:
                return f"it is turned by {turned:.2f} rad"
        try:
            decode_frame(message, self.size)
        except DonkeyError as error:  # frames of before the camera request are still on their way
            return str(error)
        return None


def start_target(start: Telemetry | None, units: Units, size: tuple[int, int]) -> Target:
    """Back to the start; None for a start that has not been seen yet."""
    pose = None if start is None else Pose(start.x, start.y, start.heading)
    return Target(messages.reset_car(), units, size, pose)


def pose_target(pose: Pose, start: Telemetry, units: Units, size: tuple[int, int]) -> Target:
    """To a pose, at the height of the start.

    Raises:
        DonkeyError: The simulator does not tell positions.
    """
    if math.isnan(start.height):
        raise DonkeyError(
            "the simulator sends no position, so the car cannot be put anywhere; expected "
            "extended telemetry, which race servers switch off"
        )
    request = messages.set_position(pose.x, start.height, pose.y, pose.heading, units.per_metre)
    return Target(request, units, size, pose)


def read_pose(options: Mapping[str, Any] | None) -> Pose | None:
    """The pose in the options of a reset; None if there is none.

    Raises:
        ValueError: Unknown option, not numbers, or a speed other than 0.
    """
    options = options or {}
    for name in options:
        if name != "state":
            from piwm_gym.systems import unknown

            raise ValueError(unknown("reset option", name, ("state",)))
    if options.get("state") is None:
        return None
    given = options["state"]
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.zeros(0)
    if values.shape not in ((3,), (4,)) or not np.isfinite(values).all():
        raise ValueError(f"state is {given!r}; expected the numbers {', '.join(STATE)}")
    if values.shape == (4,) and abs(values[3]) > 1e-6:
        raise ValueError(
            f"speed in state is {values[3]:g} m/s; expected 0: a simulator can put the car "
            "somewhere, but not make it move"
        )
    return Pose(*map(float, values[:3]))


__all__ = ["Pose", "Target", "pose_target", "read_pose", "start_target"]
