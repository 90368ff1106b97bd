"""Frames of a course: ground and panorama gathered by fixed rays, then things from far to near."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from piwm_gym.courses import Course
from piwm_gym.donkey_sim.camera import CameraSettings, Rays
from piwm_gym.donkey_sim.colours import Packed, mix, pack, unpack
from piwm_gym.donkey_sim.ground import (
    AZIMUTHS,
    ELEVATIONS,
    HAZE,
    INDOOR_HAZE,
    TEXEL,
    TOP,
    Texture,
    build_texture,
    paint_panorama,
)
from piwm_gym.donkey_sim.scenery import Thing, place_things, theme_of
from piwm_gym.donkey_sim.sprites import KINDS, Level, draw_sprite

NEAR = 0.06
SMALLEST = 1.5


@dataclass(frozen=True)
class World:
    """What a course looks like, whatever the camera.

    Attributes:
        texture: The ground.
        panorama: (ELEVATIONS * 2 * AZIMUTHS,) packed; each row twice, so that a view never ends.
        things: What stands on the ground.
        haze: Packed colour of the far distance.
    """

    texture: Texture
    panorama: Packed
    things: list[Thing]
    haze: np.uint64


@lru_cache(maxsize=4)
def build_world(course: Course) -> World:
    """The world of a course; the simulators of one process share it."""
    panorama = pack(paint_panorama(course))
    haze = HAZE if theme_of(course).outdoors else INDOOR_HAZE
    return World(
        build_texture(course),
        np.concatenate([panorama, panorama], 1).reshape(-1),
        place_things(course),
        np.uint64(pack(np.array(haze, np.uint8))),
    )


class Renderer:
    """Draws frames of one world with one camera.

    Args:
        world: What there is to see.
        settings: The camera.
    """

    def __init__(self, world: World, settings: CameraSettings) -> None:
        self.world = world
        self.settings = settings
        self.rays = Rays(settings)
        self._prepare_ground()
        azimuth, elevation = self.rays.sky()
        row = np.minimum((elevation / TOP * ELEVATIONS).astype(np.int64), ELEVATIONS - 1)
        column = np.floor(azimuth * (AZIMUTHS / (2 * math.pi))).astype(np.int64)
        self._sky = row * (2 * AZIMUTHS) + column % AZIMUTHS
        things = world.things
        self._places = np.array([(t.x, t.y) for t in things])
        self._sizes = np.array([(KINDS[t.kind].height, KINDS[t.kind].width) for t in things])
        self._drawings = [draw_sprite(t.kind, *t.colours) for t in things]

    def _prepare_ground(self) -> None:
        texture = self.world.texture
        self._ahead, self._right = self.rays.ground()
        level = np.log2(np.maximum(self.rays.footprint() / TEXEL, 1)).round().astype(int)
        level = np.minimum(level, len(texture.widths) - 1)[:, None]
        self._scale = (1 / (TEXEL * 2.0**level)).astype(np.float32)
        self._limits = tuple(
            (size[level] - 1.001).astype(np.float32) for size in (texture.widths, texture.heights)
        )
        self._width = texture.widths[level].astype(np.int32)
        self._start = texture.starts[level].astype(np.int32)
        distance = np.hypot(self._ahead, self._right)
        self._fog = (256 * (1 - np.exp(-distance / self.settings.haze))).astype(np.uint64)

    def frame(self, x: float, y: float, heading: float) -> NDArray[np.uint8]:
        """What the camera of a car at a pose sees.

        Args:
            x: m.
            y: m.
            heading: rad.

        Returns:
            (height, width, 3).
        """
        cos, sin = math.cos(heading), math.sin(heading)
        lens_x, lens_y = x + self.settings.ahead * cos, y + self.settings.ahead * sin
        picture = np.empty((self.settings.height, self.settings.width), np.uint64)
        turn = round(-heading * AZIMUTHS / (2 * math.pi)) % AZIMUTHS
        horizon = self.rays.horizon
        self.world.panorama.take(self._sky + turn, out=picture[:horizon], mode="clip")
        ground = self._ground(lens_x, lens_y, cos, sin)
        picture[horizon:] = mix(ground, self.world.haze, self._fog)
        self._draw_things(picture, lens_x, lens_y, heading)
        return unpack(picture).astype(np.uint8)

    def _ground(self, x: float, y: float, cos: float, sin: float) -> Packed:
        """Colours of the pixels below the horizon, between the four nearest texels."""
        texture = self.world.texture
        f32 = np.float32
        left, low = texture.origin
        columns = self._ahead * f32(cos) + self._right * f32(sin) + f32(x - left)
        rows = self._ahead * f32(sin) - self._right * f32(cos) + f32(y - low)
        corner, shares = [], []
        for position, limit in zip((columns, rows), self._limits, strict=True):
            position *= self._scale
            position -= f32(0.5)
            np.clip(position, 0, limit, out=position)
            whole = position.astype(np.int32)
            position -= whole
            position *= 256
            corner.append(whole)
            shares.append(position.astype(np.uint64))
        index = corner[1] * self._width
        index += corner[0]
        index += self._start
        take = texture.texels.take
        above = index + self._width
        near = mix(take(index), take(index + 1), shares[0])
        far = mix(take(above), take(above + 1), shares[0])
        return mix(near, far, shares[1])

    def _draw_things(self, picture: Packed, x: float, y: float, heading: float) -> None:
        cos, sin = math.cos(heading), math.sin(heading)
        dx, dy = self._places[:, 0] - x, self._places[:, 1] - y
        ahead, right = dx * cos + dy * sin, dx * sin - dy * cos
        reach = self.rays.across[-1] * 1.6
        seen = (ahead > NEAR) & (np.abs(right) - self._sizes[:, 1] < reach * ahead + 0.3)
        seen &= self._sizes[:, 0] * self.rays.focal > SMALLEST * ahead
        order = np.flatnonzero(seen)
        for i in order[np.argsort(-ahead[order], kind="stable")].tolist():
            height, width = self._sizes[i].tolist()
            facing = self.world.things[i].heading
            if facing is not None:
                width *= max(abs(math.cos(heading - facing)), 0.05)
            self._draw(picture, self._drawings[i], float(ahead[i]), float(right[i]), height, width)

    def _draw(
        self,
        picture: Packed,
        drawing: tuple[Level, ...],
        ahead: float,
        right: float,
        height: float,
        width: float,
    ) -> None:
        """Draw an upright plane that faces along the car's heading; exact in perspective."""
        settings, rays = self.settings, self.rays
        top, bottom = (rays.pixel(ahead, right, up)[1] for up in (height, 0.0))
        first, last = max(math.ceil(top - 0.5), 0), min(math.ceil(bottom - 0.5), settings.height)
        if first >= last:
            return
        reach = ahead / rays.forward[first:last]  # along each row's rays to the plane
        near, far = float(reach.min()), float(reach.max())
        edges = [(right + side * width / 2) / r for side in (-1, 1) for r in (near, far)]
        middle = settings.width / 2 - 0.5
        start = max(math.ceil(min(edges) * rays.focal + middle), 0)
        stop = min(math.ceil(max(edges) * rays.focal + middle), settings.width)
        if start >= stop:
            return
        level = min(
            int(math.log2(max(len(drawing[0].colour) / (bottom - top), 1))), len(drawing) - 1
        )
        colour, opacity = drawing[level].colour, drawing[level].opacity
        rows_total, columns_total = colour.shape
        up = settings.up + reach * rays.rise[first:last]
        rows = ((1 - up / height) * rows_total).astype(np.int64)
        across = np.multiply.outer(reach, rays.across[start:stop])
        columns = ((across - right) * (columns_total / width) + columns_total / 2).astype(np.int64)
        np.clip(rows, 0, rows_total - 1, out=rows)
        np.clip(columns, 0, columns_total - 1, out=columns)
        index = columns + rows[:, None] * columns_total
        haze = np.uint64(256 * (1 - math.exp(-math.hypot(ahead, right) / settings.haze)))
        patch = picture[first:last, start:stop]
        shown = mix(colour.take(index), self.world.haze, haze)
        patch[:] = mix(patch, shown, opacity.take(index))


__all__ = ["Renderer", "World", "build_world"]
