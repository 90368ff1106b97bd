"""Configurations along a trajectory, as the learned dynamics can have moved through them.

D_p draws what E_p reads, so what E_p misreads blurs it: where readings scatter by a hand's
breadth, a line as wide as a finger cannot be drawn. The motion knows better than a single frame.
"""

from typing import Any

import torch
from torch import Tensor

from piwm_gym.models.estimation import fit_start
from piwm_gym.systems import System

WINDOW = 17
"""Frames of a window that one trajectory of the dynamics is fitted to."""
STRIDE = 8
"""Frames from one window to the next."""


@torch.no_grad()
def smooth(system: System, configurations: Tensor, actions: Tensor, params: Any) -> Tensor:
    """Readings of every frame, replaced by the fit of the window in which it lies most central.

    Where the dynamics are noisy, and where there is a scene to touch, the readings are left as
    they are.

    Args:
        system: The system.
        configurations: (N, T+1, P) what the encoder reads, SI units.
        actions: (N, T[, A]).
        params: Learned parameters.
    """
    if system.num_step_uniforms or system.scene_variables:
        return configurations
    frames = configurations.shape[1]
    size = min(WINDOW, frames)
    firsts = [*range(0, frames - size, STRIDE), frames - size]
    nearest = [
        min(firsts, key=lambda first: abs(first + (size - 1) / 2 - frame))
        for frame in range(frames)
    ]
    smoothed = torch.empty_like(configurations)
    for first in firsts:
        steps = actions[:, first : first + size - 1]
        start = fit_start(system, configurations[:, first : first + size], steps, params)
        start = system.settled(start, steps[:, 0], params)
        states = torch.cat((start[:, None], system.rollout(start, steps, params)), dim=1)
        mine = [frame for frame in range(frames) if nearest[frame] == first]
        chosen = [frame - first for frame in mine]
        smoothed[:, mine] = states[:, chosen][..., system.visible]
    return smoothed


__all__ = ["smooth"]
