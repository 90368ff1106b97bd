"""Frames that a model is given, and memory that it is given for its own."""

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from piwm_gym.models.vision import to_float
from piwm_gym.surroundings import check_tensor

MARGIN = 0.1
"""How far colours may lie outside [0, 1]: filters that sharpen overshoot, other scales lie farther
away."""


def _check_colours(frames: Tensor) -> None:
    """Check that float frames lie in [0, 1]; bytes always do.

    Raises:
        ValueError: They do not, or are not finite.
    """
    if not frames.is_floating_point() or not frames.numel():
        return
    low, high = (float(end) for end in frames.detach().aminmax())
    if not (low >= -MARGIN and high <= 1 + MARGIN):
        raise ValueError(
            f"frames has numbers from {low:g} to {high:g}; expected finite numbers in [0, 1]: "
            "divide those of 0 to 255 by 255, or pass uint8 (..., H, W, 3)"
        )


def float_frames(
    frames: UInt8[Tensor, "*B H W 3"] | Float[Tensor, "*B 3 H W"],
    size: tuple[int, int],
    device: torch.device,
) -> Float[Tensor, "*B 3 H W"]:
    """Frames as networks take them, of either layout.

    Args:
        frames: (..., H, W, 3) uint8, or (..., 3, H, W) float in [0, 1].
        size: Height and width that are expected, pixels.
        device: Where networks take them; bytes are sent there as bytes.

    Raises:
        ValueError: Another shape, dtype or size, or other colours.
    """
    check_tensor("frames", frames)
    height, width = size
    expected = (height, width, 3) if frames.dtype == torch.uint8 else (3, height, width)
    if tuple(frames.shape[-3:]) != expected or not (
        frames.dtype == torch.uint8 or frames.is_floating_point()
    ):
        raise ValueError(
            f"frames has shape {tuple(frames.shape)} and dtype {frames.dtype}; expected "
            f"(..., {height}, {width}, 3) uint8 or (..., 3, {height}, {width}) float in [0, 1]"
        )
    _check_colours(frames)
    frames = frames.to(device)
    return to_float(frames) if frames.dtype == torch.uint8 else frames.float()


def check_drawn(name: str, frames: Tensor | None, shape: tuple[int, ...]) -> None:
    """Check frames that are drawn already, or memory for them; None passes.

    Raises:
        ValueError: Another shape or dtype.
    """
    if frames is not None and (frames.dtype, tuple(frames.shape)) != (torch.uint8, shape):
        raise ValueError(
            f"{name} has shape {tuple(frames.shape)} and dtype {frames.dtype}; expected "
            f"uint8 frames of the states, {shape}"
        )


__all__ = ["check_drawn", "float_frames"]
