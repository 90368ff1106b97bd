"""Reading and writing LunarLander-v3."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from piwm_gym.systems import LunarLander, LunarLanderParams
from piwm_gym.systems.lunar_ground import HALF_WIDTH
from piwm_gym.systems.lunar_lander import LEG_DOWN, REST_SPEED, REST_TIME, REST_TURN
from piwm_gym.twins.base import Step, Twin

SETTLED_ANGLE = 0.348
"""Angle between hull and leg once the legs have unfolded, rad; measured in free flight."""
REFERENCE = LunarLanderParams()
SIDE = ("side_acceleration", "side_angular_acceleration", "side_attitude")
FIXED = ("leg_strength", "leg_return", "leg_friction")
TOLERANCE = 1e-4
"""Relative; parameters arrive in single precision."""


class EngineDraws:
    """Stands in for the simulator's generator during one step and bends its two uniform draws.

    LunarLander-v3 makes an engine's impulse from constants of its module and two uniform numbers,
    so that other numbers are another engine: for a mean ``power`` times and a dispersion
    ``spread`` times the original's, with u the original draws in [-1, 1]::

        main   power (4 + 2 spread u0)       = 4 + 2 u0'
        side   power (12 s + 3 spread u1)    = 12 s + 3 u1'     s = -1 left, 1 right

    (the engines' places on the body, in units of 1/30 m). The force's line stays where it was.

    Args:
        generator: The simulator's own, which is drawn from as ever.
        offsets: Added to each bent draw.
        scale: Multiplies each draw.
    """

    def __init__(
        self, generator: np.random.Generator, offsets: tuple[float, float], scale: float
    ) -> None:
        self._generator = generator
        self._offsets = iter(offsets)
        self._scale = scale

    def uniform(self, low: float, high: float) -> float:
        """Next draw."""
        return next(self._offsets) + self._scale * self._generator.uniform(low, high)


class LunarLanderTwin(Twin):
    """LunarLander-v3, a Box2D world in single precision.

    Writing a state leaves the world as after a long flight: legs unfolded, no exhaust, awake, the
    reward's memory that of the state. Contacts are found from where the lander is put.
    """

    def __init__(self, native: gym.Env) -> None:
        super().__init__(native)
        self._params = REFERENCE
        self._rest_time = 0.0

    def reset(self, seed: int | None = None) -> None:
        """Start an episode of the real environment."""
        super().reset(seed)
        self._rest_time = 0.0

    def step(self, action: Any) -> Step:
        """Advance one time step, with the engines in force."""
        generator, bent = self.env.np_random, self._draws(int(action))
        if bent is not None:
            self.env.np_random = bent
        try:
            result = super().step(action)
        finally:
            if bent is not None:
                self.env.np_random = generator
        self._rest_time = self._rested()
        return result

    def state(self) -> np.ndarray:
        """(10,) float64, SI units; see :class:`piwm_gym.systems.LunarLander`."""
        env = self.env
        place, velocity = env.lander.position, env.lander.linearVelocity
        return np.array(
            [
                place.x - HALF_WIDTH,
                place.y - self._level,
                velocity.x,
                velocity.y,
                env.lander.angle,
                env.lander.angularVelocity,
                env.legs[0].ground_contact,
                env.legs[1].ground_contact,
                self._rest_time,
                env.game_over,
            ],
            dtype=np.float64,
        )

    def scene(self) -> np.ndarray:
        """(11,) float64, terrain heights in the coordinates of ``y``, m."""
        polygons = self.env.sky_polys
        heights = [polygons[0][0][1], *(polygon[1][1] for polygon in polygons)]
        return np.array(heights, dtype=np.float64) - self._level

    def set_scene(self, scene: np.ndarray) -> None:
        """Rebuild the terrain, as the real environment's ``reset`` does.

        Args:
            scene: (11,) terrain heights in the coordinates of ``y``, m.
        """
        env = self.env
        heights = (np.asarray(scene, dtype=np.float64) + self._level).tolist()
        spacing = 2 * HALF_WIDTH / (len(heights) - 1)
        points = [(i * spacing, height) for i, height in enumerate(heights)]
        top = max(corner[1] for corner in env.sky_polys[0])
        edges = list(pairwise(points))
        for fixture in env.moon.fixtures[1:]:  # the first is the floor of the world
            env.moon.DestroyFixture(fixture)
        for edge in edges:
            env.moon.CreateEdgeFixture(vertices=list(edge), density=0, friction=0.1)
        env.sky_polys = [[p, q, (q[0], top), (p[0], top)] for p, q in edges]

    def set_state(self, state: np.ndarray) -> None:
        """Put the simulator into a state.

        Args:
            state: (10,) SI units; the last four are not written, they follow from the place.
        """
        env = self.env
        env._clean_particles(True)
        for body in env.drawlist:
            body.awake = False  # forgets velocities, forces and how long it has been slow
            body.awake = True
        env.game_over = False
        self._rest_time = 0.0
        self._place(np.asarray(state, dtype=np.float64))
        # No time passes: only contacts are looked for, and their listener told.
        env.world.Step(0.0, 0, 0)
        env.prev_shaping = self._shaping()

    def params(self) -> dict[str, float]:
        """Parameters in force."""
        return {name: float(getattr(self._params, name)) for name in self._params.names()}

    def set_params(self, values: Mapping[str, float]) -> None:
        """Write all parameters.

        Raises:
            ValueError: A parameter of the legs is not the real one's, or those of the side
                engines, which follow from one power, are not in proportion.
        """
        self._check(values)
        self._params = REFERENCE.replace(**values)  # type: ignore[assignment]
        self.env.gravity = -float(values["gravity"])
        self.env.world.gravity = (0.0, self.env.gravity)

    @property
    def _level(self) -> float:
        """Height in the world at which ``y`` is zero, m."""
        return float(self.env.helipad_y) + LEG_DOWN

    @staticmethod
    def _check(values: Mapping[str, float]) -> None:
        for name in FIXED:
            expected = getattr(REFERENCE, name)
            if not math.isclose(values[name], expected, rel_tol=TOLERANCE):
                raise ValueError(
                    f"parameter {name!r} is {values[name]:g}; expected {expected:g}: it stands "
                    "for the joints and contacts of the real lander's legs, which cannot be set"
                )
        ratios = [values[name] / getattr(REFERENCE, name) for name in SIDE]
        if max(ratios) - min(ratios) > TOLERANCE * max(ratios):
            given = ", ".join(f"{name} = {values[name]:g}" for name in SIDE)
            real = " : ".join(f"{getattr(REFERENCE, name):g}" for name in SIDE)
            raise ValueError(
                f"parameters {given}; expected the proportion {real}: the real lander's side "
                "engines have one power, so set the three together"
            )

    def _ratio(self, name: str) -> float:
        return float(getattr(self._params, name) / getattr(REFERENCE, name))

    def _draws(self, action: int) -> EngineDraws | None:
        """The generator for a step, None for the simulator's own."""
        if action == 0:
            return None
        if action == 2:
            power, spread, offsets = "main_acceleration", "main_dispersion", (2.0, 0.0)
        else:
            power, spread, offsets = SIDE[0], "side_dispersion", (0.0, 4.0 * (action - 2))
        scale, scatter = self._ratio(power), self._ratio(spread)
        if math.isclose(scale, 1, rel_tol=1e-6) and math.isclose(scatter, 1, rel_tol=1e-6):
            return None  # the real environment bit for bit
        shifted = ((scale - 1) * offsets[0], (scale - 1) * offsets[1])
        return EngineDraws(self.env.np_random, shifted, scale * scatter)

    def _rested(self) -> float:
        """For how long all bodies have been slower than Box2D's sleep tolerances, s."""
        if not self.env.lander.awake:
            return REST_TIME
        slow = all(
            body.linearVelocity.length < REST_SPEED and abs(body.angularVelocity) < REST_TURN
            for body in self.env.drawlist
        )
        return min(self._rest_time + LunarLander.dt, REST_TIME) if slow else 0.0

    def _place(self, state: np.ndarray) -> None:
        """Move hull and legs, as one rigid body."""
        env = self.env
        x, y, x_dot, y_dot, theta, theta_dot = (float(v) for v in state[:6])
        hull = env.lander
        hull.transform = ((x + HALF_WIDTH, y + self._level), theta)
        hull.linearVelocity, hull.angularVelocity = (x_dot, y_dot), theta_dot
        centre = hull.worldCenter
        for leg, side in zip(env.legs, (1, -1), strict=True):
            anchor = leg.joint.GetLocalAnchorB()
            angle = theta + side * SETTLED_ANGLE
            leg.transform = ((0.0, 0.0), angle)
            leg.transform = (hull.position - leg.GetWorldVector(anchor), angle)
            arm = leg.worldCenter - centre
            leg.linearVelocity = (x_dot - theta_dot * arm.y, y_dot + theta_dot * arm.x)
            leg.angularVelocity = theta_dot

    def _shaping(self) -> float:
        """The potential of the present state, whose gain is the reward of the next step.

        It is zero at the origin, so the loss on the way there is all of it.
        """
        here = torch.from_numpy(self.state())
        system = LunarLander()
        return -float(system.reward(here, torch.tensor(0), torch.zeros_like(here)))


__all__ = ["EngineDraws", "LunarLanderTwin"]
