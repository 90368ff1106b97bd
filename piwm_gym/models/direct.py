"""From a configuration to a frame with nothing in between: the quick decoder.

The paper draws a state in two steps, D_p to a latent and D_v to a frame, and a latent that 512
codes have to spell cannot say where an edge lies within a pixel. This decoder draws the patches of
a frame at once, each from where it sees the system's parts: for a camera that looks from the side
in :class:`SideViewPainter`, for one that drives along in :class:`MapDecoder`. It is trained on the
same configurations and frames as D_p.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, Shaped, UInt8
from torch import Tensor, nn

from piwm_gym.models.maps import MapDecoder
from piwm_gym.models.side_view import SideViewPainter
from piwm_gym.models.tokens import Grid
from piwm_gym.systems import System

WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)
"""Numbers that hold the bytes of pixels, wide ones first."""
WHITE = 255.0
"""The largest byte."""


@dataclass(frozen=True)
class DirectConfig:
    """Sizes of the direct decoder.

    Attributes:
        patch: Side of a square patch, pixels; None for no direct decoder.
        width: Of the layers.
        frequencies: Sinusoidal features of where a patch sees the bodies.
    """

    patch: int | None = None
    width: int = 96
    frequencies: int = 32


class DirectDecoder(nn.Module):
    """Configurations to frames, patch by patch.

    Args:
        config: Sizes; with a patch.
        system: With a camera, or seen from the side.

    Raises:
        ValueError: Patches do not tile the frame, or the system's pictures cannot be explained.
    """

    background: Tensor

    def __init__(self, config: DirectConfig, system: System) -> None:
        super().__init__()
        assert config.patch is not None
        self.patch = config.patch
        height, width = system.frame.size
        if height % self.patch or width % self.patch:
            raise ValueError(
                f"patch is {self.patch}; expected a divisor of the frame's height and width, "
                f"{height} and {width}"
            )
        self.grid: Grid = (height // self.patch, width // self.patch)
        row = self.patch * 3
        self.word = next(kind for kind in WORDS if row % kind.itemsize == 0)
        size = self.patch * row
        self.painter: MapDecoder | SideViewPainter
        if system.camera is not None:
            self.painter = MapDecoder(system, self.grid, size, config.width)
        elif system.side_view is not None:
            self.painter = SideViewPainter(
                system, system.side_view, self.grid, size, config.width, config.frequencies
            )
        else:
            raise ValueError(
                f"patch is {self.patch}, but {system.name} has neither a camera nor a side view "
                "to draw patches from; expected None"
            )
        background = torch.tensor(system.frame.background) / 255
        self.register_buffer("background", background.repeat(self.patch**2), persistent=False)

    def forward(self, normalized: Float[Tensor, "B F"]) -> Float[Tensor, "B 3 H W"]:
        """Frames of normalised configurations; unclipped."""
        if isinstance(self.painter, MapDecoder):
            frames = self._joined(self.painter(normalized) + self.background)
        else:
            still = self._joined(self.painter.still(normalized, self.background))
            frames = still.expand(len(normalized), -1).clone()
            frames = self._put(frames, *self.painter.drawn(normalized, self.background))
        rows, columns = self.grid
        return frames.view(-1, rows * self.patch, columns * self.patch, 3).movedim(-1, 1)

    def sample(self, normalized: Float[Tensor, "B F"], every: int) -> Float[Tensor, "B K S"]:
        """Every so manyth patch of frames, clipped; for a camera that drives along."""
        assert isinstance(self.painter, MapDecoder)
        return (self.painter(normalized, every) + self.background).clamp(0, 1)

    def sampled(self, frames: Float[Tensor, "B 3 H W"], every: int) -> Float[Tensor, "B K S"]:
        """What :meth:`sample` draws, of given frames."""
        rows, columns = self.grid
        patches = frames.unflatten(3, (columns, self.patch)).unflatten(2, (rows, self.patch))
        return patches.permute(0, 2, 4, 3, 5, 1).flatten(1, 2)[:, ::every].flatten(2)

    def draw(
        self,
        normalized: Float[Tensor, "B F"],
        still: UInt8[Tensor, "K H W 3"] | None = None,
        dtype: torch.dtype | None = None,
        out: UInt8[Tensor, "B H W 3"] | None = None,
    ) -> UInt8[Tensor, "B H W 3"]:
        """Frames as environments give them, clipped and rounded before they are put together.

        Args:
            normalized: Configurations.
            still: Of their scenes, by :meth:`still`, where that has been drawn already.
            dtype: Of matrix products, if another one.
            out: Where to put them, contiguous in memory.
        """
        if out is not None and out.storage_offset() % self.word.itemsize:  # words begin before it
            return out.copy_(self.draw(normalized, still, dtype))
        words = None if out is None else out.flatten(1).view(self.word)
        if isinstance(self.painter, MapDecoder):
            numbers = self.painter(normalized, dtype=dtype).add_(self.background).mul_(WHITE)
            return self._frames(self._joined(self._packed(numbers), words))
        if still is None:
            still = self.still(normalized)
            assert still is not None
        near, drawn = self.painter.drawn(normalized, self.background, WHITE, dtype)
        whole = still.storage_offset() % self.word.itemsize == 0
        behind = (still if whole else still.clone()).flatten(1).view(self.word)
        behind = behind.expand(len(near), -1)
        frames = behind.clone() if words is None else words.copy_(behind)
        return self._frames(self._put(frames, near, self._packed(drawn)))

    def still(self, normalized: Float[Tensor, "B F"]) -> UInt8[Tensor, "K H W 3"] | None:
        """What scenes look like without the bodies; None where nothing stands still.

        K is B, or 1 for systems without a scene.
        """
        if isinstance(self.painter, MapDecoder):
            return None
        numbers = self.painter.still(normalized, self.background, WHITE)
        return self._frames(self._joined(self._packed(numbers)))

    def _packed(self, numbers: Float[Tensor, "*B S"]) -> Shaped[Tensor, "*B Z"]:
        """Colours in bytes, several of them in each number: fewer to move when frames are joined.

        The bytes of a number are neighbours in a row of pixels of a patch.

        Args:
            numbers: Colours, 0 to 255; written to.
        """
        return numbers.round_().clamp_(0, WHITE).to(torch.uint8).view(self.word)

    def _joined(
        self, patches: Shaped[Tensor, "B N S"], out: Shaped[Tensor, "B L"] | None = None
    ) -> Shaped[Tensor, "B L"]:
        """Row by row of pixels: rows of patches, rows of pixels within them, columns of patches.

        Args:
            patches: To be put side by side.
            out: Where to put them, contiguous in memory.
        """
        rows, columns = self.grid
        split = patches.reshape(len(patches), rows, columns, self.patch, -1).transpose(2, 3)
        if out is None:
            return split.flatten(1)
        out.view(split.shape).copy_(split)
        return out

    def _put(
        self,
        frames: Shaped[Tensor, "B L"],
        near: Int64[Tensor, "B M"],
        drawn: Shaped[Tensor, "B M S"],
    ) -> Shaped[Tensor, "B L"]:
        """Joined frames with other patches in some places.

        Args:
            frames: Contiguous in memory; written to.
            near: The places.
            drawn: What is there instead.
        """
        batch, columns = len(near), self.grid[1]
        across = drawn.shape[-1] // self.patch
        line = columns * across
        first = near // columns * (self.patch * line) + near % columns * across
        first = first + torch.arange(batch, device=near.device)[:, None] * frames.shape[1]
        rows = torch.arange(self.patch, device=near.device)[:, None] * line
        within = (rows + torch.arange(across, device=near.device)).flatten()
        places = (first[..., None] + within).flatten()
        return frames.view(-1).index_copy_(0, places, drawn.flatten()).view(batch, -1)

    def _frames(self, words: Shaped[Tensor, "B L"]) -> UInt8[Tensor, "B H W 3"]:
        """Joined frames of packed numbers, byte by byte."""
        rows, columns = self.grid
        return words.view(torch.uint8).view(-1, rows * self.patch, columns * self.patch, 3)
