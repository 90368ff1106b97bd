"""Which pixels of a frame matter most, and how much.

What a frame is about fills little of it. The *foreground* is where that is seen: reconstruction
weighs it more, and the foreground error looks nowhere else. What makes it differs by system: in
Cart Pole whatever differs from the median frame, in Lunar Lander, where each episode has another
terrain, what has the colours of lander and flags; where the camera itself drives, everything.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from piwm_gym.systems import System

THRESHOLD = 0.05
"""Difference of a channel, of 1, that makes a pixel foreground."""


class Foreground(nn.Module):
    """Mask of the foreground of frames; without parameters.

    Attributes:
        weight: What the reconstruction loss adds to the weight of 1 for these pixels.
    """

    weight: float

    def forward(self, frames: Float[Tensor, "B 3 H W"]) -> Bool[Tensor, "B 1 H W"]:
        """Foreground pixels of frames in [0, 1]."""
        raise NotImplementedError


class Moving(Foreground):
    """What differs from the median of some frames in any channel: 4 % of Cart Pole's frames."""

    weight = 10.0
    median: Tensor

    def __init__(self, sample: Float[Tensor, "M 3 H W"]) -> None:
        super().__init__()
        self.register_buffer("median", sample.median(dim=0).values, persistent=False)

    def forward(self, frames: Float[Tensor, "B 3 H W"]) -> Bool[Tensor, "B 1 H W"]:
        """Pixels that differ from the median frame."""
        return (frames - self.median).abs().amax(1, keepdim=True) > THRESHOLD


class Coloured(Foreground):
    """Lander and flags, 1 % of Lunar Lander's frames: what has another green than blue.

    Sky and moon are grey. Exhaust is red, with as much green as blue: it is decoration, shown by
    no state, and where it counted it used up codes and drowned the lander's error.

    The weight gives them a third of the sum over pixels, as Cart Pole's foreground has. A shift by
    0.1 m then costs about twice as much at the lander as along the whole terrain.
    """

    weight = 50.0

    def forward(self, frames: Float[Tensor, "B 3 H W"]) -> Bool[Tensor, "B 1 H W"]:
        """Pixels whose green and blue differ."""
        return (frames[:, 1:2] - frames[:, 2:3]).abs() > THRESHOLD


class Everything(Foreground):
    """All of the frame: a camera that drives along sees nothing stay where it is."""

    weight = 0.0

    def forward(self, frames: Float[Tensor, "B 3 H W"]) -> Bool[Tensor, "B 1 H W"]:
        """All pixels."""
        return torch.ones_like(frames[:, :1], dtype=torch.bool)


def foreground_of(system: System, sample: Float[Tensor, "M 3 H W"]) -> Foreground:
    """The foreground of a system.

    Args:
        system: A scene differs between episodes, so only systems without one have a median frame;
            and only those whose camera stands still: it is the place around a driving one that
            is an asset.
        sample: Some frames in [0, 1].
    """
    if system.asset is not None:
        return Everything()
    return Coloured() if system.scene_variables else Moving(sample)


__all__ = ["Coloured", "Everything", "Foreground", "Moving", "foreground_of"]
