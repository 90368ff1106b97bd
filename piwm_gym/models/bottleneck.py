"""What the Gaussian and the vector-quantised bottleneck have in common."""

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Latent:
    """Output of a bottleneck.

    Attributes:
        value: (B, N, C) latent that the decoder reads.
        loss: () regularisation: KL divergence, or codebook and commitment loss; a sum over
            latent dimensions, a mean over the batch.
        indices: (B, N) codes; None for a continuous latent.
    """

    value: Float[Tensor, "B N C"]
    loss: Float[Tensor, ""]
    indices: Int[Tensor, "B N"] | None = None


class Bottleneck(nn.Module):
    """Tokens to a latent of ``num_tokens`` tokens with ``latent_dim`` numbers each.

    Attributes:
        visual_dim: How many of the numbers of a token are visual; the first are physical.
    """

    num_tokens: int
    latent_dim: int
    visual_dim: int

    def forward(self, tokens: Float[Tensor, "B M F"]) -> Latent:
        """Latent of (B, M, F) tokens."""
        raise NotImplementedError

    def partition(
        self, value: Float[Tensor, "B N C"]
    ) -> tuple[Float[Tensor, "B P"], Float[Tensor, "B N V"]]:
        """Physical part of an intrinsic latent, a normalised configuration, and visual part."""
        raise NotImplementedError


def visual_dim(latent_dim: int, physical_dim: int) -> int:
    """What the physical part leaves of a latent token.

    Raises:
        ValueError: Nothing.
    """
    if latent_dim <= physical_dim:
        raise ValueError(
            f"latent_dim is {latent_dim}; expected more than {physical_dim}, the physical numbers "
            "of a token: the rest is the visual part"
        )
    return latent_dim - physical_dim
