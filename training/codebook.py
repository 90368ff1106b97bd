"""Keeping a VQ codebook alive: a start from data, and re-seeding of codes that nobody uses.

A codebook that starts at random collapses to a few codes. Here the autoencoder first trains
without quantisation, then k-means on its encoder outputs makes the codebook, and codes that
stay unused are moved to tokens that are represented badly.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from piwm_gym.models.quantizer import VectorQuantizer

WARMUP = 0.15
"""Share of the schedule that trains without quantisation."""
RESEED_UNTIL = 0.7
"""Share of the schedule after which codes stay where they are, to settle."""
PATIENCE = 100
"""Steps after which an unused code is dead."""


def kmeans(
    points: Float[Tensor, "N C"], count: int, generator: torch.Generator, iterations: int = 10
) -> Float[Tensor, "K C"]:
    """Lloyd's algorithm from k-means++ seeds (Arthur and Vassilvitskii 2007)."""
    first = torch.randint(len(points), (1,), generator=generator).to(points.device)
    centres = points[first]
    distance = (points - centres).square().sum(-1)
    for _ in range(count - 1):
        weights = (distance + 1e-12).cpu()
        chosen = torch.multinomial(weights, 1, generator=generator).to(points.device)
        centres = torch.cat((centres, points[chosen]))
        distance = torch.minimum(distance, (points - points[chosen]).square().sum(-1))
    for _ in range(iterations):
        nearest = torch.cdist(points, centres).argmin(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        sizes = torch.bincount(nearest, minlength=count)[:, None]
        centres = torch.where(sizes > 0, sums / sizes.clamp(min=1), centres)
    return centres


def usage(uses: Int[Tensor, " K"]) -> dict[str, float]:
    """How much of a codebook is in use.

    Args:
        uses: How often each code was the nearest, at least one of them once.

    Returns:
        ``codes_used``, how many codes were, and ``perplexity``: as many codes that were used
        equally often would tell as much.
    """
    used = uses[uses > 0]
    share = used / used.sum()
    perplexity = float((-(share * share.log()).sum()).exp())
    return {"codes_used": len(used), "perplexity": round(perplexity, 2)}


class CodebookKeeper(nn.Module):
    """Upkeep of one quantiser; part of a stage, so that an interruption does not forget it."""

    unused: Tensor
    started: Tensor

    def __init__(self, quantizer: VectorQuantizer) -> None:
        super().__init__()
        self.register_buffer("unused", torch.zeros(len(quantizer.codebook), dtype=torch.long))
        self.register_buffer("started", torch.tensor(False))

    @torch.no_grad()
    def start(self, quantizer: VectorQuantizer, tokens: Float[Tensor, "B M F"]) -> None:
        """Make the codebook from the latents of many frames, the same at every level."""
        generator = torch.Generator().manual_seed(0)
        visual = self._visual(quantizer, tokens)
        keep = torch.randperm(len(visual), generator=generator)[:32768].to(visual.device)
        levels = quantizer.num_levels
        centres = kmeans(visual[keep], len(quantizer.codebook) // levels, generator)
        quantizer.codebook.copy_(centres.repeat(levels, 1))
        self.started.fill_(True)

    @torch.no_grad()
    def reseed(
        self,
        quantizer: VectorQuantizer,
        tokens: Float[Tensor, "B M F"],
        indices: Int[Tensor, "B N"],
    ) -> None:
        """Count uses; move dead codes to latents drawn in proportion to their error."""
        self.unused += 1
        self.unused[indices.unique()] = 0
        dead = (self.unused > PATIENCE).nonzero().flatten()
        if len(dead):
            visual = self._visual(quantizer, tokens)
            error = (visual - quantizer.codebook[indices.flatten()]).square().sum(-1)
            chosen = torch.multinomial(error + 1e-12, len(dead), replacement=True)
            quantizer.codebook[dead] = visual[chosen]
            self.unused[dead] = 0

    @staticmethod
    def _visual(quantizer: VectorQuantizer, tokens: Tensor) -> Float[Tensor, "M V"]:
        """Visual parts of all latents before quantisation."""
        z = quantizer.continuous(tokens).flatten(0, 1).float()
        return z[:, -quantizer.visual_dim :]
