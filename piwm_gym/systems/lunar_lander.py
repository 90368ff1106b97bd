"""Lunar Lander: rigid-body equations of Gymnasium's LunarLander-v3 in SI units.

The paper's equations for this system lack gravity, mix units, turn the side engines the wrong
way round and have no ground. These are the equations of what the real environment computes
(``gymnasium/envs/box2d/lunar_lander.py``, Box2D's semi-implicit Euler), with the combination of
mass, power and lever arm that motion shows as one parameter each. In free flight they equal
Box2D but for rounding, once the legs have unfolded: until then, in the half second after a reset,
the jolt of their joints adds up to 9 mm, 0.02 m/s and 0.01 rad/s. The ground is a small model of
its own, see ``lunar_ground.py``.

The state is in metres, metres per second and radians; the real environment's scaled observation
is made in :meth:`LunarLander.observation` and undone in :func:`from_observation`, nowhere else.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from piwm_gym.systems import lunar_ground
from piwm_gym.systems.lunar_ground import CENTRE_OF_MASS, GYRATION_SQUARED, Motion, Pose
from piwm_gym.systems.params import Learnable, Parametrisation, Params, Scalar, parameter
from piwm_gym.systems.picture import FrameSpec, SideView
from piwm_gym.systems.system import System, Variable, columns, constant

HULL_CENTRE = 0.101307
"""Height of the hull's own centre of mass above its origin, m: the velocities are this point's."""
OFFSET = HULL_CENTRE - CENTRE_OF_MASS
PAD_HEIGHT = 400 / 30 / 4
LEG_DOWN = 18 / 30
OBSERVATION_SCALE = (1 / 10, 3 / 20, 10 / 50, 20 / 3 / 50, 1.0, 20 / 50)
"""Observation units per SI unit: x, y, x_dot, y_dot, theta, theta_dot."""

FREE_GAP = 0.5
"""Distance from the terrain, m, that passes for free flight: several errors of an encoded frame."""

REST_SPEED = 0.01
REST_TURN = 2 * math.pi / 180
REST_TIME = 0.5
"""Box2D's sleep rule (``b2_linearSleepTolerance``, ``b2_angularSleepTolerance``,
``b2_timeToSleep``): an island that is slower for so long falls asleep."""
SETTLED_SPEED = 0.1
SETTLED_TURN = 0.15
"""What counts as slow here, m/s and rad/s: between two slopes our few solver iterations leave a
little motion where Box2D's 180 leave none."""
VIEW_TOP = 8.8
"""Highest y (m) at which all of the level hull shows; the picture ends at 9.4, 0.6 above it."""
VIEW_SIDE = 9.1
"""Farthest x (m) at which both legs show; the picture ends at 10."""

# State after a reset is linear in the two random forces (in units of 1000 N); coefficients by
# regression on 200 resets of LunarLander-v3, residual below 3e-6.
_INITIAL_X = (0.079827, 4.042799, -0.00925, -0.457877)  # of x, x_dot, theta, theta_dot
_INITIAL_Y = (9.402136, 0.080663, -0.2, 4.033161)  # y: constant, slope; y_dot: constant, slope
SQRT3 = math.sqrt(3.0)


@dataclass(frozen=True)
class LunarLanderParams(Params):
    """Physical parameters of the lander; the defaults are LunarLander-v3's.

    A dispersion is the standard deviation of an engine's thrust, relative to its mean; 0 switches
    it off.
    """

    gravity: Scalar = parameter(10.0, "m/s^2", "gravitational acceleration")
    main_acceleration: Scalar = parameter(17.4770, "m/s^2", "of the main engine, upwards")
    side_acceleration: Scalar = parameter(2.4824, "m/s^2", "of a side engine, sideways")
    side_angular_acceleration: Scalar = parameter(4.9713, "rad/s^2", "of a side engine, level")
    side_attitude: Scalar = parameter(
        1.3154, "rad/s^2", "what sin^2(theta) adds to it", may_vanish=True
    )
    main_dispersion: Scalar = parameter(
        0.5 / SQRT3, "1", "random part of the main engine's thrust", may_vanish=True
    )
    side_dispersion: Scalar = parameter(
        0.25 / SQRT3, "1", "random part of a side engine's thrust", may_vanish=True
    )
    leg_strength: Scalar = parameter(10.44, "m/s^2", "largest push of one leg, unbent")
    leg_return: Scalar = parameter(0.258, "m/s", "speed at which a leg unbends")
    leg_friction: Scalar = parameter(0.1414, "1", "friction of a leg on the ground")


_ENGINES = (
    Learnable("gravity", "m/s^2"),
    Learnable("main_acceleration", "m/s^2"),
    Learnable("side_acceleration", "m/s^2"),
    Learnable("side_angular_acceleration", "rad/s^2"),
)
_ATTITUDE = Learnable("side_attitude", "rad/s^2")
_REST = (
    Learnable("leg_strength", "m/s^2", shown_by="contact"),
    Learnable("leg_return", "m/s", shown_by="contact"),
    Learnable("leg_friction", "1", shown_by="contact"),
    Learnable("main_dispersion", "1", shown_by="spread"),
    Learnable("side_dispersion", "1", shown_by="spread"),
)


def _parametrisation(learnables: tuple[Learnable, ...]) -> Parametrisation:
    """Learn parameters under their own names."""
    names = tuple(item.name for item in learnables)

    def to_params(values: Sequence[Scalar]) -> LunarLanderParams:
        changes = dict(zip(names, values, strict=True))
        return LunarLanderParams().replace(**changes)  # type: ignore[return-value]

    return Parametrisation(learnables, lambda p: tuple(getattr(p, n) for n in names), to_params)


MAIN_PER_POWER = 1.344387
SIDE_PER_POWER = 4.033162
TURN_PER_POWER = 8.28556


def _powers(params: LunarLanderParams) -> tuple[Scalar, ...]:
    return (
        params.main_acceleration / MAIN_PER_POWER,
        params.side_angular_acceleration / TURN_PER_POWER,
    )


def _from_powers(values: Sequence[Scalar]) -> LunarLanderParams:
    """The real lander's mass, lever arm and inertia turn powers into accelerations."""
    main, side = values
    turn = TURN_PER_POWER * side
    return LunarLanderParams().replace(  # type: ignore[return-value]
        main_acceleration=MAIN_PER_POWER * main,
        side_acceleration=SIDE_PER_POWER * side + OFFSET * turn,
        side_angular_acceleration=turn,
    )


class LunarLander(System):
    """Lunar Lander with semi-implicit Euler integration, as Box2D does it.

    | dimension     | unit  | range    | visible | meaning                                        |
    |---------------|-------|----------|---------|------------------------------------------------|
    | x             | m     | -10, 10  | yes     | of the hull's origin, from the pad's middle    |
    | y             | m     | -4, 10   | yes     | above where the origin rests on the pad        |
    | x_dot         | m/s   | -5, 5    | no      | of the hull's centre of mass                   |
    | y_dot         | m/s   | -8, 4    | no      |                                                |
    | theta         | rad   | -1.2, 1.2| yes     | counter-clockwise                              |
    | theta_dot     | rad/s | -2, 2    | no      |                                                |
    | contact_right | 1     | 0, 1     | derived | the right leg is down; observed first           |
    | contact_left  | 1     | 0, 1     | derived | the left leg is down                           |
    | rest_time     | s     | 0, 0.5   | derived | for how long it has not moved                  |
    | crashed       | 1     | 0, 1     | derived | the hull has touched the ground                |

    The scene is the terrain: 11 heights, 2 m apart, in the coordinates of ``y``. Without a scene
    there is no ground. Engines are dispersed: with ``noise`` each firing draws its thrust.

    Discrete actions only: 0 nothing, 1 left engine, 2 main engine, 3 right engine. There is no
    continuous-action lander here.
    """

    name = "lunar_lander"
    real_id = "LunarLander-v3"
    variables = (
        Variable("x", "m", -10.0, 10.0, visible=True),
        Variable("y", "m", -4.0, 10.0, visible=True),
        Variable("x_dot", "m/s", -5.0, 5.0, visible=False),
        Variable("y_dot", "m/s", -8.0, 4.0, visible=False),
        Variable("theta", "rad", -1.2, 1.2, visible=True),
        Variable("theta_dot", "rad/s", -2.0, 2.0, visible=False),
        Variable("contact_right", "1", 0.0, 1.0, visible=False, derived=True),
        Variable("contact_left", "1", 0.0, 1.0, visible=False, derived=True),
        Variable("rest_time", "s", 0.0, REST_TIME, visible=False, derived=True),
        Variable("crashed", "1", 0.0, 1.0, visible=False, derived=True),
    )
    scene_variables = tuple(
        Variable(f"height_{i}", "m", -PAD_HEIGHT - LEG_DOWN, 2.7, visible=True)
        for i in range(lunar_ground.NUM_HEIGHTS)
    )
    dt = 0.02
    # 6.25 native pixels per pixel both ways: the hull is five and a half wide, with legs nine.
    frame = FrameSpec((400, 600), (0, 400), (0, 600), (64, 96), background=(0, 0, 0))
    side_view = SideView(30.0, (400 - 30 * (PAD_HEIGHT + LEG_DOWN), 300.0), reach=(1.2, 1.2))
    num_initial_uniforms = 2
    num_step_uniforms = 2
    num_scene_uniforms = 12
    keyboard = {"left": 1, "up": 2, "right": 3}  # noqa: RUF012
    parametrisations = {  # noqa: RUF012
        "identifiable": _parametrisation((*_ENGINES, *_REST)),
        "attitude": _parametrisation((*_ENGINES, _ATTITUDE, *_REST)),
        "powers": Parametrisation(
            (Learnable("main_engine_power", "N s"), Learnable("side_engine_power", "N s")),
            _powers,
            _from_powers,
            caveat="powers follow from motion only with the real lander's mass, lever arm and "
            "inertia, which are given, as are gravity, dispersion and legs",
        ),
    }

    @property
    def reference(self) -> LunarLanderParams:
        """The parameters of LunarLander-v3; the legs' are those of their joints' motors."""
        return LunarLanderParams()

    @property
    def action_space(self) -> gym.spaces.Discrete:
        """Nothing, left engine, main engine, right engine."""
        return gym.spaces.Discrete(4)

    @property
    def observation_space(self) -> gym.spaces.Box:
        """LunarLander-v3's own box."""
        high = np.array([2.5, 2.5, 10, 10, 2 * math.pi, 10, 1, 1], dtype=np.float32)
        low = np.array([*-high[:6], 0, 0], dtype=np.float32)
        return gym.spaces.Box(low, high, dtype=np.float32)

    def initial(
        self, uniforms: Float[Tensor, "B 2"], scene: Tensor | None = None
    ) -> Float[Tensor, "B 10"]:
        """At the top of the view, moved by a random impulse, as LunarLander-v3.

        Its reset takes a step under gravity, which is the usual one here, whatever is in force.
        """
        force_x, force_y = (2 * uniforms - 1).unbind(-1)
        x, x_dot, theta, theta_dot = (slope * force_x for slope in _INITIAL_X)
        y, slope_y, y_dot, slope_y_dot = _INITIAL_Y
        zero = torch.zeros_like(x)
        moving = (x, y + slope_y * force_y, x_dot, y_dot + slope_y_dot * force_y, theta, theta_dot)
        return columns((*moving, zero, zero, zero, zero))

    def scene(self, uniforms: Float[Tensor, "B 12"]) -> Float[Tensor, "B 11"]:
        """Terrain of LunarLander-v3: random heights, a flat pad, a moving average over three."""
        heights = uniforms * (2 * PAD_HEIGHT)
        middle = lunar_ground.NUM_HEIGHTS // 2
        heights = torch.cat(
            (
                heights[:, : middle - 2],
                torch.full_like(heights[:, :5], PAD_HEIGHT),
                heights[:, middle + 3 :],
            ),
            dim=1,
        )
        # The first height's left neighbour is the last of the twelve, as in the original.
        before = torch.cat((heights[:, -1:], heights[:, :-2]), dim=1)
        smooth = 0.33 * (before + heights[:, :-1] + heights[:, 1:])
        return smooth - (PAD_HEIGHT + LEG_DOWN)

    def transition(
        self,
        state: Float[Tensor, "*B 10"],
        action: Shaped[Tensor, "*A"],
        params: LunarLanderParams,
        noise: Float[Tensor, "*U 2"] | None = None,
        scene: Float[Tensor, "*N 11"] | None = None,
    ) -> Float[Tensor, "*B 10"]:
        """One semi-implicit Euler step.

        Args:
            state: See the class; SI units.
            action: 0 to 3.
            params: Numbers, or tensors that broadcast against the batch.
            noise: Two numbers uniform on [0, 1) for the dispersion; None is the mean thrust.
            scene: Terrain heights, m; None is free flight.

        Returns:
            State 0.02 s later.
        """
        x, y, x_dot, y_dot, theta, theta_dot, _, _, rest_time, crashed = state.unbind(-1)
        sin, cos = theta.sin(), theta.cos()
        # From the hull's centre of mass to that of hull and legs, which the laws of motion know.
        motion = Motion(
            x_dot + OFFSET * theta_dot * cos, y_dot + OFFSET * theta_dot * sin, theta_dot
        )
        motion = self._fire(motion, sin, cos, action, params, noise)
        pose = Pose(x, y, theta)
        if scene is not None:
            motion = lunar_ground.push(scene, pose, motion, params, self.dt)
        omega = motion.theta_dot
        angle = theta + self.dt * omega
        new_sin, new_cos = angle.sin(), angle.cos()
        pose = Pose(
            x + self.dt * motion.x_dot + CENTRE_OF_MASS * (new_sin - sin),
            y + self.dt * motion.y_dot - CENTRE_OF_MASS * (new_cos - cos),
            angle,
        )
        x_dot = motion.x_dot - OFFSET * omega * new_cos
        y_dot = motion.y_dot - OFFSET * omega * new_sin
        if scene is None:
            right = left = rest_time = torch.zeros_like(x)
            crashed = crashed + 0 * x
        else:
            right, left, hit = lunar_ground.touching(scene, pose)
            slow = (x_dot**2 + y_dot**2 < SETTLED_SPEED**2) & (omega.abs() < SETTLED_TURN)
            rest_time = torch.where(slow & ((right + left) > 0), rest_time + self.dt, 0.0)
            crashed = torch.where(hit, 1.0, crashed)
        return columns(
            (pose.x, pose.y, x_dot, y_dot, angle, omega, right, left, rest_time, crashed)
        )

    def _fire(
        self,
        motion: Motion,
        sin: Tensor,
        cos: Tensor,
        action: Tensor,
        params: LunarLanderParams,
        noise: Tensor | None,
    ) -> Motion:
        """Motion after gravity and the engines of one step, about the common centre of mass.

        The main engine's force passes through the hull's origin, below the centre of mass, so a
        sideways part of it turns the lander. Dispersion as in the original: two random numbers,
        the first along the body's axis for the main engine and across for a side engine.
        """
        main = (action == 2).to(sin.dtype)
        side = (action == 3).to(sin.dtype) - (action == 1).to(sin.dtype)
        main_speed = params.main_acceleration * self.dt * main
        turn = params.side_angular_acceleration + params.side_attitude * sin**2
        side_speed = (
            params.side_acceleration - OFFSET * params.side_angular_acceleration
        ) * self.dt
        up, right = main_speed, side_speed * side
        spin = -turn * self.dt * side
        if noise is not None:
            first, second = ((2 * noise - 1) * SQRT3).unbind(-1)
            main_spread = params.main_dispersion * main_speed
            side_spread = params.side_dispersion * side_speed * side.abs()
            sideways = 0.5 * main_spread * second
            spin = spin + CENTRE_OF_MASS / GYRATION_SQUARED * sideways
            spin = spin - turn * self.dt * side.abs() * params.side_dispersion * second
            up = up + main_spread * first + side_spread * first / 3
            right = right + sideways + side_spread * second
        return Motion(
            motion.x_dot - sin * up + cos * right,
            motion.y_dot + cos * up + sin * right - params.gravity * self.dt,
            motion.theta_dot + spin,
        )

    def placed(
        self, state: Float[Tensor, "*B 10"], scene: Float[Tensor, "*B 11"] | None = None
    ) -> Float[Tensor, "*B 10"]:
        """Legs are down and the hull has crashed where they touch the ground, and only there."""
        if scene is None:
            return state
        moving, rest_time = state[..., :6], state[..., 8]
        x, y, _, _, theta, _ = moving.unbind(-1)
        right, left, hit = lunar_ground.touching(scene, Pose(x, y, theta))
        rest_time = torch.where((right + left) > 0, rest_time, 0.0)
        return columns((*moving.unbind(-1), right, left, rest_time, hit.to(x.dtype)))

    def in_free_motion(
        self, state: Float[Tensor, "*B 10"], scene: Float[Tensor, "*N 11"] | None = None
    ) -> Bool[Tensor, "*B"]:
        """Whether legs and hull are well above the terrain; everywhere without one."""
        if scene is None:
            return super().in_free_motion(state)
        x, y, _, _, theta = state[..., :5].unbind(-1)
        pose = Pose(x, y, theta)
        legs = lunar_ground.legs(scene, pose)[2].amin(-1)
        return torch.minimum(legs, lunar_ground.hull_gap(scene, pose)) > FREE_GAP

    def moved_freely(
        self, before: Sequence[Any], after: Sequence[Any], scene: Sequence[Any]
    ) -> bool:
        """Whether ground and lander were out of reach of each other for the whole step."""
        place = max(abs(before[0]), abs(after[0]))
        lowest = min(before[1], after[1])
        speed, turn = abs(after[2]) + abs(after[3]), abs(after[5])
        return lunar_ground.out_of_reach(scene, place, lowest, speed, turn, self.dt)

    def in_view(self, state: Float[Tensor, "*B 10"]) -> Bool[Tensor, "*B"]:
        """Whether the whole lander is in the picture; episodes begin at its upper edge."""
        return (state[..., 1] < VIEW_TOP) & (state[..., 0].abs() < VIEW_SIDE)

    def poses(self, configuration: Float[Tensor, "B 14"]) -> Float[Tensor, "B 3 1"]:
        """The hull."""
        return configuration[:, :3, None]

    def skyline(
        self, scene: Float[Tensor, "B 11"], x: Float[Tensor, "B M"]
    ) -> Float[Tensor, "B M"]:
        """The terrain."""
        return lunar_ground.ground(scene, x)[0]

    def reward(
        self,
        state: Float[Tensor, "*B 10"],
        action: Shaped[Tensor, "*A"],
        next_state: Float[Tensor, "*B 10"],
    ) -> Float[Tensor, "*B"]:
        """Gain in shaping less fuel; -100 for a crash or leaving the view, +100 at rest."""
        fuel = 0.3 * (action == 2) + 0.03 * ((action == 1) | (action == 3))
        gain = self._shaping(next_state) - self._shaping(state) - fuel
        lost = (next_state[..., 9] > 0.5) | self._outside(next_state)
        gain = torch.where(lost, -100.0, gain)
        return torch.where(self._resting(next_state), 100.0, gain)

    def _shaping(self, state: Tensor) -> Tensor:
        """The potential whose gain is the reward, on the real environment's observation."""
        x, y, x_dot, y_dot, theta, _, right, left = self.observation(state).unbind(-1)
        place = torch.sqrt(x**2 + y**2) + torch.sqrt(x_dot**2 + y_dot**2) + theta.abs()
        return -100 * place + 10 * (right + left)

    def terminal(
        self, state: Float[Tensor, "*B 10"], scene: Tensor | None = None
    ) -> Bool[Tensor, "*B"]:
        """Crashed, left the view sideways, or at rest for half a second."""
        return (state[..., 9] > 0.5) | self._outside(state) | self._resting(state)

    @staticmethod
    def _outside(state: Tensor) -> Tensor:
        return state[..., 0].abs() >= lunar_ground.HALF_WIDTH

    @staticmethod
    def _resting(state: Tensor) -> Tensor:
        return state[..., 8] >= REST_TIME - 1e-4  # 25 additions of 0.02 may fall a little short

    def observation(self, state: Float[Tensor, "*B 10"]) -> Float[Tensor, "*B 8"]:
        """The real environment's eight numbers in its own scaling."""
        scale = constant((*OBSERVATION_SCALE, 1.0, 1.0), state.dtype, state.device)
        return state[..., :8] * scale

    def end_state(
        self,
        before: Float[Tensor, "*B 3"],
        now: Float[Tensor, "*B 3"],
        action: Shaped[Tensor, "*A"],
        params: LunarLanderParams,
        scene: Float[Tensor, "*N 11"] | None = None,
    ) -> Float[Tensor, "*B 10"]:
        """State at the second of two neighbouring frames.

        Exact whatever acted in between: semi-implicit Euler moves places by the new velocity.
        """
        (x0, y0, theta0), (x, y, theta) = before.unbind(-1), now.unbind(-1)
        omega = (theta - theta0) / self.dt
        sin, cos = theta.sin(), theta.cos()
        x_dot = (x - x0 - CENTRE_OF_MASS * (sin - theta0.sin())) / self.dt - OFFSET * omega * cos
        y_dot = (y - y0 + CENTRE_OF_MASS * (cos - theta0.cos())) / self.dt - OFFSET * omega * sin
        zero = torch.zeros_like(x)
        return columns((x, y, x_dot, y_dot, theta, omega, zero, zero, zero, zero))

    def from_configurations(
        self,
        start: Float[Tensor, "*B 3"],
        end: Float[Tensor, "*B 3"],
        elapsed: Scalar,
    ) -> Float[Tensor, "*B 10"]:
        """Places of ``start``, mean velocities on the way to ``end``."""
        velocity = (end - start) / elapsed
        zero = torch.zeros_like(start[..., 0])
        (x, y, theta), (x_dot, y_dot, theta_dot) = start.unbind(-1), velocity.unbind(-1)
        return columns((x, y, x_dot, y_dot, theta, theta_dot, zero, zero, zero, zero))


def from_observation(observation: np.ndarray) -> np.ndarray:
    """SI state (..., 10) of a real observation (..., 8); rest time and crash are not in it."""
    observation = np.asarray(observation, dtype=np.float64)
    state = np.zeros((*observation.shape[:-1], len(LunarLander.variables)))
    state[..., :6] = observation[..., :6] / OBSERVATION_SCALE
    state[..., 6:8] = observation[..., 6:8]
    return state


__all__ = ["LunarLander", "LunarLanderParams", "from_observation"]
