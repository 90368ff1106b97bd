"""Frames with a single flying body turned about itself and carried to the picture's edges.

Of a thousand frames of Lunar Lander three show it more than two radians from upright, and thirty
only in part, and what was seen so seldom is misread. Where the camera is known, a frame turned
about the body shows another attitude, and moved another place, with the ground awry, which a closer
look at the body sees little of.
"""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from piwm_gym.models.vision import to_float, to_uint8
from piwm_gym.systems import System
from training.flight import free_frames, states_at_rest

FURTHEST = 2.8
"""Largest attitude of turned frames to both sides, rad; they are uniform within."""
CARRIED = 0.5
"""Share of frames that are carried to an edge instead, which cuts them, or nearly does. They keep
their attitude: where an edge hides it, it is best guessed to be a usual one."""
BEYOND = 0.3
"""How far beyond the edge the body is carried, at most, of its reach; inwards, all of that."""


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
    places: Float[Tensor, "B 2"] | None = None,
) -> Float[Tensor, "B 3 H W"]:
    """Frames turned counterclockwise about the first body; beyond the edge the edge goes on.

    Args:
        system: With a picture from the side.
        frames: In [0, 1].
        configurations: What they show, SI units.
        angles: How far to turn, rad.
        places: Where the body is carried, m; it stays where it is if not given.
    """
    view, (height, width) = system.side_view, frames.shape[-2:]
    assert view is not None
    (top, bottom), (left, right) = system.frame.rows, system.frame.columns
    here = system.poses(configurations)[:, :2, 0]
    x, y = here[..., None, None].unbind(1)
    new_x, new_y = (here if places is None else places)[..., None, None].unbind(1)
    across, up = (right - left) / view.scale / width, (bottom - top) / view.scale / height
    columns = torch.arange(width, device=frames.device) + 0.5
    rows = torch.arange(height, device=frames.device)[:, None] + 0.5
    right_of = columns * across + (left - view.origin[1]) / view.scale - new_x
    above = (view.origin[0] - top) / view.scale - rows * up - new_y
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
    """Some frames in free motion, turned or carried, and their configurations in SI units.

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
    own, places = shown[:, variable].clone(), system.poses(shown)[:, :2, 0]
    target = FURTHEST * (2 * torch.rand(len(chosen), generator=generator) - 1).to(shown)
    carried = (torch.rand(len(chosen), generator=generator) < CARRIED).to(shown.device)
    target = torch.where(carried, own, target)
    edges = at_the_edges(system, len(chosen), generator).to(places)
    places = torch.where(carried[:, None], edges, places)
    flat, parts = frames.flatten(0, 1), []
    for at in torch.arange(len(chosen), device=chosen.device).split(512):
        angles = (target - own)[at]
        moved = turn(system, to_float(flat[chosen[at]]), shown[at], angles, places[at])
        parts.append(to_uint8(moved))
    shown[:, variable] = target
    return torch.cat(parts), moved_to(system, shown, places)


def at_the_edges(system: System, count: int, generator: torch.Generator) -> Float[Tensor, "K 2"]:
    """Places (m) of a body about the left, the right and the upper edge of the picture."""
    view, frame = system.side_view, system.frame
    assert view is not None
    (top, bottom), sides = frame.rows, torch.tensor(frame.columns)
    low, high = ((view.origin[0] - row) / view.scale for row in (bottom, top))
    left, right = (sides - view.origin[1]) / view.scale
    along, depth = torch.rand(2, count, generator=generator).unbind()
    across, down = (reach * ((1 + BEYOND) * depth - BEYOND) for reach in view.reach)
    x, y = left + along * (right - left), low + along * (high - low)
    places = ((left + across, y), (right - across, y), (x, high - down))
    edge = torch.randint(len(places), (count,), generator=generator)
    return torch.stack([torch.stack(place, dim=-1) for place in places])[edge, torch.arange(count)]


def moved_to(
    system: System, configurations: Float[Tensor, "B P"], places: Float[Tensor, "B 2"]
) -> Float[Tensor, "B P"]:
    """Configurations with the only body elsewhere."""
    origin = torch.zeros(1, len(system.configuration))
    jacobian: Tensor = torch.func.jacrev(lambda c: system.poses(c)[0, :2, 0])(origin)[:, 0]
    off = places - system.poses(configurations)[:, :2, 0]
    return configurations + off @ torch.linalg.pinv(jacobian).mT.to(off)


__all__ = ["turn", "turned_frames", "turned_variable"]
