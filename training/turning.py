"""Frames with a single flying body turned about itself: attitudes that data hardly hold.

Of a thousand frames of Lunar Lander three show it more than two radians from upright, and what was
seen so seldom is misread. Where the camera is known, a frame turned about the body shows another
attitude, with the ground awry, which a closer look at the body sees little of.
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from piwm_gym.models.vision import to_float, to_uint8
from piwm_gym.systems import System
from training.flight import free_frames, states_at_rest

FURTHEST = 2.4
"""Largest attitude of turned frames to both sides, rad; they are uniform within."""


def turned_variable(system: System) -> int | None:
    """Which number of the configuration turns the only body; None if there are several bodies."""
    origin = torch.zeros(1, len(system.configuration))
    if system.side_view is None or system.poses(origin).shape[-1] > 1:
        return None
    jacobian: Tensor = torch.func.jacrev(system.poses)(origin)[0, 2, 0, 0]
    return int(jacobian.argmax())


def turn(
    system: System,
    frames: Float[Tensor, "B 3 H W"],
    configurations: Float[Tensor, "B P"],
    angles: Float[Tensor, " B"],
) -> Float[Tensor, "B 3 H W"]:
    """Frames turned counterclockwise about the first body; beyond the edge the edge goes on."""
    view, (height, width) = system.side_view, frames.shape[-2:]
    assert view is not None
    (top, bottom), (left, right) = system.frame.rows, system.frame.columns
    x, y = system.poses(configurations)[:, :2, 0, None, None].unbind(1)
    across, up = (right - left) / view.scale / width, (bottom - top) / view.scale / height
    columns = torch.arange(width, device=frames.device) + 0.5
    rows = torch.arange(height, device=frames.device)[:, None] + 0.5
    right_of = columns * across + (left - view.origin[1]) / view.scale - x
    above = (view.origin[0] - top) / view.scale - rows * up - y
    cos, sin = angles.cos()[:, None, None], angles.sin()[:, None, None]
    source_x, source_y = x + cos * right_of + sin * above, y + cos * above - sin * right_of
    source = torch.stack(
        (
            2 * (source_x + (view.origin[1] - left) / view.scale) / (across * width) - 1,
            2 * ((view.origin[0] - top) / view.scale - source_y) / (up * height) - 1,
        ),
        dim=-1,
    )
    return functional.grid_sample(frames, source, padding_mode="border", align_corners=False)


def turned_frames(
    system: System,
    frames: UInt8[Tensor, "N T H W 3"],
    configurations: Float[Tensor, "N T P"],
    count: int,
    seed: int,
) -> tuple[UInt8[Tensor, "K H W 3"], Float[Tensor, "K P"]]:
    """Some frames in free motion, turned, and their configurations in SI units.

    Args:
        system: With a single body.
        frames: Of trajectories.
        configurations: What they are taken to show.
        count: How many; fewer where there are not as many.
        seed: Of which and how far.
    """
    variable = turned_variable(system)
    assert variable is not None
    visible, scene = configurations.tensor_split((len(system.visible),), dim=-1)
    free = free_frames(system, {"configurations": visible, "scene": scene.mean(1)})
    candidates = (free & system.in_view(states_at_rest(system, visible))).flatten().nonzero()[:, 0]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(candidates), generator=generator)[:count]
    chosen = candidates[order.to(candidates.device)]
    shown = configurations.flatten(0, 1)[chosen]
    target = FURTHEST * (2 * torch.rand(len(chosen), generator=generator) - 1).to(shown)
    angles = target - shown[:, variable]
    flat, parts = frames.flatten(0, 1), []
    for at in torch.arange(len(chosen), device=chosen.device).split(512):
        parts.append(to_uint8(turn(system, to_float(flat[chosen[at]]), shown[at], angles[at])))
    shown[:, variable] = target
    return torch.cat(parts), shown


__all__ = ["turn", "turned_frames", "turned_variable"]
