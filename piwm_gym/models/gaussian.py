"""Continuous latent: the beta-VAE's Gaussian (Kingma and Welling 2013; Higgins et al. 2017)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from piwm_gym.models.bottleneck import Bottleneck, Latent, visual_dim


def kl_to_standard_normal(
    mean: Float[Tensor, "*B C"], logvar: Float[Tensor, "*B C"]
) -> Float[Tensor, "*B C"]:
    """KL(N(mean, exp(logvar)) || N(0, 1)) per dimension, nats."""
    return 0.5 * (mean**2 + logvar.exp() - 1 - logvar)


class Gaussian(Bottleneck):
    """One Gaussian per token, or a single one for the whole frame.

    In training mode the latent is a sample, otherwise the mean. Physical dimensions are never
    sampled and carry no KL term: the paper applies the KL loss to z_v only.

    Args:
        num_inputs: Tokens that come in.
        input_dim: Size of such a token.
        latent_dim: Numbers per latent token.
        num_physical: Leading dimensions that are the physical part.
        flat: One latent token for the frame, read from all tokens together.
        kl_weight: The paper's beta.
    """

    def __init__(
        self,
        num_inputs: int,
        input_dim: int,
        latent_dim: int = 64,
        num_physical: int = 0,
        flat: bool = False,
        kl_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.num_tokens = 1 if flat else num_inputs
        self.latent_dim = latent_dim
        self.visual_dim = visual_dim(latent_dim, num_physical)
        self.num_physical = num_physical
        self.kl_weight = kl_weight
        self.project = nn.Linear(input_dim * num_inputs // self.num_tokens, 2 * latent_dim)

    def forward(self, tokens: Float[Tensor, "B M F"]) -> Latent:
        """Latent of (B, M, F) tokens."""
        grouped = tokens.reshape(len(tokens), self.num_tokens, -1)
        mean, logvar = self.project(grouped).chunk(2, dim=-1)
        logvar = logvar.clamp(-12, 6)  # exp() of an untrained head must stay finite
        p = self.num_physical
        kl = kl_to_standard_normal(mean[..., p:], logvar[..., p:]).sum((1, 2)).mean()
        value = mean
        if self.training:
            noise = torch.randn_like(mean[..., p:]) * (0.5 * logvar[..., p:]).exp()
            value = torch.cat((mean[..., :p], mean[..., p:] + noise), dim=-1)
        return Latent(value, self.kl_weight * kl)

    def partition(
        self, value: Float[Tensor, "B N C"]
    ) -> tuple[Float[Tensor, "B P"], Float[Tensor, "B N V"]]:
        """Physical and visual part of a flat latent."""
        return value[:, 0, : self.num_physical], value[..., self.num_physical :]
