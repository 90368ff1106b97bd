"""Stage 1 and what E_p learns: from frames to latents to configurations."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from piwm_gym.models import Autoencoder, Extrinsic
from piwm_gym.models.vision import to_float
from piwm_gym.world_model import WorldModel
from training import distributed
from training.config import TrainConfig
from training.fit import FitConfig
from training.foreground import foreground_of
from training.run import Run, key
from training.stages import (
    GlimpseStage,
    Interpretability,
    LatentSource,
    PhysicalEncoderStage,
    VisionStage,
)
from training.training_data import TrainingData
from training.turning import turned_frames, turned_variable
from training.views import drawn_views

TURNED = 30_000
"""Turned frames beside those of the data, where there are any."""

MEDIAN_TO_STD = 1.4826
"""Standard deviation of normal numbers over the median of their absolute values."""


def train_reading(
    autoencoder: Extrinsic, config: TrainConfig, data: TrainingData, run: Run
) -> tuple[dict[str, Any], Tensor]:
    """Stage 1, and of stage 2 the encoder; then the latents of all frames."""
    latent = config.autoencoder.variant.split("-")[1]
    shape = {**asdict(config.autoencoder), "variant": latent, "transformer": None}
    for later in ("reader", "glimpse", "drawer", "direct", "matching"):
        del shape[later]
    shared = run.folder.parent / (
        f"vision-{latent}-" + key(shape, asdict(config.vision), data.description["sha256"])
    )
    sample = data.sample()
    stage = VisionStage(autoencoder, sample, foreground_of(data.system, to_float(sample)))
    results = {
        "vision": replace(run, folder=shared).fit(
            stage, data.split(frames=data.frames), config.vision, "vision"
        )
    }
    source = LatentSource(autoencoder.bottleneck)
    cached = cache_latents(autoencoder, source, data.frames, shared / "latents.npy")
    labels = data.configuration_labels(autoencoder)
    results["encoder"] = train_encoder(
        autoencoder, config, data, run, cached, labels, config.encoder, "physical-encoder"
    )
    if autoencoder.glimpse is not None:
        results["glimpse"] = train_glimpse(
            autoencoder, data, run, cached, data.configurations, config.glimpse, "glimpse"
        )
    return results, cached


def train_encoder(
    autoencoder: Extrinsic,
    config: TrainConfig,
    data: TrainingData,
    run: Run,
    latents: Tensor,
    labels: dict[str, Tensor],
    settings: FitConfig,
    name: str,
) -> dict[str, float]:
    """E_p but for its closer look, from latents to labels of the configuration."""
    stage = _encoder_stage(autoencoder, config, data)
    return run.fit(stage, data.split(latent=latents, **labels), settings, name)


def train_glimpse(
    autoencoder: Extrinsic,
    data: TrainingData,
    run: Run,
    latents: Tensor,
    configurations: Tensor,
    settings: FitConfig,
    name: str,
) -> dict[str, float]:
    """E_p's closer look, from latents to configurations (N, T+1, P), with turned frames beside."""
    source = LatentSource(autoencoder.bottleneck)
    train, validation = data.split(
        latent=latents, configuration=autoencoder.normalize(configurations)
    )
    if turned_variable(data.system) is not None:
        frames, shown = turned_frames(
            data.system, data.frames[data.train], configurations[data.train], TURNED, settings.seed
        )
        turned = {"latent": latents_of(autoencoder, source, frames).to(latents)}
        turned["configuration"] = autoencoder.normalize(shown)
        train = {key: torch.cat((tensor, turned[key])) for key, tensor in train.items()}
    stage = GlimpseStage(autoencoder, source, data.system).to(latents.device)
    return run.fit(stage, (train, validation), settings, name)


def refine_reading(
    autoencoder: Extrinsic,
    config: TrainConfig,
    data: TrainingData,
    run: Run,
    latents: Tensor,
    guess: Tensor,
) -> dict[str, float]:
    """E_p once more, on the best guess (N, T+1, P) instead of the labels: it scatters less.

    Of an E_p with a closer look, that alone.
    """
    name = "refined-encoder"
    if autoencoder.glimpse is not None:
        return train_glimpse(autoencoder, data, run, latents, guess, config.refinement, name)
    labels = data.configuration_labels(autoencoder)
    labels["proxy_mean"] = autoencoder.normalize(guess)
    return train_encoder(autoencoder, config, data, run, latents, labels, config.refinement, name)


def train_views(
    autoencoder: Extrinsic,
    config: TrainConfig,
    data: TrainingData,
    run: Run,
    latents: Tensor,
    guess: Tensor,
) -> dict[str, float]:
    """E_p once more, on drawn views beside the frames and the best guess (N, T+1, P) of these."""
    source = LatentSource(autoencoder.bottleneck)
    labels = data.configuration_labels(autoencoder)
    labels["proxy_mean"] = autoencoder.normalize(guess)
    train, validation = data.split(latent=latents, **labels)
    frames, places = drawn_views(
        autoencoder, data.system, guess[data.train].flatten(0, 1), config.views.seed
    )
    drawn = {"latent": latents_of(autoencoder, source, frames).to(latents)}
    drawn["proxy_mean"] = autoencoder.normalize(places)
    drawn["proxy_std"] = torch.zeros_like(drawn["proxy_mean"])
    train = {name: torch.cat((tensor, drawn[name])) for name, tensor in train.items()}
    stage = _encoder_stage(autoencoder, config, data)
    return run.fit(stage, (train, validation), config.views, "views")


def _encoder_stage(
    autoencoder: Extrinsic, config: TrainConfig, data: TrainingData
) -> PhysicalEncoderStage:
    interpretability = Interpretability(config.weights, data.system).to(data.frames.device)
    return PhysicalEncoderStage(autoencoder, LatentSource(autoencoder.bottleneck), interpretability)


@torch.no_grad()
def cache_latents(
    autoencoder: Extrinsic, source: LatentSource, frames: Tensor, path: Path
) -> Tensor:
    """Latents of all frames, computed once per vision stage and kept beside it.

    Raises:
        ValueError: The file is damaged.
    """
    if distributed.rank() == 0 and not path.exists():
        latents = latents_of(autoencoder, source, frames.flatten(0, 1)).unflatten(
            0, frames.shape[:2]
        )
        temporary = path.with_suffix(".tmp.npy")
        np.save(temporary, latents.numpy())
        temporary.replace(path)
    distributed.barrier()
    try:
        kept = torch.from_numpy(np.load(path))
        if kept.shape[:2] != frames.shape[:2]:
            raise ValueError(f"shape {tuple(kept.shape)} for frames {tuple(frames.shape)}")
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); delete it, latents are computed again"
        ) from error
    return kept.to(frames.device)


@torch.no_grad()
def latents_of(autoencoder: Extrinsic, source: LatentSource, frames: Tensor) -> Tensor:
    """(K, ...) what to store of the latents of uint8 frames (K, H, W, 3), on the CPU."""
    parts = frames.split(512)
    return torch.cat([source.cache(autoencoder.latent(to_float(part))).cpu() for part in parts])


@torch.no_grad()
def encode_all(autoencoder: Autoencoder, frames: Tensor) -> Tensor:
    """(N, T+1, P) configurations of all frames by the frozen encoder, SI units."""
    parts = [autoencoder.encode(to_float(part)) for part in frames.flatten(0, 1).split(512)]
    return torch.cat(parts).unflatten(0, frames.shape[:2])


@torch.no_grad()
def match_validation(model: WorldModel, data: TrainingData, readings: Tensor) -> Tensor:
    """Readings (N, T+1, P) by the encoder; of validation trajectories as users get them, matched.

    Only those tell how far readings scatter, and matching costs more than reading.
    """
    parts = data.frames[data.validation].flatten(0, 1).split(512)
    matched = torch.cat([model.encode_frames(part) for part in parts])
    readings = readings.clone()
    readings[data.validation] = matched.unflatten(0, (-1, readings.shape[1]))
    return readings


def scatter(data: TrainingData, readings: Tensor, guess: Tensor) -> Tensor:
    """(V,) standard deviations of readings about the best guess, visible dimensions, SI units.

    Of validation trajectories, from the median of the differences: misread frames, which users of
    readings have to expect anyway, would outweigh the others.

    Args:
        data: Says which trajectories are for validation.
        readings: (N, T+1, P) of all frames.
        guess: (N, T+1, P) of the same.
    """
    system = data.system
    read, best = (
        tensor[data.validation][..., : len(system.visible)] for tensor in (readings, guess)
    )
    apart = system.difference(read, best, system.visible_variables).abs()
    return MEDIAN_TO_STD * apart.flatten(0, -2).median(0).values


__all__ = [
    "cache_latents",
    "encode_all",
    "match_validation",
    "refine_reading",
    "scatter",
    "train_glimpse",
    "train_reading",
    "train_views",
]
