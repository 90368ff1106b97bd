"""Whether what was read of a frame is there to be seen."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from piwm_gym.models.autoencoder import Autoencoder
from piwm_gym.systems import System

AWAY = 0.25
"""How far away the body is drawn for comparison, as a share of the range of the first dimension."""
SHARE = 0.5
"""Share of the error of the picture with the body elsewhere that a picture that is right stays
below. Where there is no body both pictures are wrong by as much; where it is, one is not."""

VISIBLE = 0.05
"""Difference of brightness that shows where the body is in either picture."""


@torch.no_grad()
def recognized(
    autoencoder: Autoencoder,
    system: System,
    frames: Float[Tensor, "B 3 H W"],
    configurations: Float[Tensor, "B P"],
) -> Bool[Tensor, " B"]:
    """Whether drawing the configurations explains the frames better than the body elsewhere would.

    An encoder reads something of every frame, also of one without the body. Always true for a
    camera that moves with the system.
    """
    if system.side_view is None:
        return torch.ones(len(frames), dtype=torch.bool, device=frames.device)
    first = system.visible_variables[0]
    x = configurations[:, :1]
    away = AWAY * first.range * torch.where(x > (first.low + first.high) / 2, -1.0, 1.0)
    moved = torch.cat((x + away, configurations[:, 1:]), dim=1)
    drawn = autoencoder.decode(torch.cat((configurations, moved))).clamp(0, 1)
    here, elsewhere = drawn.chunk(2)
    body = (here - elsewhere).abs().amax(1, keepdim=True) > VISIBLE
    error, of_elsewhere = (
        (body * (picture - frames).square()).sum((1, 2, 3)) for picture in (here, elsewhere)
    )
    return error < SHARE * of_elsewhere


__all__ = ["recognized"]
