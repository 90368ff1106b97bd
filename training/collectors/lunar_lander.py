"""Lunar Lander: pieces of real LunarLander-v3 episodes, drawn as the real environment draws.

Exhaust particles are part of the real picture and of ours: they show which engines fired in the
last steps. They are decoration, so an episode is flown without them first, and flown again with
them when it is kept.
"""

import os
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

import gymnasium as gym
import numpy as np
import pygame
from gymnasium.envs.box2d.lunar_lander import SCALE, VIEWPORT_H, VIEWPORT_W
from PIL import Image
from pygame import gfxdraw

from piwm_gym.preprocess import area_average
from piwm_gym.systems import FrameSpec, LunarLander, System
from piwm_gym.systems.lunar_ground import HALF_WIDTH, NUM_HEIGHTS
from piwm_gym.twins import LunarLanderTwin
from training.collectors.collector import Collector, Trajectory
from training.controllers import Controller, Pilot, RandomHold, pilot

MAX_TRIES = 1_000
MAX_EPISODE = 600
UNFOLDED = 24
"""Steps after a reset in which the legs are still unfolding, which no written state repeats."""
TOP = 9.6
"""Highest y (m) of a kept frame; the view ends at 9.4, and the legs hang 0.6 lower."""

CLEARANCE = 1.4
"""Height of the origin above the ground nearby (m) at which nothing can touch, at any angle."""
BROAD_LOW = np.array([-9.0, 0.0, -3.5, -5.0, -1.0, -1.5])
BROAD_HIGH = np.array([9.0, 9.4, 3.5, 3.0, 1.0, 1.5])
FASTEST_FALL, STEEPEST = -8.0, 1.6
"""Broad pieces end before they fall faster (m/s) or turn further (rad): real ones seldom do."""
LOW_START = np.array([9.0, 0.0, 1.5, 1.5, 0.5, 0.8])
"""Bounds of starts shortly above the ground; y is 0.2 to 2 m above it, y_dot downwards."""

WHITE, BLACK, FLAG = (255, 255, 255), (0, 0, 0), (204, 204, 0)


class LunarLanderRenderer:
    """Model frames of the simulator, equal bit for bit to preprocessed frames of ``render()``.

    The drawing calls are those of ``gymnasium/envs/box2d/lunar_lander.py`` in their order: flags
    are drawn after every shape, which thickens their smoothed edges. The sky is drawn once for a
    terrain, and one surface is kept.

    Args:
        spec: Frame geometry of Lunar Lander.
    """

    def __init__(self, spec: FrameSpec) -> None:
        self._size = spec.size
        self._memory = bytearray(VIEWPORT_W * VIEWPORT_H * 4)
        self._surface = pygame.image.frombuffer(self._memory, (VIEWPORT_W, VIEWPORT_H), "RGBX")
        self._pixels = np.frombuffer(self._memory, np.uint8).reshape(VIEWPORT_H, VIEWPORT_W, 4)
        self._terrain: list[Any] = []
        self._sky = np.empty_like(self._pixels)

    def __call__(self, env: Any) -> np.ndarray:
        """Draw the present state and let the exhaust fade, as ``render()`` does.

        Args:
            env: The real environment, unwrapped.

        Returns:
            uint8 (H, W, 3).
        """
        self.fade(env)
        if env.sky_polys != self._terrain:
            self._draw_sky(env.sky_polys)
        self._pixels[:] = self._sky
        for thing in env.particles + env.drawlist:
            for fixture in thing.fixtures:
                self._draw(thing, fixture)
                for x in (env.helipad_x1, env.helipad_x2):
                    self._draw_flag(x * SCALE, env.helipad_y * SCALE)
        upright = np.ascontiguousarray(self._pixels[::-1])  # the real one is drawn upside down
        size = (VIEWPORT_W, VIEWPORT_H)
        image = Image.frombuffer("RGBX", size, upright, "raw", "RGBX", 0, 1)
        return np.ascontiguousarray(area_average(image, self._size)[..., :3])

    @staticmethod
    def fade(env: Any) -> None:
        """Age the exhaust by one frame."""
        for particle in env.particles:
            particle.ttl -= 0.15
            glow = int(max(0.2, 0.5 * particle.ttl) * 255)
            colour = (int(max(0.2, 0.15 + particle.ttl) * 255), glow, glow)
            particle.color1 = particle.color2 = colour
        env._clean_particles(False)

    def _draw_sky(self, polygons: list[Any]) -> None:
        self._surface.fill(WHITE)
        for polygon in polygons:
            scaled = [(x * SCALE, y * SCALE) for x, y in polygon]
            pygame.draw.polygon(self._surface, BLACK, scaled)
            gfxdraw.aapolygon(self._surface, scaled, BLACK)
        self._terrain = polygons
        self._sky[:] = self._pixels

    def _draw(self, thing: Any, fixture: Any) -> None:
        """One shape of the lander, or one particle."""
        transform, shape = fixture.body.transform, fixture.shape
        if not hasattr(shape, "vertices"):
            centre, radius = transform * shape.pos * SCALE, shape.radius * SCALE
            for colour in (thing.color1, thing.color2):
                pygame.draw.circle(self._surface, colour, centre, radius)
            return
        path = [transform * corner * SCALE for corner in shape.vertices]
        pygame.draw.polygon(self._surface, thing.color1, path)
        gfxdraw.aapolygon(self._surface, path, thing.color1)
        pygame.draw.aalines(self._surface, thing.color2, True, path)

    def _draw_flag(self, x: float, foot: float) -> None:
        top = foot + 50
        cloth = [(x, top), (x, top - 10), (x + 25, top - 5)]
        pygame.draw.line(self._surface, WHITE, (x, foot), (x, top), 1)
        pygame.draw.polygon(self._surface, FLAG, cloth)
        gfxdraw.aapolygon(self._surface, cloth, FLAG)


@dataclass(frozen=True)
class Episode:
    """One flown episode of L actions, up to its termination or until it was long enough.

    Attributes:
        seed: Of the real environment's reset.
        start: (10,) written state, or None for the real reset's own.
        states: (L+1, 10) float64, SI units.
        actions: (L,) int64.
        ended: Whether it terminated.
    """

    seed: int
    start: np.ndarray | None
    states: np.ndarray
    actions: np.ndarray
    ended: bool


class LunarLanderCollector(Collector):
    """Trajectories of LunarLander-v3 that cover the view, in flight and on the ground.

    A trajectory is a piece of a real episode and never goes beyond its termination; its last
    frame may be the terminal one. Controllers are named ``start-driver``:

    - ``real``: a piece of an episode from a real reset, after the legs have unfolded;
    - ``broad``: from a written state anywhere in the view, clear of the ground, because real
      episodes fall through a narrow funnel;
    - ``ground``: a piece in which the ground is touched, from a real reset or from a written
      state shortly above the ground; half of them end with their episode.

    ``random`` holds random actions; ``pilot`` flies to targets that wander, or for ``ground``
    to a place on the ground. Pieces with the lander above the view are drawn again, with the
    same controller, before anything is rendered.
    """

    system = LunarLander()
    controllers = {  # noqa: RUF012
        "real-random": 0.10,
        "real-pilot": 0.25,
        "broad-random": 0.15,
        "broad-pilot": 0.30,
        "ground-random": 0.07,
        "ground-pilot": 0.13,
    }

    def __init__(self) -> None:
        # For the render mode that makes exhaust; nothing is drawn by it.
        native = gym.make(self.system.real_id, render_mode="rgb_array").unwrapped
        self._twin = LunarLanderTwin(native)
        self._renderer = LunarLanderRenderer(self.system.frame)

    def trajectory(self, rng: np.random.Generator, num_steps: int) -> Trajectory:
        """Record one trajectory of exactly ``num_steps`` actions."""
        name = self.draw_controller(rng)
        start, driver = name.split("-")
        for _ in range(MAX_TRIES):
            episode = self._fly(start, self._controller(start, driver, rng), rng, num_steps)
            first = self._piece(start, episode, rng, num_steps)
            if first is None:
                continue
            last = first + num_steps
            return Trajectory(
                self._film(episode, first, last),
                episode.actions[first:last],
                episode.states[first : last + 1],
                name,
                self._twin.scene(),
            )
        raise RuntimeError(
            f"no trajectory of {num_steps} steps by controller {name!r} stayed in the view in "
            f"{MAX_TRIES} tries; ask for fewer steps"
        )

    @staticmethod
    def expert(states: np.ndarray, system: System) -> np.ndarray:
        """Fly to the middle of the view, judging mostly by position and attitude.

        The pilot's feedback with a tenth of the weight on velocities, which no single frame
        shows: a controller that imitates it from one frame can agree with it. It is a reference
        for what frames show, not a good pilot.
        """
        return pilot(states, (0.0, 5.0, 0.0), damping=0.1)

    def _controller(self, start: str, driver: str, rng: np.random.Generator) -> Controller:
        if driver == "random":
            return RandomHold(4, max_hold=int(rng.integers(1, 9)))
        epsilon = rng.uniform(0, 0.4)
        if start == "ground":
            low, high = (-6.0, -4.0, -0.2), (6.0, -0.7, 0.2)
            if rng.random() < 0.6:  # straight to the pad
                low, high, epsilon = (-1.5, -0.7, 0.0), (1.5, -0.7, 0.0), epsilon / 4
            return Pilot(low, high, MAX_EPISODE, epsilon)
        return Pilot((-8.5, 0.5, -0.7), (8.5, 9.0, 0.7), max_hold=60, epsilon=epsilon)

    def _fly(
        self, start: str, controller: Controller, rng: np.random.Generator, num_steps: int
    ) -> Episode:
        """Fly one episode without pictures, as far as it is needed."""
        twin, env = self._twin, self._twin.env
        seed = int(rng.integers(2**31))
        env.render_mode = None
        twin.reset(seed)
        written = self._start(start, rng)
        if written is not None:
            twin.set_state(written)
        enough = num_steps if start == "broad" else MAX_EPISODE
        if start == "real":
            enough = UNFOLDED + num_steps + int(rng.integers(200))
        states, ended = [twin.state()], False
        actions: list[int] = []
        while not ended and len(actions) < enough:
            actions.append(controller(states[-1], rng))
            ended = twin.step(actions[-1])[2]
            states.append(twin.state())
        return Episode(seed, written, np.stack(states), np.array(actions, np.int64), ended)

    def _start(self, start: str, rng: np.random.Generator) -> np.ndarray | None:
        """State to write; None where the episode starts with the real reset."""
        if start == "real" or (start == "ground" and rng.random() < 0.5):
            return None
        state = np.zeros(len(self.system.variables))
        if start == "broad":
            state[:6] = rng.uniform(BROAD_LOW, BROAD_HIGH)
            state[1] = rng.uniform(self._ground(state[0]) + CLEARANCE, BROAD_HIGH[1])
        else:
            state[:6] = rng.uniform(-LOW_START, LOW_START)
            state[1] = self._ground(state[0]) + CLEARANCE + rng.uniform(0.2, 2.0)
            state[3] = -abs(state[3])
        return state

    def _ground(self, x: float) -> float:
        """Highest terrain within reach of the lander at x, m."""
        places = np.linspace(-HALF_WIDTH, HALF_WIDTH, NUM_HEIGHTS)
        reach = x + np.linspace(-CLEARANCE, CLEARANCE, 15)
        return float(np.interp(reach, places, self._twin.scene()).max())

    @staticmethod
    def _piece(
        start: str, episode: Episode, rng: np.random.Generator, num_steps: int
    ) -> int | None:
        """First step of the piece to keep, or nothing when the episode does not hold one."""
        first = 0 if episode.start is not None else UNFOLDED
        latest = len(episode.actions) - num_steps
        if start == "ground":
            touched = np.flatnonzero(episode.states[:, [6, 7, 9]].any(axis=1))
            if len(touched) == 0:
                return None
            # The first touch is in the piece, so that it shows an approach; or the end is.
            first = max(first, int(touched[0]) - num_steps)
            if episode.ended and rng.random() < 0.5:
                first = max(first, latest)
            latest = min(latest, max(first, int(touched[0]) - 1))
        if latest < first:
            return None
        chosen = int(rng.integers(first, latest + 1))
        y, y_dot, theta = episode.states[chosen : chosen + num_steps + 1, [1, 3, 4]].T
        accepted = (y <= TOP).all()
        if start == "broad":
            accepted &= (y_dot >= FASTEST_FALL).all() and (np.abs(theta) <= STEEPEST).all()
        return chosen if accepted else None

    def _film(self, episode: Episode, first: int, last: int) -> np.ndarray:
        """Fly the episode again, with exhaust, and draw frames ``first`` to ``last``."""
        twin, env = self._twin, self._twin.env
        env.render_mode = "rgb_array"
        twin.reset(episode.seed)
        if episode.start is not None:
            twin.set_state(episode.start)
        frames = []
        for t in range(last + 1):
            if t >= first:
                frames.append(self._renderer(env))
            else:
                self._renderer.fade(env)
            if t < last:
                twin.step(int(episode.actions[t]))
        return np.stack(frames)


__all__ = ["LunarLanderCollector", "LunarLanderRenderer"]
