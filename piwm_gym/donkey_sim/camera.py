"""Perspective camera over flat ground: where each pixel looks, seen from the car.

A pixel's ray depends on the camera alone, so everything that does not depend on the car's pose
is computed once: the ground points of the pixels, how coarse the ground's texture may be there,
how much haze lies before it, and which part of the panorama the pixels above the horizon show.
"""

import math
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from piwm_gym.checks import check_number, check_whole

FAR = 60.0
LEAST_GROUND = 2
"""Rows of ground that a picture must have: the size of a pixel there is a difference of rows."""


@dataclass(frozen=True)
class CameraSettings:
    """The camera and what its pictures suffer; the effects are drawn anew at each reset.

    Attributes:
        width: Pixels.
        height: Pixels.
        fov: deg, vertical field of view.
        up: m, height of the lens over the ground.
        ahead: m, of the lens before the car's origin.
        pitch: deg, downward.
        haze: m, distance at which 63 % of the ground's colour is lost.
        light: Greatest relative change of brightness, drawn per episode.
        tint: Greatest relative change of each colour channel, drawn per episode.
        noise: Standard deviation of each pixel, in units of 1/255.
        blur: Share of each pixel that comes from its four neighbours.
    """

    width: int = 160
    height: int = 120
    fov: float = 90.0
    up: float = 0.2
    ahead: float = 0.07
    pitch: float = 15.0
    haze: float = 14.0
    light: float = 0.0
    tint: float = 0.0
    noise: float = 0.0
    blur: float = 0.0

    def __post_init__(self) -> None:
        for field in fields(self):
            check_number(field.name, getattr(self, field.name))
        check_whole("width", self.width)
        check_whole("height", self.height)
        if not (8 <= self.width <= 1024 and 8 <= self.height <= 1024):
            size = f"{self.width} x {self.height}"
            raise ValueError(f"width and height are {size}; expected 8 to 1024 pixels")
        if not 10 <= self.fov <= 150:
            raise ValueError(f"fov is {self.fov}; expected 10 to 150 degrees")
        if not (self.up > 0 and self.haze > 0 and abs(self.pitch) < 90):
            raise ValueError(
                f"up is {self.up}, haze {self.haze}, pitch {self.pitch}; expected up and haze "
                "above 0 and pitch between -90 and 90 degrees"
            )
        if abs(self.ahead) > FAR:
            raise ValueError(f"ahead is {self.ahead}; expected -{FAR:g} to {FAR:g} m")
        for name in ("light", "tint", "blur"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 0 to below 1")
        if not 0 <= self.noise <= 255:
            raise ValueError(f"noise is {self.noise}; expected 0 to 255")
        ground = self.height - Rays(self).horizon
        if ground < LEAST_GROUND:
            raise ValueError(
                f"pitch is {self.pitch}, up {self.up}, fov {self.fov}: {ground} of {self.height} "
                f"rows see the ground within {FAR:g} m; expected {LEAST_GROUND} or more: look "
                "further down, or from less high up"
            )


class Rays:
    """Directions of the pixels; x to the right, forward along the ground, up.

    Attributes:
        focal: Pixels.
        across: (W,) right component of the rays of each column.
        forward: (H,) component along the ground, ahead, of the rays of each row.
        rise: (H,) upward component.
        horizon: Number of rows that look above the ground.
    """

    def __init__(self, settings: CameraSettings) -> None:
        self.settings = settings
        self.focal = settings.height / 2 / math.tan(math.radians(settings.fov) / 2)
        pitch = math.radians(settings.pitch)
        down = (np.arange(settings.height) + 0.5 - settings.height / 2) / self.focal
        self.across = (np.arange(settings.width) + 0.5 - settings.width / 2) / self.focal
        self.forward = math.cos(pitch) - down * math.sin(pitch)
        self.rise = -math.sin(pitch) - down * math.cos(pitch)
        self.horizon = int(np.sum(self.rise > -settings.up / FAR))

    def ground(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Where the rows below the horizon meet the ground.

        Returns:
            (R, W) m ahead of the lens and (R, W) m to its right.
        """
        reach = self.settings.up / -self.rise[self.horizon :]
        ahead = np.repeat((reach * self.forward[self.horizon :])[:, None], len(self.across), 1)
        return ahead.astype(np.float32), (reach[:, None] * self.across).astype(np.float32)

    def footprint(self) -> NDArray[np.float64]:
        """(R,) m, size of a pixel on the ground: the mean over its two directions."""
        reach = self.settings.up / -self.rise[self.horizon :]
        side = reach / self.focal
        length = np.abs(np.gradient(reach * self.forward[self.horizon :]))
        return np.sqrt(side * np.minimum(length, 8 * side))

    def sky(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Directions of the pixels above the horizon.

        Returns:
            (horizon, W) rad, azimuth to the right of straight ahead; (horizon, W) rad, elevation.
        """
        forward = self.forward[: self.horizon, None]
        azimuth = np.arctan2(self.across, forward)
        elevation = np.arctan2(self.rise[: self.horizon, None], np.hypot(self.across, forward))
        return azimuth, np.maximum(elevation, 0.0)

    def pixel(self, ahead: float, right: float, up: float) -> tuple[float, float]:
        """Column and row, in pixels from the picture's corner, of a point seen from the lens.

        Args:
            ahead: m, along the ground.
            right: m.
            up: m over the ground.
        """
        pitch = math.radians(self.settings.pitch)
        rise = up - self.settings.up
        depth = ahead * math.cos(pitch) - rise * math.sin(pitch)
        down = -(ahead * math.sin(pitch) + rise * math.cos(pitch))
        column = self.settings.width / 2 + self.focal * right / depth
        return column, self.settings.height / 2 + self.focal * down / depth


__all__ = ["CameraSettings", "Rays"]
