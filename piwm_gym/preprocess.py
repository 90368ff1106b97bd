"""From the real environment's frame to the model's frame: the one place of crop and resize.

Collection and inference both come through here, because two resizers that are both called "area"
differ by up to 20 of 255 levels on these thin drawings.
"""

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

if TYPE_CHECKING:  # the systems import torch; a process that only makes frames need not
    from piwm_gym.systems.picture import FrameSpec

RESIZER = "pillow-box"
"""Name of the resizer, recorded in every data set."""


def area_average(image: Image.Image, size: tuple[int, int]) -> np.ndarray:
    """Resize by averaging the native pixels whose centres fall on each new pixel.

    Args:
        image: RGB picture.
        size: Height and width of the result.

    Returns:
        uint8 (H, W, 3).
    """
    height, width = size
    return np.asarray(image.resize((width, height), Image.Resampling.BOX))


def preprocess_frame(native: np.ndarray, spec: "FrameSpec") -> np.ndarray:
    """Crop a native frame and resize it.

    Args:
        native: uint8 (H0, W0, 3), as the real environment's ``render()`` returns it.
        spec: The system's frame geometry.

    Returns:
        uint8 (H, W, 3), a new array.

    Raises:
        ValueError: Shape or dtype is not that of the real environment's frames.
    """
    expected = (*spec.native, 3)
    if not isinstance(native, np.ndarray) or native.dtype != np.uint8 or native.shape != expected:
        got = (
            f"{native.dtype} array of shape {native.shape}"
            if isinstance(native, np.ndarray)
            else type(native).__name__
        )
        raise ValueError(
            f"native is a {got}; expected a uint8 array of shape {expected}: one frame of the "
            "real environment, height x width x RGB, not yet cropped or resized"
        )
    crop = native[slice(*spec.rows), slice(*spec.columns)]
    return area_average(Image.fromarray(np.ascontiguousarray(crop)), spec.size).copy()


__all__ = ["RESIZER", "area_average", "preprocess_frame"]
