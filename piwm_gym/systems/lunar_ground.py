"""Lunar Lander's ground: terrain, legs, hull, and a contact model between them.

A leg of LunarLander-v3 hangs on a joint whose motor holds it with a limited torque (Box2D:
``LEG_SPRING_TORQUE``) and pushes it back at a limited speed. Here each leg is a point under the
hull that pushes along the ground's normal with a limited force while the ground is above its
unloaded place; how far it is above is the leg's deflection. Bent to the limit, it is rigid.
Impulses are found by projected
Gauss-Seidel, as in Box2D (Catto, "Iterative dynamics with temporal coherence", 2005). Everything
is differentiable almost everywhere.

Geometry from ``gymnasium/envs/box2d/lunar_lander.py`` (``LANDER_POLY``, ``LEG_*``) with the legs
at their joints' limit, 0.348 rad. Coordinates are those of the state: the origin is where the
lander's origin stands when it rests on the pad.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from piwm_gym.systems.system import constant

CENTRE_OF_MASS = 0.08874
"""Height of the centre of mass of hull and legs above the hull's origin, m."""
GYRATION_SQUARED = 0.91226 / 4.958889
"""Moment of inertia over mass of hull and legs, m^2."""

PAD_DEPTH = 0.01 * 400 / 30 / 4 + 18 / 30
"""How far the pad lies below the state's origin: the moving average lowers it by 1 %, m."""
HALF_WIDTH = 10.0
NUM_HEIGHTS = 11
SPACING = 2 * HALF_WIDTH / (NUM_HEIGHTS - 1)

LEG_CORNERS = ((0.8592, -0.6102), (0.9845, -0.5647))
"""Lower corners of the right leg, m from the hull's origin; the left leg mirrors it."""
LEG_TRAVEL = (0.193, 0.542)
"""From there to where that corner is with the right leg bent up to its joint's limit, m."""
HULL_CORNERS = tuple(
    (x / 30, y / 30) for x, y in ((-14, 17), (-17, 0), (-17, -10), (17, -10), (17, 0), (14, 17))
)
SKIN = 0.02
"""Distance at which Box2D lets two shapes touch, m (twice ``b2_polygonRadius``)."""
SLOP = 0.005
"""Distance to both sides of touching at which Box2D leaves bodies alone, m (``b2_linearSlop``)."""
REACH = max(math.hypot(x, y) for x, y in (*LEG_CORNERS, *HULL_CORNERS))
"""How far from the hull's origin any corner is, however the lander is turned, m."""
ITERATIONS = 2
ROUNDING = 0.01
"""More than what rounding makes of all that, m."""
SETTLING_STEPS = 5
"""A small deflection is undone within about this many steps."""


class Pose(NamedTuple):
    """Place and attitude of the hull, (*B,) each: m, m, rad."""

    x: Tensor
    y: Tensor
    theta: Tensor


class Motion(NamedTuple):
    """Velocity of the centre of mass and rotation, (*B,) each: m/s, m/s, rad/s."""

    x_dot: Tensor
    y_dot: Tensor
    theta_dot: Tensor


def ground(
    scene: Float[Tensor, "*N 11"], x: Float[Tensor, "*B K"]
) -> tuple[Float[Tensor, "*B K"], Float[Tensor, "*B K"]]:
    """Height (m) and slope of the terrain under K places.

    Beyond the viewport the outermost edges go on.
    """
    place = (x + HALF_WIDTH) / SPACING
    left = place.detach().floor().long().clamp(0, NUM_HEIGHTS - 2)  # an index even where NaN is
    scene = scene.expand(*x.shape[:-1], NUM_HEIGHTS)
    low, high = scene.gather(-1, left), scene.gather(-1, left + 1)
    slope = (high - low) / SPACING
    return low + (place - left) * (high - low), slope


def corners(
    pose: Pose, points: tuple[tuple[float, float], ...]
) -> tuple[Float[Tensor, "*B K"], Float[Tensor, "*B K"]]:
    """Offsets from the hull's origin of points of the body, turned by the attitude, m."""
    body = constant(points, pose.theta.dtype, pose.theta.device)
    sin, cos = pose.theta.sin()[..., None], pose.theta.cos()[..., None]
    return cos * body[:, 0] - sin * body[:, 1], sin * body[:, 0] + cos * body[:, 1]


def gaps(
    scene: Tensor, pose: Pose, offset_x: Tensor, offset_y: Tensor
) -> tuple[Float[Tensor, "*B K"], Float[Tensor, "*B K"]]:
    """Distance of points from touching the terrain along its normal (m), and the slope there."""
    height, slope = ground(scene, pose.x[..., None] + offset_x)
    gap = (pose.y[..., None] + offset_y - height) * torch.rsqrt(1 + slope**2)
    return gap - SKIN, slope


def legs(
    scene: Tensor, pose: Pose
) -> tuple[Tensor, Tensor, Float[Tensor, "*B 2"], Float[Tensor, "*B 2"]]:
    """The lower corner of each leg, the right leg first as in the observation.

    Returns:
        Offsets x and y from the hull's origin (m), distance from the terrain (m), slope.
    """
    left = tuple((-x, y) for x, y in LEG_CORNERS)
    x, y = corners(pose, (*LEG_CORNERS, *left))
    gap, slope = gaps(scene, pose, x, y)
    second = gap[..., 1::2] < gap[..., ::2]
    x, y, gap, slope = (
        torch.where(second, value[..., 1::2], value[..., ::2]) for value in (x, y, gap, slope)
    )
    return x, y, gap, slope


def hull_gap(scene: Tensor, pose: Pose) -> Float[Tensor, "*B"]:
    """Smallest distance of the hull's corners from the terrain, m; negative when it is in it."""
    return gaps(scene, pose, *corners(pose, HULL_CORNERS))[0].amin(-1)


def touching(
    scene: Tensor, pose: Pose
) -> tuple[Float[Tensor, "*B"], Float[Tensor, "*B"], Bool[Tensor, "*B"]]:
    """Whether the right leg, the left leg and the hull touch the ground; of legs 1 or 0."""
    down = (legs(scene, pose)[2] < SLOP).to(pose.x.dtype)
    return down[..., 0], down[..., 1], hull_gap(scene, pose) < 0


def out_of_reach(
    scene: Sequence[Any], x: Any, lowest: Any, speed: Any, turn: Any, dt: float
) -> bool:
    """Whether :func:`push` surely changes nothing, and no corner touches, at the end of a step.

    A corner is at least as far above the terrain's highest point as the origin less ``REACH``.
    Along the normal of the steepest slope that is less by its cosine; it has to be more than what
    a leg can give way and what any corner moves in a step.

    Args:
        scene: (11,) terrain heights, m.
        x: Furthest place from the middle in this step, m.
        lowest: Height of the hull's origin, m, at the start or at the end of the step.
        speed: At most that of the hull, with gravity and engines of the step in it, m/s.
        turn: At most the lander's, likewise, rad/s.
        dt: s.
    """
    if not x + REACH < HALF_WIDTH:  # beyond it the terrain may go on rising
        return False
    top = max(scene)
    steepness = (top - min(scene)) / SPACING
    near = SKIN + SLOP + math.hypot(*LEG_TRAVEL) + dt * (speed + 2 * REACH * turn)
    least = REACH + near * math.sqrt(1 + steepness * steepness) + ROUNDING
    return bool(lowest - top > least)


class _Contacts:
    """Impulses (per mass, m/s) on both legs along one direction each.

    Args:
        x: (*B, 2) direction, unit length.
        y: Likewise.
        arm_x: (*B, 2) from the centre of mass to the leg's corner, m.
        arm_y: Likewise.
    """

    def __init__(self, x: Tensor, y: Tensor, arm_x: Tensor, arm_y: Tensor) -> None:
        self.x, self.y = x, y
        self.lever = arm_x * y - arm_y * x
        self.own = 1 + self.lever**2 / GYRATION_SQUARED
        along = x[..., 0] * x[..., 1] + y[..., 0] * y[..., 1]
        self.other = along + self.lever[..., 0] * self.lever[..., 1] / GYRATION_SQUARED

    def speed(self, motion: Motion) -> Float[Tensor, "*B 2"]:
        """Speed of the legs' corners along the direction, m/s."""
        x_dot, y_dot, theta_dot = (part[..., None] for part in motion)
        return x_dot * self.x + y_dot * self.y + theta_dot * self.lever

    def act(self, motion: Motion, impulse: Float[Tensor, "*B 2"]) -> Motion:
        """Motion after impulses on both legs."""
        return Motion(
            motion.x_dot + (impulse * self.x).sum(-1),
            motion.y_dot + (impulse * self.y).sum(-1),
            motion.theta_dot + (impulse * self.lever).sum(-1) / GYRATION_SQUARED,
        )

    def solve(
        self, total: Tensor, change: Tensor, low: Tensor, high: Tensor
    ) -> Float[Tensor, "*B 2"]:
        """Accumulated impulses that change the speeds as wanted, as far as the bounds allow.

        The pair is solved exactly, then each leg again given the other's bounded impulse.

        Args:
            total: Accumulated so far.
            change: Wanted change of speed, m/s.
            low: Lower bounds of the accumulated impulses.
            high: Upper bounds.
        """
        own, other = self.own, self.other[..., None]
        determinant = own[..., :1] * own[..., 1:] - other**2
        both = total + (own.flip(-1) * change - other * change.flip(-1)) / (
            determinant + 1e-6  # both legs in one place: leave it to the second step
        )
        both = both.clamp(low, high)
        first, second = both.unbind(-1)
        (old_1, old_2), (want_1, want_2) = total.unbind(-1), change.unbind(-1)
        first = old_1 + (want_1 - self.other * (second - old_2)) / own[..., 0]
        first = first.clamp(low[..., 0], high[..., 0])
        second = old_2 + (want_2 - self.other * (first - old_1)) / own[..., 1]
        return torch.stack((first, second.clamp(low[..., 1], high[..., 1])), dim=-1)


def push(scene: Tensor, pose: Pose, motion: Motion, params: Any, dt: float) -> Motion:
    """Motion after the ground has acted on the legs for one time step.

    Args:
        scene: (*B, 11) terrain heights, m.
        pose: At the start of the step.
        motion: With gravity and engines of the step already in it.
        params: ``leg_strength`` (m/s^2), ``leg_return`` (m/s) and ``leg_friction``.
        dt: s.
    """
    x, y, gap, slope = legs(scene, pose)
    arm_x = x + CENTRE_OF_MASS * pose.theta.sin()[..., None]
    arm_y = y - CENTRE_OF_MASS * pose.theta.cos()[..., None]
    cos = torch.rsqrt(1 + slope**2)
    normal = _Contacts(-slope * cos, cos, arm_x, arm_y)
    tangent = _Contacts(normal.y, -normal.x, arm_x, arm_y)
    # Out of reach: approach no faster than the gap allows. Deflected: return, but not too fast.
    back = ((-gap - SLOP) / (SETTLING_STEPS * dt)).clamp(min=0.0)
    back = back.clamp(max=_column(params.leg_return))
    wanted = torch.where(gap > 0, -gap / dt, back)
    travel = _travel(pose, normal)
    bent = (-gap / travel.clamp(min=SLOP)).clamp(0.0, 1.0)
    strongest = _column(params.leg_strength) * dt * _force(bent, _column(params.leg_friction))
    limit = gap + travel
    stopped = normal.speed(motion) + normal.own * strongest < -limit / dt
    wanted = torch.where(stopped, -limit.clamp(min=0.0) / dt, wanted)
    strongest = torch.where(stopped, torch.inf, strongest)
    none = torch.zeros_like(gap)
    pushed = rubbed = none
    for _ in range(ITERATIONS):
        total = normal.solve(pushed, wanted - normal.speed(motion), none, strongest)
        motion, pushed = normal.act(motion, total - pushed), total
        grip = _column(params.leg_friction) * pushed
        total = tangent.solve(rubbed, -tangent.speed(motion), -grip, grip)
        motion, rubbed = tangent.act(motion, total - rubbed), total
    return motion


def _travel(pose: Pose, normal: _Contacts) -> Float[Tensor, "*B 2"]:
    """How far each leg's corner can give way along the ground's normal, m."""
    (x, y), sides = LEG_TRAVEL, constant((1.0, -1.0), pose.theta.dtype, pose.theta.device)
    sin, cos = pose.theta.sin()[..., None], pose.theta.cos()[..., None]
    return normal.x * (cos * x * sides - sin * y) + normal.y * (sin * x * sides + cos * y)


def _force(bent: Float[Tensor, "*B 2"], friction: Any) -> Float[Tensor, "*B 2"]:
    """Largest force of a leg that is bent by a fraction of its travel, relative to an unbent one.

    The joint's motor has a limited torque about the hull's origin. A bent leg reaches further out,
    and the friction that keeps it from sliding outwards has a shorter arm to help it.
    """
    (x, y), (out, up) = LEG_CORNERS[0], LEG_TRAVEL
    return (x + friction * y) / (x + out * bent + friction * (y + up * bent))


def _column(value: Any) -> Any:
    """A parameter beside two legs: numbers stay, one per batch element becomes a column."""
    return value[..., None] if isinstance(value, Tensor) else value
