"""Discrete latent: the VQ-VAE's codebook (van den Oord et al. 2017), with a physical part."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from piwm_gym.models.bottleneck import Bottleneck, Latent
from piwm_gym.models.tokens import Grid, unmerge_tokens


def physical_grid(num_codes: int, num_physical: int, visual_codes: int = 8) -> Tensor:
    """Fixed physical parts of an intrinsic codebook: scrambled Sobol points on a cube.

    Every point is repeated for ``visual_codes`` codes, or each physical value could be drawn in
    one way only. The cube goes beyond the normalised range [-1, 1] so that a mean over tokens
    can reach its edge, to 1.25 in two dimensions. Points are the sparser the more dimensions
    there are: in 14 dimensions 64 points on a cube of that size leave means 0.1 away from a
    configuration of Lunar Lander, on one that grows with the root of the dimension none.

    Returns:
        (num_codes, num_physical) tensor; empty when there is no physical part.
    """
    if num_physical == 0:
        return torch.zeros(num_codes, 0)
    sobol = torch.quasirandom.SobolEngine(num_physical, scramble=True, seed=0)
    reach = 1.25 * (num_physical / 2) ** 0.5
    points = 2 * reach * sobol.draw(num_codes // visual_codes) - reach
    return points.repeat_interleave(visual_codes, dim=0)


class VectorQuantizer(Bottleneck):
    """Nearest code of a learnable codebook, gradients straight through.

    Intrinsic codebooks are partitioned, e = [e_p, e_v]: e_p is a buffer that never changes.
    Starting the codebook from data and re-seeding dead codes is the business of training.

    Args:
        input_dim: Size of a token that comes in.
        grid: Rows and columns of the latent's tokens.
        merge: Side of the cell of latent tokens that one incoming token stands for.
        latent_dim: Size of a code.
        num_physical: Leading dimensions that are the physical part.
        num_codes: Codebook size.
        commitment_weight: The paper's beta of the VQ loss.
    """

    physical: Tensor

    def __init__(
        self,
        input_dim: int,
        grid: Grid,
        merge: int = 1,
        latent_dim: int = 64,
        num_physical: int = 0,
        num_codes: int = 512,
        commitment_weight: float = 0.25,
    ) -> None:
        super().__init__()
        self.grid = grid
        self.merge = merge
        self.num_tokens = grid[0] * grid[1]
        self.latent_dim = latent_dim
        self.commitment_weight = commitment_weight
        self.project = nn.Linear(input_dim, merge**2 * latent_dim)
        self.register_buffer("physical", physical_grid(num_codes, num_physical))
        self.codebook = nn.Parameter(torch.randn(num_codes, latent_dim - num_physical))

    @property
    def codes(self) -> Float[Tensor, "K C"]:
        """Whole code vectors, physical part first."""
        return torch.cat((self.physical, self.codebook), dim=-1)

    def lookup(self, indices: Int[Tensor, "B N"]) -> Float[Tensor, "B N C"]:
        """Code vectors of indices."""
        return self.codes[indices]

    def nearest(self, z: Float[Tensor, "*B C"]) -> Int[Tensor, "*B"]:
        """Index of the nearest code; both parts weigh the same, whatever their sizes."""
        p = self.physical.shape[1]
        weight = torch.ones(self.latent_dim, device=z.device)
        if p:
            weight[:p] = (self.codebook.detach().var(0).sum() / self.physical.var(0).sum()).sqrt()
        flat, codes = (z.detach() * weight).flatten(0, -2), self.codes.detach() * weight
        scores = (codes**2).sum(-1) - 2 * flat @ codes.T
        return scores.argmin(-1).view(z.shape[:-1])

    def continuous(self, tokens: Float[Tensor, "B M F"]) -> Float[Tensor, "B N C"]:
        """The latent before quantisation."""
        return unmerge_tokens(self.project(tokens), self.grid, self.merge)

    def forward(self, tokens: Float[Tensor, "B M F"]) -> Latent:
        """Quantised latent, codebook plus commitment loss, and the chosen codes."""
        z = self.continuous(tokens)
        indices = self.nearest(z)
        quantized = self.lookup(indices)
        codebook = (quantized - z.detach()).square().sum((1, 2)).mean()
        commitment = (quantized.detach() - z).square().sum((1, 2)).mean()
        value = z + (quantized - z).detach()
        return Latent(value, codebook + self.commitment_weight * commitment, indices)
