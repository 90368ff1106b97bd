"""Lunar Lander's ground: terrain, legs, hull, and a contact model between them.

A leg of LunarLander-v3 hangs on a joint whose motor holds it with a limited torque (Box2D:
``LEG_SPRING_TORQUE``) and pushes it back at a limited speed. Here each leg is a point under the
hull that pushes along the ground's normal with a limited force while the ground is above its
unloaded place; how far it is above is the leg's deflection. Impulses are found by projected
Gauss-Seidel, as in Box2D (Catto, "Iterative dynamics with temporal coherence", 2005). Everything
is differentiable almost everywhere.

Geometry from ``gymnasium/envs/box2d/lunar_lander.py`` (``LANDER_POLY``, ``LEG_*``) with the legs
at their joints' limit, 0.348 rad. Coordinates are those of the state: the origin is where the
lander's origin stands when it rests on the pad.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

CENTRE_OF_MASS = 0.08874
"""Height of the centre of mass of hull and legs above the hull's origin, m."""
GYRATION_SQUARED = 0.91226 / 4.958889
"""Moment of inertia over mass of hull and legs, m^2."""

HALF_WIDTH = 10.0
NUM_HEIGHTS = 11
SPACING = 2 * HALF_WIDTH / (NUM_HEIGHTS - 1)

LEG_CORNERS = ((0.8592, -0.6102), (0.9845, -0.5647))
"""Lower corners of the right leg, m from the hull's origin; the left leg mirrors it."""
HULL_CORNERS = tuple(
    (x / 30, y / 30) for x, y in ((-14, 17), (-17, 0), (-17, -10), (17, -10), (17, 0), (14, 17))
)
SKIN = 0.02
"""Distance at which Box2D calls two shapes touching, m (twice ``b2_polygonRadius``)."""
ITERATIONS = 4
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
    scene: Float[Tensor, "*S 11"], x: Float[Tensor, "*B K"]
) -> tuple[Float[Tensor, "*B K"], Float[Tensor, "*B K"]]:
    """Height (m) and slope of the terrain under K places.

    Beyond the viewport the outermost edges go on.
    """
    place = (x + HALF_WIDTH) / SPACING
    left = place.detach().floor().clamp(0, NUM_HEIGHTS - 2).long()
    scene = scene.expand(*x.shape[:-1], NUM_HEIGHTS)
    low, high = scene.gather(-1, left), scene.gather(-1, left + 1)
    slope = (high - low) / SPACING
    return low + (place - left) * (high - low), slope


def corners(
    pose: Pose, points: tuple[tuple[float, float], ...]
) -> tuple[Float[Tensor, "*B K"], Float[Tensor, "*B K"]]:
    """Offsets from the hull's origin of points of the body, turned by the attitude, m."""
    body = torch.tensor(points, dtype=pose.theta.dtype, device=pose.theta.device)
    sin, cos = pose.theta.sin()[..., None], pose.theta.cos()[..., None]
    return cos * body[:, 0] - sin * body[:, 1], sin * body[:, 0] + cos * body[:, 1]


def gaps(
    scene: Tensor, pose: Pose, offset_x: Tensor, offset_y: Tensor
) -> tuple[Float[Tensor, "*B K"], Float[Tensor, "*B K"]]:
    """Distance of points from the terrain along its normal (m), and the slope there."""
    height, slope = ground(scene, pose.x[..., None] + offset_x)
    gap = (pose.y[..., None] + offset_y - height) * torch.rsqrt(1 + slope**2)
    return gap, slope


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
    normal_y = torch.rsqrt(1 + slope**2)
    normal_x = -slope * normal_y
    lever_n = arm_x * normal_y - arm_y * normal_x
    lever_t = -arm_x * normal_x - arm_y * normal_y  # along the tangent (normal_y, -normal_x)
    mass_n = 1 / (1 + lever_n**2 / GYRATION_SQUARED)
    mass_t = 1 / (1 + lever_t**2 / GYRATION_SQUARED)
    # Out of reach: approach no faster than the gap allows. Deflected: return, but not too fast.
    back = torch.minimum(-gap / (SETTLING_STEPS * dt), _column(params.leg_return))
    wanted = torch.where(gap > 0, -gap / dt, back)
    strongest = _column(params.leg_strength) * dt * torch.ones_like(gap)

    vx, vy, omega = motion
    pushed, rubbed = torch.zeros_like(gap), torch.zeros_like(gap)
    for _ in range(ITERATIONS):
        for leg in (0, 1):
            at = (..., leg)
            speed = vx * normal_x[at] + vy * normal_y[at] + omega * lever_n[at]
            total = pushed[at] + mass_n[at] * (wanted[at] - speed)
            total = torch.minimum(total.clamp(min=0.0), strongest[at])
            change = total - pushed[at]
            pushed = _put(pushed, leg, total)
            vx, vy = vx + change * normal_x[at], vy + change * normal_y[at]
            omega = omega + change * lever_n[at] / GYRATION_SQUARED

            speed = vx * normal_y[at] - vy * normal_x[at] + omega * lever_t[at]
            limit = params.leg_friction * total
            total = torch.clamp(rubbed[at] - mass_t[at] * speed, -limit, limit)
            change = total - rubbed[at]
            rubbed = _put(rubbed, leg, total)
            vx, vy = vx + change * normal_y[at], vy - change * normal_x[at]
            omega = omega + change * lever_t[at] / GYRATION_SQUARED
    return Motion(vx, vy, omega)


def _column(value: Any) -> Any:
    """A parameter beside two legs: numbers stay, one per batch element becomes a column."""
    return value[..., None] if isinstance(value, Tensor) else value


def _put(legs: Tensor, leg: int, value: Tensor) -> Tensor:
    """Replace one leg's number."""
    return torch.stack((value, legs[..., 1]) if leg == 0 else (legs[..., 0], value), dim=-1)
