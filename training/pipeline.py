"""From a data set to a trained world model: the stages in order, with everything cached.

    <runs>/<system>/vision-<latent>-<key>/     stage 1 and its latents, shared by noise levels
    <runs>/<system>/<variant>-<noise>-<key>/   the other stages and their TensorBoard log

A key is a hash of all that the content depends on: settings and data. Interrupted work goes on
where it was; finished work is not repeated.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from piwm_gym.checkpoint import load_checkpoint
from piwm_gym.models import Autoencoder, Extrinsic, Intrinsic
from piwm_gym.models.direct import DirectConfig, DirectDecoder
from piwm_gym.models.vision import to_float
from piwm_gym.systems import System
from piwm_gym.world_model import WorldModel, WorldModelConfig
from training.config import TrainConfig
from training.dynamics import train_dynamics
from training.fit import Batch, FitConfig
from training.foreground import foreground_of
from training.reading import (
    encode_all,
    match_validation,
    refine_reading,
    scatter,
    train_reading,
    train_views,
)
from training.run import Run
from training.stages import (
    DirectStage,
    Interpretability,
    IntrinsicStage,
    LatentSource,
    PhysicalDecoderStage,
)
from training.training_data import TrainingData, steady


def train_variant(
    config: TrainConfig, data: TrainingData, run: Run, direct: DirectDecoder | None = None
) -> tuple[WorldModel, dict]:
    """Train all stages of one variant.

    Args:
        config: Its settings.
        data: What to train on.
        run: Where.
        direct: What the direct decoder is like at first, instead of random.

    Returns:
        The model, and what each stage measured: losses on validation labels, epochs, seconds,
        and for the dynamics every starting point with the values it led to.
    """
    device = data.frames.device
    torch.manual_seed(config.vision.seed)
    model = WorldModel(
        WorldModelConfig(data.system.name, config.autoencoder, config.parametrisation, config.init),
        data.system.asset,
    ).to(device)
    autoencoder = model.autoencoder
    if direct is not None:
        assert autoencoder.direct is not None
        autoencoder.direct.load_state_dict(direct.state_dict())
    latents: Tensor | None = None
    if isinstance(autoencoder, Extrinsic):
        results, latents = train_reading(autoencoder, config, data, run)
    else:
        results = train_intrinsic(autoencoder, config, data, run)
    readings, results["dynamics"] = learn_dynamics(model, config, data, run)
    results |= polish(model, config, data, run, latents, readings)
    estimated = data.system.estimated
    low, high = label_range(data.system, data.state_labels[data.train].flatten(0, 1))
    model.state_low[estimated] = low[estimated]
    model.state_high[estimated] = high[estimated]
    round_weights(model)
    return model.eval(), results


def polish(
    model: WorldModel,
    config: TrainConfig,
    data: TrainingData,
    run: Run,
    latents: Tensor | None,
    readings: Tensor,
) -> dict[str, Any]:
    """The stages after the dynamics, which tell a best guess of every frame; some have no epochs.

    Args:
        model: With learned dynamics.
        config: Its settings.
        data: What to train on.
        run: Where.
        latents: Of all frames, for extrinsic variants.
        readings: (N, T+1, P) of all frames, SI units.
    """
    autoencoder, results = model.autoencoder, dict[str, Any]()
    guess = data.guess(readings, model.params)
    if isinstance(autoencoder, Extrinsic) and config.refinement.epochs:
        assert latents is not None
        results["refinement"] = refine_reading(autoencoder, config, data, run, latents, guess)
        readings = encode_all(autoencoder, data.frames)
        guess = data.guess(readings, model.params)
    if isinstance(autoencoder, Extrinsic) and config.decoder.epochs:
        assert latents is not None
        results["decoder"] = train_drawing(autoencoder, config, data, run, latents, guess)
    if autoencoder.direct is not None and config.direct.epochs:
        results["direct"] = train_direct(autoencoder, config.direct, data, run, guess)
    final = readings
    if isinstance(autoencoder, Extrinsic) and config.views.epochs:
        assert latents is not None
        results["views"] = train_views(autoencoder, config, data, run, latents, guess)
        final = encode_all(autoencoder, data.frames)
    if model.config.autoencoder.matching:
        final = match_validation(model, data, final)
    if final is not readings:
        guess = data.guess(final, model.params)
    model.reading_std.copy_(scatter(data, final, guess))
    return results


@torch.no_grad()
def round_weights(model: WorldModel) -> None:
    """Round the networks' weights to half precision, in which checkpoints then store them."""
    for parameter in model.autoencoder.parameters():
        parameter.copy_(parameter.half())


def learn_dynamics(
    model: WorldModel, config: TrainConfig, data: TrainingData, run: Run
) -> tuple[Tensor, dict[str, Any]]:
    """Stage 3; also what the encoder reads of all frames, (N, T+1, P), SI units."""
    readings = encode_all(model.autoencoder.eval(), data.frames)
    train, validation = dynamics_batches(data, readings)
    results = train_dynamics(
        model.dynamics, data.system, train, validation, config.dynamics, config.starts, run
    )
    return readings, results


def dynamics_batches(data: TrainingData, readings: Tensor) -> tuple[Batch, Batch]:
    """What stage 3 learns from: training and validation trajectories."""
    visible = readings[..., : len(data.system.visible)]
    train, validation = (
        {
            "configurations": visible[index],
            "scene": data.scene_labels[index],
            "actions": data.actions[index],
            "labels": data.state_labels[index],
        }
        for index in (data.train, data.validation)
    )
    return train, validation


def label_range(system: System, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest and highest of (K, D) labels; of a periodic dimension, about the labels' mean."""
    low, high = labels.amin(0), labels.amax(0)
    for i, variable in enumerate(system.variables):
        if variable.periodic:
            angle = labels[:, i] * (2 * torch.pi / variable.range)
            middle = torch.atan2(angle.sin().mean(), angle.cos().mean())
            middle = middle * (variable.range / (2 * torch.pi))
            away = system.difference(labels[:, i : i + 1], middle.view(1, 1), [variable])
            low[i], high[i] = middle + away.amin(), middle + away.amax()
    return low, high


def train_drawing(
    autoencoder: Extrinsic,
    config: TrainConfig,
    data: TrainingData,
    run: Run,
    latents: Tensor,
    configurations: Tensor,
) -> dict[str, Any]:
    """The decoder of stage 2, from configurations (N, T+1, P) to the frames' latents.

    It comes after the dynamics, which say how the system moved between misread frames.
    """
    normalized = autoencoder.normalize(steady(configurations, data.system))
    foreground = foreground_of(data.system, to_float(data.sample()))
    source = LatentSource(autoencoder.bottleneck)
    decoder = PhysicalDecoderStage(autoencoder, source, foreground, config.weights)
    batches = data.split(latent=latents, frames=data.frames, configuration=normalized)
    return run.fit(decoder, batches, config.decoder, "physical-decoder")


def starting_direct(path: Path | None, system: str, sizes: DirectConfig) -> DirectDecoder | None:
    """The direct decoder to begin with, where a checkpoint is given.

    Args:
        path: Checkpoint of the same system, of any variant.
        system: Short name of the system.
        sizes: Sizes it must have.

    Raises:
        CheckpointError: The file cannot be used.
        ValueError: It is of another system or of other sizes, or there is none.
    """
    if path is None:
        return None
    model = load_checkpoint(path, "cpu")
    found = model.config.autoencoder.direct
    if model.system.name != system or found != sizes or sizes.patch is None:
        raise ValueError(
            f"direct_from: {path} has {found} of {model.system.name}; expected {sizes} of "
            f"{system}, with a patch"
        )
    return model.autoencoder.direct


def train_direct(
    autoencoder: Autoencoder,
    config: FitConfig,
    data: TrainingData,
    run: Run,
    configurations: Tensor,
) -> dict[str, float]:
    """The direct decoder, from configurations (N, T+1, P) to frames."""
    assert autoencoder.direct is not None
    normalized = autoencoder.normalize(steady(configurations, data.system))
    foreground = foreground_of(data.system, to_float(data.sample()))
    stage = DirectStage(autoencoder.direct, foreground)
    batches = data.split(frames=data.frames, configuration=normalized)
    return run.fit(stage, batches, config, "direct")


def train_intrinsic(
    autoencoder: Intrinsic, config: TrainConfig, data: TrainingData, run: Run
) -> dict[str, Any]:
    """The one autoencoder stage of an intrinsic variant."""
    sample = data.sample()
    foreground = foreground_of(data.system, to_float(sample))
    interpretability = Interpretability(config.weights, data.system).to(data.frames.device)
    stage = IntrinsicStage(autoencoder, sample, foreground, interpretability, config.weights)
    batches = data.split(frames=data.frames, **data.configuration_labels(autoencoder))
    return {"intrinsic": run.fit(stage, batches, config.intrinsic, "intrinsic")}
