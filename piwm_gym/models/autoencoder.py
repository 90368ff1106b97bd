"""The four variants of the paper: {Extrinsic, Intrinsic} x {Gaussian, VectorQuantizer}.

Both architectures map a frame to the *configuration*, what one frame determines (visible state
dimensions, then the scene), and back. Velocities are no business of a single image: see
``estimation.py``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from piwm_gym.models.bottleneck import Bottleneck, Latent
from piwm_gym.models.direct import DirectConfig, DirectDecoder
from piwm_gym.models.gaussian import Gaussian
from piwm_gym.models.glimpse import Glimpse
from piwm_gym.models.maps import MapDecoder
from piwm_gym.models.physical import (
    READERS,
    ConvolutionalEncoder,
    PhysicalDecoder,
    TokenTransformer,
    TransformerConfig,
)
from piwm_gym.models.quantizer import VectorQuantizer
from piwm_gym.models.tokens import Grid, squarest
from piwm_gym.models.vision import VisionConfig, VisionDecoder, VisionEncoder, to_uint8
from piwm_gym.systems import System, unknown

DECODERS = ("direct", "latent")
"""Ways from a configuration to a frame."""
DRAWERS = ("transformer", "maps")
"""Kinds of D_p of extrinsic variants."""
VARIANTS = (
    "extrinsic-discrete",
    "extrinsic-continuous",
    "intrinsic-continuous",
    "intrinsic-discrete",
)


@dataclass(frozen=True)
class AutoencoderConfig:
    """Architecture of an autoencoder.

    Attributes:
        variant: One of :data:`VARIANTS`.
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
        flat: Extrinsic-continuous only: one latent vector for the frame, as in the paper's
            appendix, instead of one per grid cell. Intrinsic-continuous latents are always flat.
    """

    variant: str = "extrinsic-discrete"
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
    flat: bool = False


BottleneckFactory = Callable[..., Bottleneck]


def _gaussian(
    config: AutoencoderConfig, grid: Grid, merge: int, input_dim: int, num_physical: int
) -> Gaussian:
    flat = config.flat or num_physical > 0
    num_inputs = grid[0] * grid[1] // merge**2
    return Gaussian(num_inputs, input_dim, config.latent_dim, num_physical, flat, config.kl_weight)


def _quantizer(
    config: AutoencoderConfig, grid: Grid, merge: int, input_dim: int, num_physical: int
) -> VectorQuantizer:
    return VectorQuantizer(
        input_dim,
        grid,
        merge,
        config.latent_dim,
        num_physical,
        config.num_codes,
        config.commitment_weight,
    )


class Autoencoder(nn.Module):
    """Frames to configurations in SI units, and back.

    Attributes:
        direct: The direct decoder, or None.
        decodes_by: How :meth:`decode` draws, one of :data:`DECODERS`: directly or, as the paper
            does it, through the latent.
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
        if self.direct is not None and self.decodes_by == "direct":
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
        if decoder == "direct" and self.direct is None:
            raise ValueError(
                "decoder is 'direct', but this model was trained without one; expected 'latent'"
            )
        self.decodes_by = decoder

    def draw_frames(
        self, configuration: Float[Tensor, "B P"], still: UInt8[Tensor, "K H W 3"] | None = None
    ) -> UInt8[Tensor, "B H W 3"]:
        """Frames as environments give them; the direct decoder has a short way there.

        Args:
            configuration: SI units.
            still: Of their scenes, by :meth:`still`, where that has been drawn already.
        """
        if self.direct is not None and self.decodes_by == "direct":
            return self.direct.draw(self.normalize(configuration), still)
        return to_uint8(self.decode(configuration))

    def still(self, configuration: Float[Tensor, "B P"]) -> UInt8[Tensor, "K H W 3"] | None:
        """What of frames depends on the scene alone, if the decoder tells that apart."""
        if self.direct is None or self.decodes_by != "direct":
            return None
        return self.direct.still(self.normalize(configuration))

    def decode_latent(self, normalized: Float[Tensor, "B F"]) -> Float[Tensor, "B 3 H W"]:
        """Frames of normalised configurations by way of the latent; unclipped."""
        raise NotImplementedError


class Extrinsic(Autoencoder):
    """A vision autoencoder, and a physical autoencoder on its frozen latent.

    frame -E_v-> tokens -bottleneck-> latent z -E_p-> configuration -D_p-> latent -D_v-> frame
    """

    def __init__(
        self, config: AutoencoderConfig, system: System, bottleneck: BottleneckFactory
    ) -> None:
        super().__init__(system)
        vision, transformer = config.vision, config.transformer
        grid = vision.grid(system.frame.size)
        count = grid[0] * grid[1]
        self.vision_encoder = VisionEncoder(vision, system.frame.background)
        self.bottleneck = bottleneck(config, grid, 1, vision.token_dim, num_physical=0)
        self.expand: nn.Module = nn.Identity()
        self.token_dim, read_from = config.latent_dim, grid
        if self.bottleneck.num_tokens == 1:  # a flat latent: 64 scalar tokens for the transformer
            self.expand = nn.Sequential(
                nn.Linear(config.latent_dim, count * vision.token_dim),
                nn.Unflatten(-1, (count, vision.token_dim)),
                nn.Flatten(1, 2),
            )
            self.token_dim, read_from = 1, squarest(config.latent_dim)
        self.vision_decoder = VisionDecoder(vision, grid, system.frame.background)
        self.physical_encoder = READERS[config.reader](
            transformer, read_from, self.token_dim, self.num_features
        )
        self.glimpse: Glimpse | None = None
        if config.glimpse:
            if system.side_view is None or self.bottleneck.num_tokens == 1:
                raise ValueError(
                    f"glimpse is {config.glimpse}, but there is no side view of {system.name} to "
                    "look at, or no grid of tokens; expected 0"
                )
            self.glimpse = Glimpse(
                system, system.side_view, read_from, self.token_dim, config.glimpse
            )
        self.physical_decoder: nn.Module = (
            MapDecoder(system, read_from, self.token_dim)
            if config.drawer == "maps"
            else PhysicalDecoder(
                transformer, read_from, self.token_dim, self.num_state, self.num_scene
            )
        )

    def latent(self, frames: Float[Tensor, "B 3 H W"]) -> Latent:
        """Bottleneck output of frames."""
        return self.bottleneck(self.vision_encoder(frames))

    def draw(self, value: Float[Tensor, "B N C"]) -> Float[Tensor, "B 3 H W"]:
        """Frames of a latent; unclipped."""
        return self.vision_decoder(self.expand(value))

    def read(self, value: Float[Tensor, "B N C"]) -> Float[Tensor, "B F"]:
        """Normalised configuration of a latent."""
        reading = self.first_reading(value)
        return reading if self.glimpse is None else self.glimpse(self.tokens(value), reading)

    def first_reading(self, value: Float[Tensor, "B N C"]) -> Float[Tensor, "B F"]:
        """Normalised configuration of a latent, without the closer look."""
        return self.physical_encoder(self.tokens(value))

    def tokens(self, value: Float[Tensor, "B N C"]) -> Float[Tensor, "B M D"]:
        """What E_p reads of a latent."""
        return value.reshape(len(value), -1, self.token_dim)

    def imagine(self, normalized: Float[Tensor, "B F"]) -> Float[Tensor, "B N C"]:
        """Latent of a normalised configuration."""
        tokens = self.physical_decoder(normalized)
        return tokens.reshape(len(tokens), self.bottleneck.num_tokens, -1)

    def encode(self, frames: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B P"]:
        """Configuration of single frames, SI units."""
        return self.denormalize(self.read(self.latent(frames).value))

    def decode_latent(self, normalized: Float[Tensor, "B F"]) -> Float[Tensor, "B 3 H W"]:
        """Frames of normalised configurations: D_p, then D_v."""
        return self.draw(self.imagine(normalized))


class Intrinsic(Autoencoder):
    """One encoder whose latent is partitioned, [z_p, z_v]: physical part and visual rest.

    frame -E_v, transformer-> tokens -bottleneck-> [z_p, z_v] -transformer, D_v-> frame

    A transformer in front of the bottleneck lets every token see the whole frame: the discrete
    physical state is a mean over tokens' codes, most of which see only background. Where a
    transformer is a poor reader, a convolutional one tells all tokens what it sees: without it
    Lunar Lander's discrete variant read nothing at all in twelve epochs.
    """

    def __init__(
        self, config: AutoencoderConfig, system: System, bottleneck: BottleneckFactory
    ) -> None:
        super().__init__(system)
        vision, transformer = config.vision, config.transformer
        grid = vision.grid(system.frame.size)
        self.vision_encoder = VisionEncoder(vision, system.frame.background)
        self.context = TokenTransformer(transformer, grid, vision.token_dim)
        self.reader = (
            ConvolutionalEncoder(transformer, grid, vision.token_dim, transformer.width)
            if config.reader == "convolution"
            else None
        )
        self.bottleneck = bottleneck(
            config, grid, transformer.merge, transformer.width, num_physical=self.num_features
        )
        visual = (self.bottleneck.num_tokens, self.bottleneck.visual_dim)
        self.decoder = PhysicalDecoder(
            transformer, grid, vision.token_dim, self.num_state, self.num_scene, visual
        )
        self.vision_decoder = VisionDecoder(vision, grid, system.frame.background)

    def tokens(self, frames: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B M C"]:
        """What goes into the bottleneck."""
        seen = self.vision_encoder(frames)
        context = self.context(seen)
        return context if self.reader is None else context + self.reader(seen)[:, None]

    def latent(self, frames: Float[Tensor, "B 3 H W"]) -> Latent:
        """Bottleneck output of frames."""
        return self.bottleneck(self.tokens(frames))

    def split(
        self, value: Float[Tensor, "B N C"]
    ) -> tuple[Float[Tensor, "B F"], Float[Tensor, "B N V"]]:
        """Normalised configuration and visual part of a latent."""
        return self.bottleneck.partition(value)

    def draw(
        self, normalized: Float[Tensor, "B F"], visual: Float[Tensor, "B N V"] | None = None
    ) -> Float[Tensor, "B 3 H W"]:
        """Frames of a normalised configuration and, where given, a visual part; unclipped."""
        return self.vision_decoder(self.decoder(normalized, visual))

    def encode(self, frames: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B P"]:
        """Configuration of single frames, SI units."""
        return self.denormalize(self.split(self.latent(frames).value)[0])

    def decode_latent(self, normalized: Float[Tensor, "B F"]) -> Float[Tensor, "B 3 H W"]:
        """Frames of normalised configurations without a visual part."""
        return self.draw(normalized)


_ARCHITECTURES: dict[str, type[Extrinsic] | type[Intrinsic]] = {
    "extrinsic": Extrinsic,
    "intrinsic": Intrinsic,
}
_LATENTS: dict[str, BottleneckFactory] = {"continuous": _gaussian, "discrete": _quantizer}


def build_autoencoder(config: AutoencoderConfig, system: System) -> Extrinsic | Intrinsic:
    """Autoencoder of a variant.

    Raises:
        ValueError: The variant, reader or drawer is unknown; the nearest one is suggested.
    """
    if config.reader not in READERS:
        raise ValueError(unknown("reader", config.reader, tuple(READERS)))
    if config.drawer not in DRAWERS:
        raise ValueError(unknown("drawer", config.drawer, DRAWERS))
    if config.variant not in VARIANTS:
        raise ValueError(unknown("variant", config.variant, VARIANTS))
    architecture, latent = config.variant.split("-")
    autoencoder = _ARCHITECTURES[architecture](config, system, _LATENTS[latent])
    if config.direct.patch is not None:
        autoencoder.direct = DirectDecoder(config.direct, system)
        autoencoder.use("direct")
    return autoencoder


def num_parameters(module: nn.Module) -> int:
    """Trainable numbers in a module."""
    return sum(p.numel() for p in module.parameters())


__all__ = [
    "VARIANTS",
    "Autoencoder",
    "AutoencoderConfig",
    "Extrinsic",
    "Intrinsic",
    "build_autoencoder",
    "num_parameters",
]
