"""What all variants have in common: configurations, how networks see them, how frames are drawn.

An autoencoder maps a frame to the *configuration*, what one frame determines (visible state
dimensions, then the scene), and back. Velocities are no business of a single image: see
``estimation.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from piwm_gym.models.bottleneck import Bottleneck
from piwm_gym.models.direct import DirectConfig, DirectDecoder
from piwm_gym.models.physical import TransformerConfig
from piwm_gym.models.vision import VisionConfig, to_uint8
from piwm_gym.registration import DEFAULT_VARIANT
from piwm_gym.systems import System, unknown

REDUCED = "direct-bfloat16"
DECODERS = ("direct", REDUCED, "latent")
"""Ways from a configuration to a frame."""


@dataclass(frozen=True)
class AutoencoderConfig:
    """Architecture of an autoencoder.

    Attributes:
        variant: One of :data:`piwm_gym.models.variants.VARIANTS`.
        vision: Sizes of vision encoder and decoder.
        transformer: Sizes of the transformers.
        latent_dim: Numbers per latent token.
        num_codes: Codebook size of discrete variants.
        commitment_weight: Weight of the commitment loss (paper: beta = 0.25).
        kl_weight: Weight of the KL divergence (paper: beta = 1).
        reader: E_p by a ``"transformer"`` (paper) or by ``"convolution"``; intrinsic encoders have
            a transformer anyway, and get what a convolution reads besides.
        glimpse: Extrinsic only: width of the layers of E_p's closer look, for systems that are
            seen from the side; 0 for none (paper).
        drawer: Extrinsic only: D_p by a ``"transformer"`` (paper), or by learned ``"maps"`` for
            systems with a camera that drives along.
        direct: Sizes of the direct decoder, which is used instead of the one through the latent
            where there is one.
        matching: Steps by which what was read of a frame is moved to where its drawing matches the
            frame, see :mod:`piwm_gym.models.matching`, for systems with a camera that drives along
            and a direct decoder; 0 for none (paper).
        flat: Extrinsic-continuous only: one latent vector for the frame, as in the paper's
            appendix, instead of one per grid cell. Intrinsic-continuous latents are always flat.
    """

    variant: str = DEFAULT_VARIANT
    vision: VisionConfig = field(default_factory=VisionConfig)
    transformer: TransformerConfig = field(default_factory=TransformerConfig)
    latent_dim: int = 64
    num_codes: int = 512
    commitment_weight: float = 0.25
    kl_weight: float = 1.0
    reader: str = "transformer"
    glimpse: int = 0
    drawer: str = "transformer"
    direct: DirectConfig = field(default_factory=DirectConfig)
    matching: int = 0
    flat: bool = False


BottleneckFactory = Callable[..., Bottleneck]


class Autoencoder(nn.Module):
    """Frames to configurations in SI units, and back.

    Attributes:
        direct: The direct decoder, or None.
        decodes_by: How frames are drawn, one of :data:`DECODERS`: directly, whole frames for
            environments perhaps with products in bfloat16, or, as the paper does it, through the
            latent.
    """

    centre: Tensor
    half_range: Tensor

    def __init__(self, system: System) -> None:
        super().__init__()
        self.direct: DirectDecoder | None = None
        self.decodes_by = "latent"
        variables = system.configuration
        centre = torch.tensor([(v.high + v.low) / 2 for v in variables])
        half_range = torch.tensor([v.range for v in variables]) / 2
        self.register_buffer("centre", centre, persistent=False)
        self.register_buffer("half_range", half_range, persistent=False)
        self.periodic = tuple(v.periodic for v in variables)
        self.num_state = sum(v.num_features for v in system.visible_variables)
        self.num_scene = sum(v.num_features for v in system.scene_variables)

    @property
    def num_features(self) -> int:
        """F, the numbers that networks see of a configuration."""
        return self.num_state + self.num_scene

    def normalize(self, configuration: Float[Tensor, "*B P"]) -> Float[Tensor, "*B F"]:
        """SI configuration to what networks see of it.

        A number becomes [-1, 1] over its documented range. A periodic one becomes its cosine and
        sine, two numbers, as it jumps where it comes round and they do not: F is P and one more
        for each of those.
        """
        normalized = (configuration - self.centre) / self.half_range
        if not any(self.periodic):
            return normalized
        columns: list[Tensor] = []
        for column, periodic in zip(normalized.unbind(-1), self.periodic, strict=True):
            angle = torch.pi * column
            columns += [angle.cos(), angle.sin()] if periodic else [column]
        return torch.stack(columns, dim=-1)

    def denormalize(self, features: Float[Tensor, "*B F"]) -> Float[Tensor, "*B P"]:
        """Inverse of :meth:`normalize`; cosine and sine may be off the unit circle."""
        if any(self.periodic):
            source = iter(features.unbind(-1))
            columns = []
            for periodic in self.periodic:
                first = next(source)
                columns.append(torch.atan2(next(source), first) / torch.pi if periodic else first)
            features = torch.stack(columns, dim=-1)
        return features * self.half_range + self.centre

    def normalize_std(self, std: Float[Tensor, "*B P"]) -> Float[Tensor, "*B F"]:
        """SI standard deviations to those of what networks see.

        Cosine and sine get that of the angle in radians each: together they are as far off as
        the arc is long, wherever on the circle that is.
        """
        normalized = std / self.half_range
        if not any(self.periodic):
            return normalized
        columns: list[Tensor] = []
        for column, periodic in zip(normalized.unbind(-1), self.periodic, strict=True):
            columns += [torch.pi * column] * 2 if periodic else [column]
        return torch.stack(columns, dim=-1)

    def encode(self, frames: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B P"]:
        """Configuration of single frames, SI units."""
        raise NotImplementedError

    def decode(self, configuration: Float[Tensor, "B P"]) -> Float[Tensor, "B 3 H W"]:
        """Frames of configurations in SI units; values are not clipped."""
        normalized = self.normalize(configuration)
        if self.direct is not None and self.decodes_by != "latent":
            return self.direct(normalized)
        return self.decode_latent(normalized)

    def use(self, decoder: str) -> None:
        """Draw with another decoder from now on.

        Args:
            decoder: One of :data:`DECODERS`.

        Raises:
            ValueError: It is unknown, or this autoencoder has no direct one.
        """
        if decoder not in DECODERS:
            raise ValueError(unknown("decoder", decoder, DECODERS))
        if decoder != "latent" and self.direct is None:
            raise ValueError(
                f"decoder is {decoder!r}, but this model was trained without one; expected 'latent'"
            )
        self.decodes_by = decoder

    def draw_frames(
        self,
        configuration: Float[Tensor, "B P"],
        still: UInt8[Tensor, "K H W 3"] | None = None,
        out: UInt8[Tensor, "B H W 3"] | None = None,
    ) -> UInt8[Tensor, "B H W 3"]:
        """Frames as environments give them; the direct decoder has a short way there.

        Args:
            configuration: SI units.
            still: Of their scenes, by :meth:`still`, where that has been drawn already.
            out: Where to put them, contiguous in memory.
        """
        if self.direct is not None and self.decodes_by != "latent":
            dtype = torch.bfloat16 if self.decodes_by == REDUCED else None
            return self.direct.draw(self.normalize(configuration), still, dtype, out)
        frames = to_uint8(self.decode(configuration))
        return frames if out is None else out.copy_(frames)

    def still(self, configuration: Float[Tensor, "B P"]) -> UInt8[Tensor, "K H W 3"] | None:
        """What of frames depends on the scene alone, if the decoder tells that apart."""
        if self.direct is None or self.decodes_by == "latent":
            return None
        return self.direct.still(self.normalize(configuration))

    def decode_latent(self, normalized: Float[Tensor, "B F"]) -> Float[Tensor, "B 3 H W"]:
        """Frames of normalised configurations by way of the latent; unclipped."""
        raise NotImplementedError


def num_parameters(module: nn.Module) -> int:
    """Trainable numbers in a module."""
    return sum(p.numel() for p in module.parameters())


__all__ = [
    "DECODERS",
    "REDUCED",
    "Autoencoder",
    "AutoencoderConfig",
    "BottleneckFactory",
    "num_parameters",
]
