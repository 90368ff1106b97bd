"""The paper's extrinsic architecture: the physical state is read from a latent of its own."""

from jaxtyping import Float
from torch import Tensor, nn

from piwm_gym.models.autoencoder import Autoencoder, AutoencoderConfig, BottleneckFactory
from piwm_gym.models.bottleneck import Latent
from piwm_gym.models.glimpse import Glimpse
from piwm_gym.models.maps import MapDecoder
from piwm_gym.models.physical import READERS, PhysicalDecoder
from piwm_gym.models.tokens import squarest
from piwm_gym.models.vision import VisionDecoder, VisionEncoder
from piwm_gym.systems import System


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


__all__ = ["Extrinsic"]
