"""The best guess of every configuration, from what was read, what was said, and how things move.

D_p draws what it is told, so what E_p misreads blurs it: where readings scatter by a hand's
breadth, a line as wide as a finger cannot be drawn. E_p itself learns no faster than its labels'
noise averages out. Both know better together, and the learned motion better still: a window of
17 labels that scatter by 0.07 m in Cart Pole fits a trajectory 0.02 m from the truth.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from piwm_gym.models.estimation import WIDTHS, fit_start
from piwm_gym.systems import System
from training.flight import free_frames

WINDOW = 17
"""Frames of a window that one trajectory of the dynamics is fitted to."""
STRIDE = 8
"""Frames from one window to the next."""
LARGEST = 9.0
"""Squared differences count as no more than so many times their median. Those of uniform numbers
are at most four times theirs, those of normal ones rarely more."""
SMALLEST = 0.01
"""Readings are taken to scatter by at least this share of the labels' variance."""


@torch.no_grad()
def fuse(
    system: System,
    readings: Float[Tensor, "N T P"],
    labels: Float[Tensor, "N T P"],
    label_std: Float[Tensor, "N T P"],
) -> Float[Tensor, "N T P"]:
    """Mean of readings and labels, weighted by how reliable each is; SI units.

    How far labels scatter their proxies tell, and how far readings do is what is left of the
    difference between the two. A misread frame says little about the others: large differences
    count no more than those of labels can be, which are uniform.
    """
    apart = system.difference(readings, labels, system.configuration)
    of_labels = label_std.square().mean((0, 1))
    squares = apart.square().flatten(0, 1)
    spread = torch.minimum(squares, LARGEST * squares.median(0).values).mean(0)
    of_readings = (spread - of_labels).clamp(min=SMALLEST * of_labels)
    share = torch.where(of_labels > 0, of_labels / (of_labels + of_readings), 0.0)
    return labels + share * apart


@torch.no_grad()
def smooth(system: System, configurations: Tensor, actions: Tensor, params: Any) -> Tensor:
    """Readings of every frame, replaced by the fit of the window in which it lies most central.

    Where the system may touch a ground the readings are left as they are: a bounce is not to be
    fitted, and all other windows are without a scene. What noise the dynamics have adds up to
    little in a window.

    Args:
        system: The system.
        configurations: (N, T+1, P) what the encoder reads, SI units.
        actions: (N, T[, A]).
        params: Learned parameters.
    """
    frames = configurations.shape[1]
    visible, scenes = configurations.tensor_split((len(system.visible),), dim=-1)
    size = min(WINDOW, frames)
    firsts = [*range(0, frames - size, STRIDE), frames - size]
    nearest = [
        min(firsts, key=lambda first: abs(first + (size - 1) / 2 - frame))
        for frame in range(frames)
    ]
    free = free_frames(system, {"configurations": visible, "scene": scenes.mean(1)})
    smoothed = visible.clone()
    for first in firsts:
        mine = [frame for frame in range(frames) if nearest[frame] == first]
        rows = free[:, first : first + size].all(1).nonzero()[:, 0]
        steps = actions[rows, first : first + size - 1]
        read = visible[rows, first : first + size]
        start = fit_start(system, read, steps, params, widths=WIDTHS)
        start = system.settled(start, steps[:, 0], params)
        states = torch.cat((start[:, None], system.rollout(start, steps, params)), dim=1)
        fitted = states[:, [frame - first for frame in mine]][..., system.visible]
        smoothed[rows[:, None], torch.tensor(mine, device=rows.device)] = fitted
    return torch.cat((smoothed, scenes), dim=-1)


__all__ = ["fuse", "smooth"]
