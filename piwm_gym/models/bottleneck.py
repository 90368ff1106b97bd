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
    """Tokens to a latent of ``num_tokens`` tokens with ``latent_dim`` numbers each."""

    num_tokens: int
    latent_dim: int

    def forward(self, tokens: Float[Tensor, "B M F"]) -> Latent:
        """Latent of (B, M, F) tokens."""
        raise NotImplementedError


def split(
    value: Float[Tensor, "B N C"], num_physical: int
) -> tuple[Float[Tensor, "B P"], Float[Tensor, "B N V"]]:
    """Partition an intrinsic latent into its physical and visual part, [z_p, z_v].

    The physical part is the mean over the tokens, as the paper averages the physical parts of
    the selected codes; a flat latent has one token, and the mean is the identity.
    """
    return value[..., :num_physical].mean(dim=1), value[..., num_physical:]
