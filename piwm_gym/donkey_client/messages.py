"""Messages from this side to a Donkey Car simulator.

Every value is a string: the Unity simulator silently ignores numbers.
"""

import math

Message = dict[str, str]


def control(steering: float, throttle: float, brake: float = 0.0) -> Message:
    """Drive; the simulator holds the latest request until the next one.

    Args:
        steering: -1 full left to 1 full right.
        throttle: -1 full reverse to 1 full forward.
        brake: 0 to 1.
    """
    return {
        "msg_type": "control",
        "steering": str(float(steering)),
        "throttle": str(float(throttle)),
        "brake": str(float(brake)),
    }


def get_protocol_version() -> Message:
    """Ask for the protocol's version."""
    return {"msg_type": "get_protocol_version"}


def get_scene_names() -> Message:
    """Ask for the scenes on offer."""
    return {"msg_type": "get_scene_names"}


def load_scene(name: str) -> Message:
    """Leave the menu for a scene."""
    return {"msg_type": "load_scene", "scene_name": name}


def reset_car() -> Message:
    """Put the car back to where it started."""
    return {"msg_type": "reset_car"}


def set_random_seed(seed: int) -> Message:
    """Seed what is random in the simulator; those that cannot ignore it."""
    return {"msg_type": "set_random_seed", "seed": str(seed)}


def set_position(x: float, height: float, y: float, heading: float, scale: float) -> Message:
    """Put the car somewhere.

    Args:
        x: East, m.
        height: Height in the simulator's units.
        y: North, m.
        heading: Counter-clockwise from east, rad.
        scale: The simulator's units per metre.
    """
    half = (math.pi / 2 - heading) / 2  # yaw is clockwise from north, about the upward axis
    values = {
        "pos_x": x * scale,
        "pos_y": height,
        "pos_z": y * scale,
        "Qx": 0.0,
        "Qy": math.sin(half),
        "Qz": 0.0,
        "Qw": math.cos(half),
    }
    return {"msg_type": "set_position", **{name: str(value) for name, value in values.items()}}


def camera_config(height: int, width: int) -> Message:
    """Ask for RGB frames of a size and leave the rest of the camera as it is."""
    kept = ("fov", "fish_eye_x", "fish_eye_y", "offset_x", "offset_y", "offset_z", "rot_x")
    return {
        "msg_type": "cam_config",
        "img_w": str(width),
        "img_h": str(height),
        "img_d": "3",
        "img_enc": "JPG",
        **dict.fromkeys(kept, "0"),
    }


def car_config(name: str) -> Message:
    """Looks of the car; race servers insist on it."""
    return {
        "msg_type": "car_config",
        "body_style": "donkey",
        "body_r": "128",
        "body_g": "128",
        "body_b": "255",
        "car_name": name,
        "font_size": "50",
    }


__all__ = [
    "Message",
    "camera_config",
    "car_config",
    "control",
    "get_protocol_version",
    "get_scene_names",
    "load_scene",
    "reset_car",
    "set_position",
    "set_random_seed",
]
