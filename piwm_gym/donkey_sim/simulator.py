"""The simulator in this process: a car on a course, a camera on the car, and one clock."""

import io
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from piwm_gym.courses import DEFAULT_COURSE, Course, get_course
from piwm_gym.donkey_sim.camera import CameraSettings
from piwm_gym.donkey_sim.car import FRAME_DT, Car, CarSettings, Command
from piwm_gym.donkey_sim.renderer import Renderer, build_world
from piwm_gym.donkey_sim.scenery import bounds
from piwm_gym.donkey_sim.sprites import KINDS

CAR_RADIUS = 0.1
BARRIER = 0.5
JPEG_QUALITY = 75


@dataclass(frozen=True)
class Telemetry:
    """What is known about the car at one moment; right-handed.

    Attributes:
        time: s, since the simulator began.
        x: m.
        y: m.
        heading: rad, in [-pi, pi).
        speed: m/s, forward; negative in reverse.
        lateral_speed: m/s, to the left.
        yaw_rate: rad/s, positive to the left.
        acceleration: m/s^2, forward, over the last frame.
        cte: m, distance from the path, positive to the right of it.
        hit: Name of what the car hit in the last frame, or "none".
        steering: Last command, in [-1, 1], positive to the right.
        throttle: Last command, in [-1, 1].
        brake: Last command, in [0, 1].
        node: Index of the path's point before the car.
        laps: Number of completed laps since the last reset.
    """

    time: float = 0.0
    x: float = 0.0
    y: float = 0.0
    heading: float = 0.0
    speed: float = 0.0
    lateral_speed: float = 0.0
    yaw_rate: float = 0.0
    acceleration: float = 0.0
    cte: float = 0.0
    hit: str = "none"
    steering: float = 0.0
    throttle: float = 0.0
    brake: float = 0.0
    node: int = 0
    laps: int = 0


class Simulator:
    """A Donkey Car on a course.

    The same seed and the same calls give the same numbers and the same frames.

    Args:
        course: A course or its name.
        seed: Of bumps and of the camera's effects.
        car: Constants of the car.
        camera: The camera.

    Raises:
        ValueError: No such course.
    """

    def __init__(
        self,
        course: str | Course = DEFAULT_COURSE,
        seed: int = 0,
        car: CarSettings | None = None,
        camera: CameraSettings | None = None,
    ) -> None:
        self.course = get_course(course) if isinstance(course, str) else course
        self.car = Car(car or CarSettings())
        self.world = build_world(self.course)
        self.set_camera(camera or CameraSettings())
        low, high = bounds(self.course)
        self._limits = low + BARRIER, high - BARRIER
        solid = [t for t in self.world.things if KINDS[t.kind].radius]
        self._solid = np.array([(t.x, t.y, KINDS[t.kind].radius + CAR_RADIUS) for t in solid])
        self._solid_names = [t.name for t in solid]
        self.reset(seed=seed)

    def set_camera(self, settings: CameraSettings) -> None:
        """Use another camera from now on."""
        self.renderer = Renderer(self.world, settings)
        self._gain = np.ones(3)

    @property
    def telemetry(self) -> Telemetry:
        """The car at this moment."""
        return self._telemetry

    def reset(
        self,
        pose: tuple[float, float, float, float] | None = None,
        seed: int | None = None,
    ) -> Telemetry:
        """Put the car somewhere, with straight wheels and no command under way.

        Args:
            pose: x and y in m, heading in rad, speed in m/s; default standing at the start.
            seed: Start the random numbers and the clock anew; default: both go on.

        Raises:
            ValueError: The pose is not four finite numbers.
        """
        if seed is not None:
            self._bumps, self._effects = (
                np.random.default_rng([seed, purpose]) for purpose in (0, 1)
            )
            self._telemetry = Telemetry()
        pose = (*self.course.spawn, 0.0) if pose is None else pose
        if len(pose) != 4 or not all(math.isfinite(number) for number in pose):
            raise ValueError(f"pose is {pose}; expected x, y, heading, speed: finite numbers")
        self.car.place(*(float(number) for number in pose))
        self._driven = 0.0
        self._arc = self._locate()[0]
        camera = self.renderer.settings
        drawn = self._effects.uniform(-1, 1, 4)
        self._gain = (1 + camera.light * drawn[0]) * (1 + camera.tint * drawn[1:])
        self._observe(self._telemetry.time, Command(), "none", pose[3])
        return self._telemetry

    def step(self, steering: float, throttle: float, brake: float = 0.0) -> Telemetry:
        """Advance by one telemetry frame, 0.05 s.

        Args:
            steering: In [-1, 1], positive to the right; clipped.
            throttle: In [-1, 1]; clipped.
            brake: In [0, 1]; clipped.

        Raises:
            ValueError: A command is not a number.
        """
        if not all(map(math.isfinite, (steering, throttle, brake))):
            raise ValueError(
                f"steering is {steering}, throttle {throttle}, brake {brake}; expected numbers"
            )
        command = Command(
            min(1.0, max(-1.0, float(steering))),
            min(1.0, max(-1.0, float(throttle))),
            min(1.0, max(0.0, float(brake))),
        )
        before = self.car.motion.speed
        off_middle = self._telemetry.cte - self.course.road_offset
        self.car.step(command, abs(off_middle) <= self.course.road_half_width, self._bumps)
        hit = self._collide()
        self._observe(self._telemetry.time + FRAME_DT, command, hit, before)
        return self._telemetry

    def frame(self) -> NDArray[np.uint8]:
        """(height, width, 3) what the camera sees at this moment."""
        motion, camera = self.car.motion, self.renderer.settings
        frame = self.renderer.frame(motion.x, motion.y, motion.heading)
        if camera.light or camera.tint or camera.noise or camera.blur:
            frame = self._spoil(frame)
        return frame

    def jpeg(self) -> bytes:
        """The frame as JPEG, quality 75."""
        return encode_image(self.frame(), "JPEG")

    def _spoil(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        camera = self.renderer.settings
        values = frame.astype(np.float32) * self._gain.astype(np.float32)
        if camera.blur:
            padded = np.pad(values, ((1, 1), (1, 1), (0, 0)), "edge")
            beside = padded[:-2, 1:-1] + padded[2:, 1:-1] + padded[1:-1, :-2] + padded[1:-1, 2:]
            values += camera.blur * (beside / 4 - values)
        if camera.noise:
            values += camera.noise * self._effects.standard_normal(values.shape, np.float32)
        return np.clip(values, 0, 255).astype(np.uint8)

    def _locate(self) -> tuple[float, float]:
        """Arc length and signed distance of the car, m."""
        arc, offset = self.course.project(np.array([self.car.motion.x, self.car.motion.y]))
        return float(arc), float(offset)

    def _observe(self, time: float, command: Command, hit: str, before: float) -> None:
        motion, length = self.car.motion, self.course.length
        arc, cte = self._locate()
        self._driven += self.course.advance(self._arc, arc)
        self._arc = arc
        self._telemetry = Telemetry(
            round(time, 6),
            motion.x,
            motion.y,
            motion.heading,
            motion.speed,
            motion.lateral_speed,
            motion.yaw_rate,
            (motion.speed - before) / FRAME_DT,
            cte,
            hit,
            command.steering,
            command.throttle,
            command.brake,
            int(arc / self.course.spacing) % len(self.course.path),
            max(0, int(self._driven / length)),
        )

    def _collide(self) -> str:
        """Stop the car at a thing or at the end of the world; the name of what it hit."""
        m, hit = self.car.motion, "none"
        gap = np.array([m.x, m.y]) - self._solid[:, :2]
        distance = np.hypot(gap[:, 0], gap[:, 1])
        depth = self._solid[:, 2] - distance
        first = int(np.argmax(depth))
        if depth[first] > 0:
            out = gap[first] / max(float(distance[first]), 1e-6) * depth[first]
            self.car.motion = replace(m, x=m.x + float(out[0]), y=m.y + float(out[1]))
            hit = self._solid_names[first]
        else:
            x, y = np.clip((m.x, m.y), *self._limits).tolist()
            if (x, y) != (m.x, m.y):
                self.car.motion, hit = replace(m, x=x, y=y), "barrier"
        if hit != "none":
            self.car.motion = replace(
                self.car.motion, speed=0.0, lateral_speed=0.0, yaw_rate=0.0, drive=0.0
            )
        return hit


def encode_image(frame: NDArray[np.uint8], form: str) -> bytes:
    """A frame as the bytes of an image file.

    Args:
        frame: (height, width, 3) or (height, width).
        form: "JPEG", "PNG" or "TGA".
    """
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, form, quality=JPEG_QUALITY)
    return buffer.getvalue()


__all__ = ["Simulator", "Telemetry", "encode_image"]
