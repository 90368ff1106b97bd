"""Vision encoder and decoder between frames and a grid of tokens; frame arithmetic.

Layout conventions: uint8 frames are (..., H, W, 3) as environments give them, float frames are
(..., 3, H, W) in [0, 1] as networks take them. Nothing else in the package converts between them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from piwm_gym.models.tokens import Grid


def to_float(frames: UInt8[Tensor, "*B H W 3"]) -> Float[Tensor, "*B 3 H W"]:
    """uint8 HWC frames to float CHW frames in [0, 1]."""
    return frames.movedim(-1, -3).float() / 255


def to_uint8(frames: Float[Tensor, "*B 3 H W"]) -> UInt8[Tensor, "*B H W 3"]:
    """Float CHW frames, clipped to [0, 1] and rounded, to uint8 HWC frames."""
    return (frames.clamp(0, 1) * 255).round().to(torch.uint8).movedim(-3, -1).contiguous()


@dataclass(frozen=True)
class VisionConfig:
    """Sizes of the vision encoder; the decoder mirrors it. The frame's size is the system's.

    Attributes:
        channels: Output channels of each convolution.
        kernels: Kernel size of each convolution.
        strides: Stride of each convolution; kernel = stride cuts the frame into patches.
        paddings: Padding of each convolution.
        blocks: Residual per-token blocks after the convolutions.
        token_dim: Channels of a token.
    """

    channels: tuple[int, ...] = (96,)
    kernels: tuple[int, ...] = (8,)
    strides: tuple[int, ...] = (8,)
    paddings: tuple[int, ...] = (0,)
    blocks: int = 1
    token_dim: int = 64

    def grid(self, size: tuple[int, int]) -> Grid:
        """Rows and columns of tokens of a frame.

        Args:
            size: Height and width of the frame, pixels.

        Raises:
            ValueError: The convolutions leave a rest of the frame, so that the decoder would
                draw another size.
        """
        height, width = size
        return self._tokens("height", height), self._tokens("width", width)

    def _tokens(self, name: str, pixels: int) -> int:
        """Tokens along one side of the frame."""
        side = pixels
        for kernel, stride, padding in zip(self.kernels, self.strides, self.paddings, strict=True):
            steps, rest = divmod(side + 2 * padding - kernel, stride)
            if rest or steps < 0:
                raise ValueError(
                    f"a frame of {name} {pixels} does not fit the convolutions: kernel {kernel}, "
                    f"stride {stride} and padding {padding} do not tile {side} pixels; expected "
                    "side + 2 * padding - kernel to be a multiple of the stride"
                )
            side = steps + 1
        return side


class TokenBlock(nn.Module):
    """Residual two-layer perceptron applied to every position: x + W2 relu(W1 x)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, 2 * width, 1), nn.ReLU(), nn.Conv2d(2 * width, width, 1)
        )

    def forward(self, x: Float[Tensor, "B C h w"]) -> Float[Tensor, "B C h w"]:
        """Features of the same shape."""
        return x + self.layers(x)


class VisionEncoder(nn.Module):
    """Frames to tokens: strided convolutions, per-token blocks, a projection (paper, appendix A).

    The background is subtracted first, so that an empty scene is zero.
    """

    background: Tensor

    def __init__(self, config: VisionConfig, background: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer(
            "background", torch.tensor(background).view(3, 1, 1) / 255, persistent=False
        )
        layers: list[nn.Module] = []
        channels = 3
        spec = zip(config.channels, config.kernels, config.strides, config.paddings, strict=True)
        for width, kernel, stride, padding in spec:
            layers += [nn.Conv2d(channels, width, kernel, stride, padding), nn.ReLU()]
            channels = width
        layers += [TokenBlock(channels) for _ in range(config.blocks)]
        layers.append(nn.Conv2d(channels, config.token_dim, 1))
        self.layers = nn.Sequential(*layers)

    def forward(self, frames: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B N C"]:
        """Tokens of float frames, row by row."""
        x = (frames - self.background).to(memory_format=torch.channels_last)
        return self.layers(x).flatten(2).transpose(1, 2)


class VisionDecoder(nn.Module):
    """Tokens to frames, the mirror of :class:`VisionEncoder`.

    The network draws the difference from the background; values outside [0, 1] are left alone
    here (a clipped pixel has no gradient) and clipped where frames leave the model.
    """

    background: Tensor

    def __init__(self, config: VisionConfig, grid: Grid, background: Sequence[int]) -> None:
        super().__init__()
        self.grid = grid
        self.register_buffer(
            "background", torch.tensor(background).view(3, 1, 1) / 255, persistent=False
        )
        channels = config.channels[-1]
        layers: list[nn.Module] = [nn.Conv2d(config.token_dim, channels, 1), nn.ReLU()]
        layers += [TokenBlock(channels) for _ in range(config.blocks)]
        outputs = (3, *config.channels[:-1])
        spec = zip(outputs, config.kernels, config.strides, config.paddings, strict=True)
        for width, kernel, stride, padding in reversed(list(spec)):
            layers += [nn.ConvTranspose2d(channels, width, kernel, stride, padding), nn.ReLU()]
            channels = width
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, tokens: Float[Tensor, "B N C"]) -> Float[Tensor, "B 3 H W"]:
        """Float frames of tokens; unclipped."""
        x = tokens.transpose(1, 2).unflatten(2, self.grid)
        return self.background + self.layers(x.contiguous(memory_format=torch.channels_last))
