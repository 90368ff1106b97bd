"""Cart Pole: CartPole-v1 with a renderer that draws only what the model sees.

The renderer repeats the drawing calls of ``gymnasium/envs/classic_control/cartpole.py``
(``CartPoleEnv.render``), constants included, and is bit-equal to it after preprocessing; a test
compares the two. It takes 0.40 ms a frame where ``render()`` and preprocessing take 1.8 to 2.2 ms
(processor time of one core).
"""

import os
from typing import cast

os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

import gymnasium as gym
import numpy as np
import pygame
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from PIL import Image
from pygame import gfxdraw

from piwm_gym.preprocess import area_average
from piwm_gym.systems import CartPole, FrameSpec, System
from training.collectors.collector import Collector, Trajectory
from training.controllers import Controller, RandomHold, SwitchedLinear

MAX_X = 2.6
MAX_THETA = 0.30
MAX_TRIES = 100_000

REAL_START = np.array([0.05, 0.05, 0.05, 0.05])
BROAD_START = np.array([2.3, 1.0, 0.17, 1.0])
BROAD_SHARE = 0.75

# Force to the right per m, m/s, rad and rad/s: about a linear-quadratic regulator's.
STABILISING_GAINS = np.array([1.0, 1.7, 18.0, 3.6])

WHITE, BLACK = (255, 255, 255), (0, 0, 0)
POLE, AXLE = (202, 152, 101), (129, 132, 203)
PIXELS_PER_METRE = 600 / 4.8
CART_Y = 100


class CartPoleRenderer:
    """Model frames of states, equal bit for bit to preprocessed frames of CartPole-v1.

    One surface is kept. Only the crop is cleared, averaged and read: what an earlier pole left
    outside of it is never seen, and each pixel's blending looks at that pixel alone. Drawing at
    the native place rather than on a smaller surface keeps the clipping of long poles the same.

    Args:
        spec: Frame geometry of Cart Pole.
    """

    def __init__(self, spec: FrameSpec) -> None:
        self._size = spec.size
        height, width = spec.native
        (top, bottom), (left, right) = spec.rows, spec.columns
        memory = bytearray(height * width * 4)
        self._surface = pygame.image.frombuffer(memory, (width, height), "RGBX")
        pixels = np.frombuffer(memory, np.uint8).reshape(height, width, 4)
        # CartPole-v1 draws upside down and flips at the end.
        first, last = height - bottom, height - top
        self._clear = pygame.Rect(left, first, right - left, last - first)
        self._crop = pixels[first:last, left:right]

    def __call__(self, state: np.ndarray, length: float = 0.5) -> np.ndarray:
        """Draw one state.

        Args:
            state: (4,) x (m), x_dot, theta (rad), theta_dot; the velocities are not visible.
            length: Half the length of the pole, m.

        Returns:
            uint8 (H, W, 3).
        """
        self._surface.fill(WHITE, self._clear)
        self._draw(float(state[0]), float(state[2]), length)
        height, width, _ = self._crop.shape
        upright = np.ascontiguousarray(self._crop[::-1])
        image = Image.frombuffer("RGBX", (width, height), upright, "raw", "RGBX", 0, 1)
        return np.ascontiguousarray(area_average(image, self._size)[..., :3])

    def _draw(self, x: float, theta: float, length: float) -> None:
        surface = self._surface
        cart_x = x * PIXELS_PER_METRE + surface.get_width() / 2.0
        axle_y = CART_Y + 7.5
        cart = [
            (cart_x + right, CART_Y + up)
            for right, up in ((-25.0, -15.0), (-25.0, 15.0), (25.0, 15.0), (25.0, -15.0))
        ]
        gfxdraw.aapolygon(surface, cart, BLACK)
        gfxdraw.filled_polygon(surface, cart, BLACK)
        tip = PIXELS_PER_METRE * (2 * length) - 5.0
        pole = []
        for corner in ((-5.0, -5.0), (-5.0, tip), (5.0, tip), (5.0, -5.0)):
            turned = pygame.math.Vector2(corner).rotate_rad(-theta)
            pole.append((turned[0] + cart_x, turned[1] + CART_Y + 7.5))
        gfxdraw.aapolygon(surface, pole, POLE)
        gfxdraw.filled_polygon(surface, pole, POLE)
        gfxdraw.aacircle(surface, int(cart_x), int(axle_y), 5, AXLE)
        gfxdraw.filled_circle(surface, int(cart_x), int(axle_y), 5, AXLE)
        gfxdraw.hline(surface, 0, surface.get_width(), CART_Y, BLACK)


class CartPoleCollector(Collector):
    """Trajectories of CartPole-v1 that cover the states a model will be asked about.

    A random policy lasts about 20 steps and stays near the origin, so most trajectories are driven
    by randomised feedback from broad start states. A trajectory is kept when it stays within
    2.6 m and 0.30 rad for its whole length, a little beyond the 2.4 m and 12 degrees at which
    CartPole-v1 terminates, **on purpose**: the model must have seen terminal frames to draw and
    to recognise them. The equations of motion are the same there. Rejected ones are drawn again,
    with the same controller, before anything is rendered.
    """

    system = CartPole()
    controllers = {  # noqa: RUF012
        "random": 0.15,
        "bang-bang": 0.10,
        "stabilise": 0.35,
        "lean": 0.40,
    }

    def __init__(self) -> None:
        self._env = cast(CartPoleEnv, gym.make(self.system.real_id).unwrapped)
        self._env.reset(seed=0)
        self._render = CartPoleRenderer(self.system.frame)

    def trajectory(self, rng: np.random.Generator, num_steps: int) -> Trajectory:
        """Record one trajectory of exactly ``num_steps`` actions."""
        name = self.draw_controller(rng)
        for _ in range(MAX_TRIES):
            simulated = self._simulate(
                self._start(name, rng), self._controller(name, rng), rng, num_steps
            )
            if simulated is not None:
                states, actions = simulated
                frames = np.stack([self._render(state) for state in states])
                return Trajectory(frames, actions, states, name)
        raise RuntimeError(
            f"no trajectory of {num_steps} steps by controller {name!r} stayed within {MAX_X} m "
            f"and {MAX_THETA} rad in {MAX_TRIES} tries; ask for fewer steps"
        )

    @staticmethod
    def expert(states: np.ndarray, system: System) -> np.ndarray:
        """Balance in the middle of the track by linear feedback."""
        return (states @ STABILISING_GAINS > 0).astype(np.int64)

    def _start(self, name: str, rng: np.random.Generator) -> np.ndarray:
        """Start state; feedback can recover from broad ones, blind actions only from real ones."""
        broad = rng.random() < BROAD_SHARE
        bound = BROAD_START.copy() if broad else REAL_START.copy()
        if broad and name in ("random", "bang-bang"):
            bound = np.array([BROAD_START[0], 0.5, 0.10, 0.5])
        return rng.uniform(-bound, bound)

    def _controller(self, name: str, rng: np.random.Generator) -> Controller:
        gains = STABILISING_GAINS * np.exp(rng.normal(0.0, 0.3, size=4))
        if name == "stabilise":
            target = np.array([2.3, 0.0, 0.0, 0.0])
            return SwitchedLinear(gains, target, max_hold=100, epsilon=rng.uniform(0, 0.5))
        if name == "lean":
            # No pull towards a position: hold an angle, then another one.
            gains[:2] = 0.0
            target = np.array([0.0, 0.0, rng.uniform(0.05, 0.28), 0.0])
            hold = int(rng.integers(8, 30))
            return SwitchedLinear(gains, target, max_hold=hold, epsilon=rng.uniform(0, 0.3))
        return RandomHold(2, max_hold=1 if name == "random" else int(rng.integers(2, 7)))

    def _simulate(
        self, start: np.ndarray, controller: Controller, rng: np.random.Generator, num_steps: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """States (T+1, 4) and actions (T,), or nothing when it leaves the accepted region."""
        env = self._env
        env.state = start
        states, actions = [start], []
        for _ in range(num_steps):
            action = controller(states[-1], rng)
            # CartPole-v1 counts the steps after termination to warn about them; going on is meant.
            env.steps_beyond_terminated = None
            env.step(action)
            state = np.array(env.state)
            if abs(state[0]) > MAX_X or abs(state[2]) > MAX_THETA:
                return None
            states.append(state)
            actions.append(action)
        return np.stack(states), np.array(actions, dtype=np.int64)


__all__ = ["CartPoleCollector", "CartPoleRenderer"]
