"""The autoencoder stages of Algorithm 1 as losses for ``fit``.

vision     (extrinsic)  E_v, bottleneck, D_v on frames alone; shared by all noise levels
physical   (extrinsic)  E_p, D_p on the frozen latents and the weak labels
glimpse    (extrinsic)  E_p's closer look, which the paper does not have, on the same
intrinsic  (intrinsic)  everything at once: the paper's displayed equations; its listing
                        leaves out the reconstruction term
dynamics                the physical parameters, on the frozen encoder's configurations
direct                  the direct decoder, which the paper does not have, on the same
"""

import torch
from torch import Tensor, nn

from piwm_gym.models import Extrinsic, Intrinsic
from piwm_gym.models.bottleneck import Bottleneck, Latent
from piwm_gym.models.direct import DirectDecoder
from piwm_gym.models.quantizer import VectorQuantizer
from piwm_gym.models.vision import to_float
from piwm_gym.systems import System
from training import distributed
from training.codebook import RESEED_UNTIL, WARMUP, CodebookKeeper, usage
from training.config import LossWeights
from training.fit import Batch, Stage, Terms
from training.foreground import Foreground
from training.losses import (
    configuration_weights,
    drawing_error,
    foreground_error,
    interpretability,
    interpretability_kl,
    latent_reconstruction,
    reconstruction,
    robust_interpretability,
)


class _BottleneckStage(Stage):
    """A stage that trains a bottleneck, with the upkeep that a codebook needs."""

    sample: Tensor

    def __init__(self, bottleneck: Bottleneck, sample: Tensor, foreground: Foreground) -> None:
        """Keep ``sample``, uint8 (M, H, W, 3) training frames, for the codebook's start."""
        super().__init__()
        self.foreground = foreground
        self.register_buffer("sample", sample, persistent=False)
        self._bottleneck = (bottleneck,)  # hidden in a tuple: subclasses register the networks
        self.keeper = (
            CodebookKeeper(bottleneck) if isinstance(bottleneck, VectorQuantizer) else None
        )
        self._tokens: Tensor | None = None
        self._indices: Tensor | None = None
        self._uses: Tensor | None = None

    @property
    def selectable(self) -> bool:
        """Not before the codebook has started."""
        return self.keeper is None or bool(self.keeper.started)

    def tokens(self, frames: Tensor) -> Tensor:
        """What goes into the bottleneck."""
        raise NotImplementedError

    def latent(self, frames: Tensor) -> Latent:
        """Bottleneck output; a codebook that has not been started lets latents pass."""
        tokens = self.tokens(frames)
        (bottleneck,) = self._bottleneck
        if self.keeper is not None and not self.keeper.started:
            assert isinstance(bottleneck, VectorQuantizer)
            z = bottleneck.continuous(tokens)
            return Latent(z, 0.0 * z.sum())
        latent = bottleneck(tokens)
        self._tokens, self._indices = tokens.detach(), latent.indices
        return latent

    def validation(self, batch: Batch) -> tuple[Tensor, Terms]:
        """The loss without the bottleneck's: its scale drifts with that of the latents."""
        loss, terms = self(batch)
        if self.keeper is not None and self._indices is not None:
            uses = self._indices.flatten().bincount(minlength=len(self.keeper.unused))
            self._uses = uses if self._uses is None else self._uses + uses
        return loss - terms["bottleneck"], terms

    def tally(self) -> dict[str, float]:
        """Usage of the codebook on the validation frames, once it has started."""
        uses, self._uses = self._uses, None
        return {} if uses is None else usage(uses)

    @torch.no_grad()
    def upkeep(self, batch: Batch, progress: float) -> None:
        """Start the codebook when the warm-up is over; re-seed dead codes until late."""
        if self.keeper is None:
            return
        (quantizer,) = self._bottleneck
        assert isinstance(quantizer, VectorQuantizer)
        if not self.keeper.started:
            if progress < WARMUP:
                return
            tokens = torch.cat([self.tokens(to_float(part)) for part in self.sample.split(256)])
            self.keeper.start(quantizer, tokens)
        elif progress < RESEED_UNTIL and self._tokens is not None and self._indices is not None:
            self.keeper.reseed(quantizer, self._tokens, self._indices)
        distributed.broadcast(quantizer)
        distributed.broadcast(self.keeper)


class VisionStage(_BottleneckStage):
    """Stage 1: L_vision = L_recon + KL or VQ loss.

    It registers the vision part only: its saved state does not depend on the physical part.
    """

    def __init__(self, autoencoder: Extrinsic, sample: Tensor, foreground: Foreground) -> None:
        super().__init__(autoencoder.bottleneck, sample, foreground)
        self.vision_encoder = autoencoder.vision_encoder
        self.bottleneck = autoencoder.bottleneck
        self.expand = autoencoder.expand
        self.vision_decoder = autoencoder.vision_decoder

    def tokens(self, frames: Tensor) -> Tensor:
        """What goes into the bottleneck."""
        return self.vision_encoder(frames)

    def forward(self, batch: Batch) -> tuple[Tensor, Terms]:
        """L_vision of a batch of frames."""
        frames = to_float(batch["frames"])
        latent = self.latent(frames)
        decoded = self.vision_decoder(self.expand(latent.value))
        terms = {
            "reconstruction": reconstruction(decoded, frames, self.foreground),
            "bottleneck": latent.loss,
        }
        loss = terms["reconstruction"] + terms["bottleneck"]
        terms["foreground"] = foreground_error(decoded.detach().float(), frames, self.foreground)
        return loss, terms


class Interpretability(nn.Module):
    """The interpretability loss that the weights name, over a system's configurations."""

    dimensions: Tensor

    def __init__(self, weights: LossWeights, system: System) -> None:
        super().__init__()
        self.kind = weights.interpretability_loss
        self.register_buffer("dimensions", configuration_weights(system), persistent=False)

    def forward(self, predicted: Tensor, batch: Batch) -> Tensor:
        """Loss of normalised configurations against the batch's labels."""
        if self.kind == "kl":
            return interpretability_kl(
                predicted, batch["proxy_mean"], batch["proxy_std"], self.dimensions
            )
        return interpretability(predicted, batch["proxy_mean"], self.dimensions)


class PhysicalEncoderStage(Stage):
    """Stage 2, first half: E_p on frozen latents, by the interpretability loss alone.

    The paper's L_physical lets the latent reconstruction reach E_p, its appendix B says that E_p
    is trained by the interpretability loss entirely. The latter is right: in our trials the
    reconstruction drove the state away from the labels (position error 0.14 m instead of 0.02 m
    after the same 800 steps).
    """

    def __init__(
        self, autoencoder: Extrinsic, latents: "LatentSource", interpretability: Interpretability
    ) -> None:
        super().__init__()
        self.encoder = autoencoder.physical_encoder
        self._frozen = (autoencoder, latents)  # a tuple hides them: not trained, not saved
        self.interpretability = interpretability

    def forward(self, batch: Batch) -> tuple[Tensor, Terms]:
        """L_interp of a batch of cached latents."""
        autoencoder, latents = self._frozen
        predicted = autoencoder.first_reading(latents(batch["latent"]))
        loss = self.interpretability(predicted, batch)
        return loss, {"interpretability": loss}


class GlimpseStage(Stage):
    """E_p's closer look, on frozen latents, from about where the labels say that a body is."""

    dimensions: Tensor

    def __init__(self, autoencoder: Extrinsic, latents: "LatentSource", system: System) -> None:
        super().__init__()
        assert autoencoder.glimpse is not None
        self.glimpse = autoencoder.glimpse
        self._frozen = (autoencoder, latents)
        count = len(system.visible)
        self.register_buffer("dimensions", configuration_weights(system)[:count], persistent=False)

    def forward(self, batch: Batch) -> tuple[Tensor, Terms]:
        """Robust L_interp of a batch of cached latents and labels."""
        autoencoder, latents = self._frozen
        tokens, labels = autoencoder.tokens(latents(batch["latent"])), batch["configuration"]
        seen, label = (
            numbers[:, : len(self.dimensions)]
            for numbers in (self.glimpse.look(tokens, labels), labels)
        )
        loss = robust_interpretability(seen, label, self.dimensions)
        return loss, {"interpretability": loss}


class PhysicalDecoderStage(Stage):
    """Stage 2, second half: D_p from the frozen encoder's configurations to the latents.

    Beyond the paper, the decoded frame is compared with the real one through the frozen D_v
    (``weights.pixel``): an error of the latent that does not show costs nothing, one that moves
    the pole does.
    """

    def __init__(
        self,
        autoencoder: Extrinsic,
        latents: "LatentSource",
        foreground: Foreground,
        weights: LossWeights,
    ) -> None:
        super().__init__()
        self.decoder = autoencoder.physical_decoder
        self._frozen = (autoencoder, latents)
        self.weights = weights
        self.foreground = foreground

    def forward(self, batch: Batch) -> tuple[Tensor, Terms]:
        """L_latent-rec, and the decoded frame's error."""
        autoencoder, latents = self._frozen
        imagined = autoencoder.imagine(batch["configuration"])
        latent = latent_reconstruction(imagined, latents(batch["latent"]))
        terms = {"latent": latent}
        loss = self.weights.latent * latent
        if self.weights.pixel:
            frames = to_float(batch["frames"])
            decoded = autoencoder.draw(imagined)
            terms["reconstruction"] = reconstruction(decoded, frames, self.foreground)
            loss = loss + self.weights.pixel * terms["reconstruction"]
            terms["foreground"] = foreground_error(
                decoded.detach().float(), frames, self.foreground
            )
        return loss, terms


class DirectStage(Stage):
    """The direct decoder, from the frozen encoder's configurations to frames."""

    def __init__(self, direct: DirectDecoder, foreground: Foreground) -> None:
        super().__init__()
        self.direct = direct
        self.foreground = foreground

    def forward(self, batch: Batch) -> tuple[Tensor, Terms]:
        """The decoded frames' error."""
        frames = to_float(batch["frames"])
        decoded = self.direct(batch["configuration"])
        loss = drawing_error(decoded, frames, self.foreground)
        drawn = decoded.detach().float().clamp(0, 1)
        error = foreground_error(drawn, frames, self.foreground)
        return loss, {"reconstruction": loss, "foreground": error}


class LatentSource:
    """Cached latents of frozen vision stages: codes for a quantiser, float16 means otherwise."""

    def __init__(self, bottleneck: Bottleneck) -> None:
        self._bottleneck = bottleneck

    @torch.no_grad()
    def cache(self, latent: Latent) -> Tensor:
        """What to store of a latent."""
        return latent.value.half() if latent.indices is None else latent.indices.short()

    @torch.no_grad()
    def __call__(self, cached: Tensor) -> Tensor:
        """Latent of what was stored."""
        if isinstance(self._bottleneck, VectorQuantizer):
            return self._bottleneck.lookup(cached.long())
        return cached.float()


class IntrinsicStage(_BottleneckStage):
    """The intrinsic variants' only autoencoder stage: L_intrinsic of the paper.

    The physical part is learned from the labels only: the decoder reads it, but its gradient
    stops there, for the same reason as in :class:`PhysicalEncoderStage`. For a share of the
    samples the decoder sees the physical part alone. Imagined states come without a visual part,
    so the decoder has to know how to draw those.
    """

    def __init__(
        self,
        autoencoder: Intrinsic,
        sample: Tensor,
        foreground: Foreground,
        interpretability: Interpretability,
        weights: LossWeights,
    ) -> None:
        super().__init__(autoencoder.bottleneck, sample, foreground)
        self.autoencoder = autoencoder
        self.interpretability = interpretability
        self.weights = weights

    def tokens(self, frames: Tensor) -> Tensor:
        """What goes into the bottleneck."""
        return self.autoencoder.tokens(frames)

    def forward(self, batch: Batch) -> tuple[Tensor, Terms]:
        """L_intrinsic of a batch of frames and labels."""
        frames = to_float(batch["frames"])
        latent = self.latent(frames)
        predicted, visual = self.autoencoder.split(latent.value)
        keep = torch.rand(len(frames), 1, 1, device=frames.device) >= self.weights.visual_dropout
        decoded = self.autoencoder.draw(predicted.detach(), visual * keep)
        terms = {
            "interpretability": self.interpretability(predicted, batch),
            "reconstruction": reconstruction(decoded, frames, self.foreground),
            "bottleneck": latent.loss,
        }
        loss = (
            terms["reconstruction"]
            + terms["bottleneck"]
            + self.weights.interpretability * terms["interpretability"]
        )
        terms["foreground"] = foreground_error(decoded.detach().float(), frames, self.foreground)
        return loss, terms
