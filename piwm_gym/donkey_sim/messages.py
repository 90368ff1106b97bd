"""Contents of the simulator's messages: its units, its axes, its fields by generation.

The simulator's axes are left-handed: x right, y up, z forward; yaw is clockwise from z, seen from
above. Eight of its units are a metre.
"""

import base64
import math

import numpy as np

from piwm_gym.courses import COURSES, Course, wrap_angle
from piwm_gym.donkey_sim.car import FRAME_DT, GRAVITY
from piwm_gym.donkey_sim.protocol import Message, number
from piwm_gym.donkey_sim.simulator import Telemetry

UNITS_PER_METRE = 8.0
DIGITS = 6
UNITY_SCENES = (
    "generated_road",
    "warehouse",
    "sparkfun_avc",
    "generated_track",
    "roboracingleague_1",
    "waveshare",
    "mini_monaco",
    "warren",
    "circuit_launch",
    "mountain_track",
)
"""In the order of the real simulator's menu: old clients choose by index."""
SCENES = (*UNITY_SCENES, *COURSES)


def telemetry_message(
    telemetry: Telemetry, image: bytes, course: Course, generation: int, extended: bool
) -> Message:
    """A telemetry message.

    Args:
        telemetry: The car.
        image: File of the camera's picture.
        course: Where it drives.
        generation: 2019, 2021 or 2022.
        extended: With position, velocity and cross-track error.
    """
    t = telemetry
    scale = 1.0 if generation >= 2022 else UNITS_PER_METRE
    fields = {
        "steering_angle": t.steering,
        "throttle": t.throttle,
        "speed": math.hypot(t.speed, t.lateral_speed) * scale,
        "time": t.time,
    }
    if generation >= 2021:
        fields |= {
            "accel_x": -t.speed * t.yaw_rate * scale,
            "accel_y": (GRAVITY if generation < 2022 else 0.0) * scale,
            "accel_z": t.acceleration * scale,
            "pitch": 0.0,
            "yaw": yaw_degrees(t.heading),
            "roll": 0.0,
        }
        fields |= _gyroscope(t.yaw_rate, generation)
    if extended:
        fields |= {"pos_x": t.x * scale, "pos_y": 0.0, "pos_z": t.y * scale}
        fields["cte"] = t.cte * UNITS_PER_METRE
        if generation >= 2021:
            fields |= {"vel_x": -t.lateral_speed * scale, "vel_y": 0.0, "vel_z": t.speed * scale}
    message: Message = {"msg_type": "telemetry"}
    message |= {name: round(value, DIGITS) for name, value in fields.items()}
    if generation >= 2021:
        message |= {"activeNode": t.node, "totalNodes": len(course.path)}
    return message | {"hit": t.hit, "image": base64.b64encode(image).decode()}


def _gyroscope(yaw_rate: float, generation: int) -> dict[str, float]:
    """Rates in rad/s since 2022; before, the rotation over a frame as a quaternion."""
    if generation >= 2022:
        return {"gyro_x": 0.0, "gyro_y": -yaw_rate, "gyro_z": 0.0}
    half = -yaw_rate * FRAME_DT / 2
    return {"gyro_x": 0.0, "gyro_y": math.sin(half), "gyro_z": 0.0, "gyro_w": math.cos(half)}


def yaw_degrees(heading: float) -> float:
    """Yaw in [0, 360) of a heading in rad."""
    return math.degrees(math.pi / 2 - heading) % 360.0


def node_message(course: Course, index: int) -> Message:
    """Where a point of the path is, and its direction; in simulator units."""
    x, y = (course.path[index] * UNITS_PER_METRE).tolist()
    half = math.radians(yaw_degrees(float(course.headings[index]))) / 2
    numbers = {"pos_x": x, "pos_y": 0.0, "pos_z": y}
    numbers |= {"Qx": 0.0, "Qy": math.sin(half), "Qz": 0.0, "Qw": math.cos(half)}
    rounded = {name: round(value, DIGITS) for name, value in numbers.items()}
    return {"msg_type": "node_position", "index": index, **rounded}


def read_position(message: Message, heading: float) -> tuple[float, float, float] | None:
    """The pose that a client asks for.

    Args:
        message: A set_position message, in simulator units.
        heading: rad, kept if the message has no rotation.

    Returns:
        x and y in m, heading in rad; None if the message does not say where, or in what direction.
    """
    x, y = number(message, "pos_x"), number(message, "pos_z")
    if x is None or y is None:
        return None
    turn = [number(message, key) for key in ("Qx", "Qy", "Qz", "Qw")]
    if None not in turn:
        qx, qy, qz, qw = (float(part or 0.0) for part in turn)
        forward_x = 2 * (qx * qz + qw * qy)
        forward_z = 1 - 2 * (qx * qx + qy * qy)
        heading = math.atan2(forward_z, forward_x)
    if math.isnan(heading):  # of a rotation whose squares no number holds
        return None
    return x / UNITS_PER_METRE, y / UNITS_PER_METRE, float(wrap_angle(heading))


def crosses_start(course: Course, node: int) -> bool:
    """Whether a point of the path lies in the quarter after the starting line."""
    return 1 <= node < len(course.path) // 4


def approaches_start(course: Course, node: int) -> bool:
    """Whether a point of the path lies in the quarter before the starting line."""
    return node >= len(course.path) - len(course.path) // 4


def to_grey(frame: np.ndarray) -> np.ndarray:
    """(H, W) brightness of a frame (H, W, 3)."""
    return (frame @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)


__all__ = [
    "SCENES",
    "UNITS_PER_METRE",
    "UNITY_SCENES",
    "approaches_start",
    "crosses_start",
    "node_message",
    "read_position",
    "telemetry_message",
    "to_grey",
    "yaw_degrees",
]
