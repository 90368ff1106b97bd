"""How a system is seen: the frame, and the camera that took it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class FrameSpec:
    """How a native frame of the real environment becomes a model frame.

    Attributes:
        native: Height and width that the real environment renders.
        rows: First and last (exclusive) native row of the crop.
        columns: First and last (exclusive) native column of the crop.
        size: Height and width after the area-average resize.
        background: RGB of the empty scene, 0 to 255; what differs from it is foreground.
    """

    native: tuple[int, int]
    rows: tuple[int, int]
    columns: tuple[int, int]
    size: tuple[int, int]
    background: tuple[int, int, int]


@dataclass(frozen=True)
class Camera:
    """How a camera is mounted that moves with the system; the ground is flat.

    Attributes:
        field_of_view: Of the height of the native frame, rad.
        height: Of the lens above the ground, m.
        ahead: Of the lens before the origin of the system, m.
        pitch: Downwards, rad.
    """

    field_of_view: float
    height: float
    ahead: float
    pitch: float

    def ray(self, right: float, down: float) -> tuple[float, float, float]:
        """Direction of a pixel: its components ahead, to the right and upwards.

        Args:
            right: Of the picture's middle, in focal lengths.
            down: The same, downwards.
        """
        sin, cos = math.sin(self.pitch), math.cos(self.pitch)
        return cos - down * sin, right, -sin - down * cos


@dataclass(frozen=True)
class SideView:
    """Where things are in the picture of a camera that stands still and looks from the side.

    Attributes:
        scale: Native pixels per metre.
        origin: Native row and column where x and y are 0.
        reach: How far, across and up or down, what moves extends from its origin, m; a little
            too far costs nothing but time.
    """

    scale: float
    origin: tuple[float, float]
    reach: tuple[float, float]


__all__ = ["Camera", "FrameSpec", "SideView"]
