"""Discrete latent: the VQ-VAE's codebook (van den Oord et al. 2017), with a physical part."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from piwm_gym.models.bottleneck import Bottleneck, Latent, visual_dim
from piwm_gym.models.tokens import Grid, unmerge_tokens

CODES_PER_LEVEL = 8
"""Codes with the same physical part: with one, a physical value could be drawn in one way only."""
REACH = 1.25
"""The outermost levels: beyond the normalised range [-1, 1], whose edge means have to reach."""


class PhysicalTokens(nn.Module):
    """Which token says what of a configuration.

    The paper lets every code stand for a point in a grid of all physical dimensions. 64 points
    are a good grid of two dimensions; of 14, Lunar Lander's, a cube has 16,384 corners, and
    nothing could be read. Here a code stands for one number, a token for one dimension, and a
    dimension is the mean over the tokens that stand for it: the paper's index set I, one for
    each dimension.

    Every cell of merged tokens proposes all numbers, and each of its tokens takes up one. Tokens
    of the same dimension are shifted by different fractions of the distance between two levels,
    so that their mean is finer than a level.

    Args:
        input_dim: Size of the token of a cell.
        grid: Rows and columns of the latent's tokens.
        merge: Side of a cell.
        num_physical: P, numbers of a configuration.
        step: Distance between two levels.

    Raises:
        ValueError: There are fewer tokens than numbers.
    """

    place: Tensor
    shift: Tensor
    average: Tensor

    def __init__(
        self, input_dim: int, grid: Grid, merge: int, num_physical: int, step: float
    ) -> None:
        super().__init__()
        count = grid[0] * grid[1]
        if count < num_physical:
            raise ValueError(
                f"the latent has {count} tokens for {num_physical} physical numbers; expected at "
                "least one for each: take smaller patches"
            )
        self.propose = nn.Linear(input_dim, num_physical)
        tokens = unmerge_tokens(torch.arange(count).view(1, -1, merge**2), grid, merge).flatten()
        dimension, rank = tokens % num_physical, tokens // num_physical
        share = dimension.bincount()
        place = tokens // merge**2 * num_physical + dimension
        self.register_buffer("place", place, persistent=False)
        shift = step * ((rank + 0.5) / share[dimension] - 0.5)
        self.register_buffer("shift", shift, persistent=False)
        belongs = dimension == torch.arange(num_physical)[:, None]
        self.register_buffer("average", belongs / share[:, None], persistent=False)

    def forward(self, cells: Float[Tensor, "B M F"]) -> Float[Tensor, "B N 1"]:
        """The physical number of every token of the latent."""
        return (self.propose(cells).flatten(1)[:, self.place] + self.shift)[..., None]

    def mean(self, numbers: Float[Tensor, "B N"]) -> Float[Tensor, "B P"]:
        """Configurations of the physical numbers of all tokens."""
        return numbers @ self.average.T


class VectorQuantizer(Bottleneck):
    """Nearest code of a learnable codebook, gradients straight through.

    Intrinsic codebooks are partitioned, e = [e_p, e_v]: e_p is one of evenly spaced levels in a
    buffer that never changes. Nearest is the code with the nearest e_v among those at the level
    nearest in e_p: no physical number is moved for the sake of a picture.
    Starting the codebook from data and re-seeding dead codes is the business of training.

    Args:
        input_dim: Size of a token that comes in.
        grid: Rows and columns of the latent's tokens.
        merge: Side of the cell of latent tokens that one incoming token stands for.
        latent_dim: Size of a code.
        num_physical: Numbers of a configuration, in the physical parts of all tokens together.
        num_codes: Codebook size.
        commitment_weight: The paper's beta of the VQ loss.

    Raises:
        ValueError: A physical part, and no codes for at least two levels, or no room for a visual
            part, or too few tokens.
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
        if num_physical and (num_codes % CODES_PER_LEVEL or num_codes < 2 * CODES_PER_LEVEL):
            raise ValueError(
                f"num_codes is {num_codes}; with a physical part expected a multiple of "
                f"{CODES_PER_LEVEL} from {2 * CODES_PER_LEVEL} on"
            )
        self.grid = grid
        self.merge = merge
        self.num_tokens = grid[0] * grid[1]
        self.latent_dim = latent_dim
        self.visual_dim = visual_dim(latent_dim, min(num_physical, 1))
        self.commitment_weight = commitment_weight
        self.num_levels = num_codes // CODES_PER_LEVEL if num_physical else 1
        self.step = 2 * REACH / max(self.num_levels - 1, 1)
        self.physical_tokens: PhysicalTokens | None = None
        physical = torch.zeros(num_codes, 0)
        if num_physical:
            self.physical_tokens = PhysicalTokens(input_dim, grid, merge, num_physical, self.step)
            levels = torch.linspace(-REACH, REACH, self.num_levels)
            physical = levels.repeat_interleave(CODES_PER_LEVEL)[:, None]
        self.project = nn.Linear(input_dim, merge**2 * self.visual_dim)
        self.register_buffer("physical", physical)
        self.codebook = nn.Parameter(torch.randn(num_codes, self.visual_dim))

    @property
    def codes(self) -> Float[Tensor, "K C"]:
        """Whole code vectors, physical part first."""
        return torch.cat((self.physical, self.codebook), dim=-1)

    def lookup(self, indices: Int[Tensor, "B N"]) -> Float[Tensor, "B N C"]:
        """Code vectors of indices."""
        return self.codes[indices]

    def nearest(self, z: Float[Tensor, "*B C"]) -> Int[Tensor, "*B"]:
        """Index of the nearest code."""
        numbers, visual = z.detach().flatten(0, -2).tensor_split((-self.visual_dim,), dim=-1)
        book = self.codebook.detach()
        scores = (book**2).sum(-1) - 2 * visual @ book.T
        if self.physical_tokens is None:
            return scores.argmin(-1).view(z.shape[:-1])
        level = ((numbers + REACH) / self.step).round().clamp(0, self.num_levels - 1).long()
        at_level = scores.unflatten(-1, (self.num_levels, -1)).take_along_dim(level[..., None], 1)
        return (level * CODES_PER_LEVEL + at_level.argmin(-1)).view(z.shape[:-1])

    def continuous(self, tokens: Float[Tensor, "B M F"]) -> Float[Tensor, "B N C"]:
        """The latent before quantisation.

        With a physical part, tokens are normalised first: what a transformer and a reader add up
        has no bounds, and single frames whose latents lay far from all codes (a VQ loss of 73,000
        instead of 150) upset the training for epochs.
        """
        if self.physical_tokens is not None:
            tokens = layer_norm(tokens, tokens.shape[-1:])
        visual = unmerge_tokens(self.project(tokens), self.grid, self.merge)
        if self.physical_tokens is None:
            return visual
        return torch.cat((self.physical_tokens(tokens), visual), dim=-1)

    def partition(
        self, value: Float[Tensor, "B N C"]
    ) -> tuple[Float[Tensor, "B P"], Float[Tensor, "B N V"]]:
        """Physical part, averaged over the selected codes, and visual part of a latent."""
        assert self.physical_tokens is not None, "only intrinsic latents have parts"
        return self.physical_tokens.mean(value[..., 0]), value[..., 1:]

    def forward(self, tokens: Float[Tensor, "B M F"]) -> Latent:
        """Quantised latent, codebook plus commitment loss, and the chosen codes."""
        z = self.continuous(tokens)
        indices = self.nearest(z)
        quantized = self.lookup(indices)
        codebook = (quantized - z.detach()).square().sum((1, 2)).mean()
        commitment = (quantized.detach() - z).square().sum((1, 2)).mean()
        value = z + (quantized - z).detach()
        return Latent(value, codebook + self.commitment_weight * commitment, indices)
