"""The training stages of Algorithm 1 as losses for ``fit``.

vision     (extrinsic)  E_v, bottleneck, D_v on frames alone; shared by all noise levels
physical   (extrinsic)  E_p, D_p on the frozen latents and the weak labels
intrinsic  (intrinsic)  everything at once: the paper's displayed equations; its listing
                        leaves out the reconstruction term
dynamics                the physical parameters, on the frozen encoder's configurations
"""

import torch
from torch import Tensor

from piwm_gym.models import Extrinsic, Intrinsic
from piwm_gym.models.bottleneck import Bottleneck, Latent
from piwm_gym.models.dynamics import Dynamics
from piwm_gym.models.estimation import fit_start
from piwm_gym.models.quantizer import VectorQuantizer
from piwm_gym.models.vision import to_float
from piwm_gym.systems import System
from training import distributed
from training.codebook import RESEED_UNTIL, WARMUP, CodebookKeeper
from training.config import LossWeights
from training.fit import Batch, Stage, Terms
from training.losses import (
    foreground_error,
    interpretability,
    interpretability_kl,
    latent_reconstruction,
    reconstruction,
    rollout_error,
)


class _BottleneckStage(Stage):
    """A stage that trains a bottleneck, with the upkeep that a codebook needs."""

    autoencoder: Extrinsic | Intrinsic
    median: Tensor
    sample: Tensor

    def __init__(self, autoencoder: Extrinsic | Intrinsic, sample: Tensor) -> None:
        """Keep ``sample``, uint8 (M, H, W, 3) training frames, for the median and the codebook."""
        super().__init__()
        self.autoencoder = autoencoder
        median = sample.movedim(-1, 1).median(dim=0).values.float() / 255
        self.register_buffer("median", median, persistent=False)
        self.register_buffer("sample", sample, persistent=False)
        bottleneck = autoencoder.bottleneck
        self.keeper = (
            CodebookKeeper(bottleneck) if isinstance(bottleneck, VectorQuantizer) else None
        )
        self._tokens: Tensor | None = None
        self._indices: Tensor | None = None

    @property
    def selectable(self) -> bool:
        return self.keeper is None or bool(self.keeper.started)

    def tokens(self, frames: Tensor) -> Tensor:
        """What goes into the bottleneck."""
        raise NotImplementedError

    def latent(self, frames: Tensor) -> Latent:
        """Bottleneck output; a codebook that has not been started lets latents pass."""
        tokens = self.tokens(frames)
        bottleneck = self.autoencoder.bottleneck
        if self.keeper is not None and not self.keeper.started:
            assert isinstance(bottleneck, VectorQuantizer)
            z = bottleneck.continuous(tokens)
            return Latent(z, 0.0 * z.sum())
        latent = bottleneck(tokens)
        self._tokens, self._indices = tokens.detach(), latent.indices
        return latent

    @torch.no_grad()
    def upkeep(self, batch: Batch, progress: float) -> None:
        if self.keeper is None:
            return
        quantizer = self.autoencoder.bottleneck
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
    """Stage 1: L_vision = L_recon + KL or VQ loss."""

    autoencoder: Extrinsic

    def tokens(self, frames: Tensor) -> Tensor:
        return self.autoencoder.vision_encoder(frames)

    def forward(self, batch: Batch) -> tuple[Tensor, Terms]:
        frames = to_float(batch["frames"])
        latent = self.latent(frames)
        decoded = self.autoencoder.draw(latent.value)
        terms = {
            "reconstruction": reconstruction(decoded, frames, self.median),
            "bottleneck": latent.loss,
        }
        loss = terms["reconstruction"] + terms["bottleneck"]
        terms["foreground"] = foreground_error(decoded.detach().float(), frames, self.median)
        return loss, terms


def interpretability_loss(weights: LossWeights, predicted: Tensor, batch: Batch) -> Tensor:
    """The interpretability loss that the weights name."""
    if weights.interpretability_loss == "kl":
        return interpretability_kl(predicted, batch["proxy_mean"], batch["proxy_std"])
    return interpretability(predicted, batch["proxy_mean"])


class PhysicalStage(Stage):
    """Stage 2: L_physical on frozen latents; labels are normalised configurations.

    Beyond the paper, the decoded frame of the configuration is compared with the real one
    through the frozen D_v (``weights.pixel``): an error of the latent that does not show costs
    nothing, one that moves the pole does.
    """

    def __init__(
        self, autoencoder: Extrinsic, latents: "LatentSource", median: Tensor, weights: LossWeights
    ) -> None:
        super().__init__()
        self.encoder, self.decoder = autoencoder.physical_encoder, autoencoder.physical_decoder
        self._frozen = (autoencoder, latents)  # a tuple hides them: they are not trained or saved
        self.weights = weights
        self.register_buffer("median", median, persistent=False)

    def forward(self, batch: Batch) -> tuple[Tensor, Terms]:
        autoencoder, latents = self._frozen
        latent = latents(batch["latent"])
        predicted = autoencoder.read(latent)
        imagined = autoencoder.imagine(predicted)
        terms = {
            "interpretability": interpretability_loss(self.weights, predicted, batch),
            "latent": latent_reconstruction(imagined, latent),
        }
        loss = (
            self.weights.interpretability * terms["interpretability"]
            + self.weights.latent * terms["latent"]
        )
        if self.weights.pixel:
            frames = to_float(batch["frames"])
            decoded = autoencoder.draw(imagined)
            terms["reconstruction"] = reconstruction(decoded, frames, self.median)
            loss = loss + self.weights.pixel * terms["reconstruction"]
            terms["foreground"] = foreground_error(decoded.detach().float(), frames, self.median)
        return loss, terms


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

    For a share of the samples the decoder sees the physical part alone. Imagined states come
    without a visual part, so the decoder has to know how to draw those.
    """

    autoencoder: Intrinsic

    def __init__(self, autoencoder: Intrinsic, sample: Tensor, weights: LossWeights) -> None:
        super().__init__(autoencoder, sample)
        self.weights = weights

    def tokens(self, frames: Tensor) -> Tensor:
        return self.autoencoder.context(self.autoencoder.vision_encoder(frames))

    def forward(self, batch: Batch) -> tuple[Tensor, Terms]:
        frames = to_float(batch["frames"])
        latent = self.latent(frames)
        predicted, visual = self.autoencoder.split(latent.value)
        keep = torch.rand(len(frames), 1, 1, device=frames.device) >= self.weights.visual_dropout
        decoded = self.autoencoder.draw(predicted, visual * keep)
        terms = {
            "interpretability": interpretability_loss(self.weights, predicted, batch),
            "reconstruction": reconstruction(decoded, frames, self.median),
            "bottleneck": latent.loss,
        }
        loss = (
            terms["reconstruction"]
            + terms["bottleneck"]
            + self.weights.interpretability * terms["interpretability"]
        )
        terms["foreground"] = foreground_error(decoded.detach().float(), frames, self.median)
        return loss, terms


HORIZONS = (5, 10, 20, 30)
CONTEXT = 10


class DynamicsStage(Stage):
    """Stage 3: free rollouts against the labels; only the physical parameters are trained.

    A batch holds whole trajectories, from which a window of context and horizon is cut. The
    rollout starts from the state whose trajectory fits the window's configurations best: an
    encoder error at one frame is not allowed to pose as a physical effect. The horizon grows
    with training (5, 10, 20, 30 steps), for a long rollout with wrong parameters tells nothing.
    """

    def __init__(self, system: System, dynamics: Dynamics) -> None:
        super().__init__()
        self.dynamics = dynamics
        self._system = system
        self.register_buffer("half_range", system.ranges / 2, persistent=False)
        self.register_buffer("horizon", torch.tensor(HORIZONS[0]))

    def _loss(self, batch: Batch, first: int, length: int) -> Tensor:
        window = slice(first, first + length)
        params = self.dynamics.params
        configurations = batch["configurations"][:, window]
        actions = batch["actions"][:, first : first + length - 1]
        start = fit_start(self._system, configurations, actions, params)
        states = self._system.rollout(start, actions, params)
        labels = batch["labels"][:, first + 1 : first + length]
        return rollout_error(states, labels, self.half_range)

    def forward(self, batch: Batch) -> tuple[Tensor, Terms]:
        length = CONTEXT + int(self.horizon)
        first = int(torch.randint(batch["labels"].shape[1] - length + 1, ()))
        loss = self._loss(batch, first, length)
        return loss, dict(zip(self.dynamics.names, self.dynamics.values, strict=True))

    def validation(self, batch: Batch) -> tuple[Tensor, Terms]:
        loss = self._loss(batch, 0, CONTEXT + HORIZONS[-1])
        return loss, dict(zip(self.dynamics.names, self.dynamics.values, strict=True))

    def upkeep(self, batch: Batch, progress: float) -> None:
        self.horizon.fill_(HORIZONS[min(int(10 * progress), len(HORIZONS) - 1)])
