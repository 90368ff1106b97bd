"""From a simulator's telemetry message to a frame and SI units."""

import base64
import binascii
import io
import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image, UnidentifiedImageError

from piwm_gym.donkey_client.errors import DonkeyError
from piwm_gym.donkey_client.mailbox import Received

PositionUnit = Literal["auto", "metres", "units"]


@dataclass(frozen=True)
class Units:
    """The scale of a simulator's numbers.

    Attributes:
        per_metre: Simulator units to a metre. The cross-track error and the position that a car
            is put to are always in these units.
        positions: What telemetry has positions and speeds in. ``"auto"``: metres where the
            message looks like the builds since 2022, else simulator units.
    """

    per_metre: float = 8.0
    positions: PositionUnit = "auto"

    def position_scale(self, message: Received) -> float:
        """Metres to one unit of the message's positions and speeds."""
        in_metres = self.positions == "metres"
        if self.positions == "auto":
            # Since 2022 the gyroscope reports three rates; before, four numbers, or nothing.
            in_metres = "gyro_x" in message and "gyro_w" not in message
        return 1.0 if in_metres else 1 / self.per_metre


@dataclass(frozen=True)
class Telemetry:
    """The numbers of one message; what it lacks is NaN.

    Attributes:
        time: Simulator time, s.
        x: East, m.
        y: North, m.
        height: In the simulator's units.
        heading: Counter-clockwise from east, rad in [-pi, pi).
        speed: Forward, m/s; its magnitude where the message does not tell the direction.
        cte: Distance from the path, positive to its right, m.
    """

    time: float
    x: float
    y: float
    height: float
    heading: float
    speed: float
    cte: float


def wrap(angle: float) -> float:
    """Angle in [-pi, pi)."""
    return (angle + math.pi) % (2 * math.pi) - math.pi


def number(message: Received, name: str) -> float:
    """A field as a number; NaN if it is missing.

    Raises:
        DonkeyError: The field is not a number.
    """
    value = message.get(name, math.nan)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise DonkeyError(f"telemetry field {name!r} is {value!r}; expected a number") from None


def decode_frame(message: Received, size: tuple[int, int]) -> np.ndarray:
    """The camera image, uint8 (H, W, 3).

    Args:
        message: A telemetry message.
        size: Height and width that the camera was asked for.

    Raises:
        DonkeyError: No image, not an image, or of another size.
    """
    text = message.get("image")
    if not isinstance(text, str):
        raise DonkeyError(
            f"telemetry has no image, only the fields {', '.join(sorted(message))}; expected a "
            "base64 picture in 'image': start the simulator with graphics"
        )
    try:
        with Image.open(io.BytesIO(base64.b64decode(text))) as image:
            frame = np.array(image.convert("RGB"))
    except (binascii.Error, UnidentifiedImageError, OSError, ValueError) as error:
        raise DonkeyError(
            f"the image in a telemetry message of {len(text)} characters cannot be read ({error})"
        ) from error
    if frame.shape != (*size, 3):
        got = f"{frame.shape[0]} x {frame.shape[1]}"
        raise DonkeyError(
            f"the simulator sends frames of {got} pixels (height x width); expected {size[0]} x "
            f"{size[1]}: it ignored the camera request, so set the size in its own settings"
        )
    return frame


def read(message: Received, units: Units) -> Telemetry:
    """Read the numbers of a telemetry message.

    Args:
        message: As received.
        units: The simulator's scale.

    Raises:
        DonkeyError: A field is not a number, or there is no time.
    """
    if math.isnan(number(message, "time")):
        raise DonkeyError("telemetry has no field 'time'; expected the simulator's clock in s")
    scale = units.position_scale(message)
    speed, yaw = number(message, "speed") * scale, number(message, "yaw")
    forward = number(message, "vel_z") * scale
    if not math.isnan(yaw) and not math.isnan(forward):  # such builds send it along the car's axes
        speed = forward
    return Telemetry(
        time=number(message, "time"),
        x=number(message, "pos_x") * scale,
        y=number(message, "pos_z") * scale,
        height=number(message, "pos_y") * scale * units.per_metre,
        heading=wrap(math.pi / 2 - math.radians(yaw)),
        speed=speed,
        cte=number(message, "cte") / units.per_metre,
    )


class Course:
    """Heading and direction of travel from the path, where telemetry lacks the yaw.

    Args:
        reach: Distance between the two positions whose difference is the heading, m.
    """

    def __init__(self, reach: float = 0.03) -> None:
        self._reach = reach
        self.clear()

    def clear(self) -> None:
        """Forget the path: the car was put elsewhere."""
        self._anchor: tuple[float, float] | None = None
        self._heading, self._direction = math.nan, 1.0

    def update(self, seen: Telemetry) -> tuple[float, float]:
        """Heading (rad; NaN until the car has moved) and signed speed (m/s)."""
        if not math.isnan(seen.heading):
            return seen.heading, seen.speed
        anchor = self._anchor or (seen.x, seen.y)
        self._anchor = anchor
        dx, dy = seen.x - anchor[0], seen.y - anchor[1]
        if math.hypot(dx, dy) >= self._reach:
            self._anchor, travel = (seen.x, seen.y), math.atan2(dy, dx)
            # A car cannot turn about within so short a way: it is going backwards.
            back = abs(wrap(travel - self._heading)) > math.pi / 2
            self._heading = wrap(travel + math.pi) if back else travel
            self._direction = -1.0 if back else 1.0
        return self._heading, self._direction * seen.speed


__all__ = ["Course", "PositionUnit", "Telemetry", "Units", "decode_frame", "read", "wrap"]
