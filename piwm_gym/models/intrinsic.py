"""The paper's intrinsic architecture: part of the latent is the physical state."""

from jaxtyping import Float
from torch import Tensor

from piwm_gym.models.autoencoder import Autoencoder, AutoencoderConfig, BottleneckFactory
from piwm_gym.models.bottleneck import Latent
from piwm_gym.models.physical import ConvolutionalEncoder, PhysicalDecoder, TokenTransformer
from piwm_gym.models.vision import VisionDecoder, VisionEncoder
from piwm_gym.systems import System


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


__all__ = ["Intrinsic"]
