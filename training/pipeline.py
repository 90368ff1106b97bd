"""From a data set to a trained world model: the stages in order, with everything cached.

    <runs>/<system>/vision-<latent>-<key>/     stage 1 and its latents, shared by noise levels
    <runs>/<system>/<variant>-<noise>-<key>/   the other stages and their TensorBoard log

A key is a hash of all that the content depends on: settings and data. Interrupted work goes on
where it was; finished work is not repeated.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from piwm_gym.models import Autoencoder, Extrinsic, Intrinsic
from piwm_gym.models.vision import to_float
from piwm_gym.systems import Params, System, get_system
from piwm_gym.world_model import WorldModel, WorldModelConfig
from training import distributed
from training.config import TrainConfig
from training.dataset import TrajectoryDataset
from training.dynamics import train_dynamics
from training.fit import Batch, FitConfig
from training.foreground import foreground_of
from training.run import Run
from training.smoothing import fuse, smooth
from training.stages import (
    DirectStage,
    GlimpseStage,
    Interpretability,
    IntrinsicStage,
    LatentSource,
    PhysicalDecoderStage,
    PhysicalEncoderStage,
    VisionStage,
)
from training.supervision import Supervision, weak_labels
from training.turning import turned_frames, turned_variable

VALIDATION_STRIDE = 4
"""Every fourth frame of the validation trajectories is enough to select by."""
SAMPLE_FRAMES = 512
TURNED = 30_000
"""Turned frames beside those of the data, where there are any."""


@dataclass(frozen=True)
class TrainingData:
    """What training sees: frames, actions and weak labels, split by trajectory; no true states.

    Attributes:
        system: The system.
        frames: uint8 (N, T+1, H, W, 3).
        actions: (N, T) or (N, T, A).
        proxy_mean: float (N, T+1, D+S), SI units, of the state and then of the scene: that is
            constant in a trajectory, but labelled anew at each step like all that a frame shows.
        proxy_std: The same shape, SI units.
        train: Indices of the training trajectories.
        validation: Indices of the validation trajectories.
        description: How the data were made, for the checkpoint.
    """

    system: System
    frames: Tensor
    actions: Tensor
    proxy_mean: Tensor
    proxy_std: Tensor
    train: Tensor
    validation: Tensor
    description: dict[str, Any]

    @classmethod
    def prepare(
        cls, dataset: TrajectoryDataset, supervision: Supervision, device: torch.device
    ) -> "TrainingData":
        """Draw the labels and move everything to the device."""
        system = system_of(dataset)
        labelled, ranges = labelled_truth(dataset, system)
        labels = weak_labels(labelled, ranges, supervision)
        split = dataset.split()
        return cls(
            system,
            torch.from_numpy(dataset.frames).to(device),
            torch.from_numpy(dataset.actions).to(device),
            torch.from_numpy(labels.proxy_mean).to(device),
            torch.from_numpy(labels.proxy_std).to(device),
            torch.from_numpy(split["train"]).to(device),
            torch.from_numpy(split["validation"]).to(device),
            {**dataset.description, "supervision": asdict(supervision)},
        )

    def sample(self) -> Tensor:
        """Some training frames, always the same ones."""
        generator = torch.Generator().manual_seed(0)
        device = self.frames.device
        rows = torch.randint(len(self.train), (SAMPLE_FRAMES,), generator=generator).to(device)
        times = torch.randint(self.frames.shape[1], (SAMPLE_FRAMES,), generator=generator)
        return self.frames[self.train[rows], times.to(device)]

    def split(self, **tensors: Tensor) -> tuple[Batch, Batch]:
        """Training and validation batches of (N, T+1, ...) tensors, frame by frame."""
        train = {name: t[self.train].flatten(0, 1) for name, t in tensors.items()}
        validation = {
            name: t[self.validation].flatten(0, 1)[::VALIDATION_STRIDE]
            for name, t in tensors.items()
        }
        return train, validation

    @property
    def state_labels(self) -> Tensor:
        """(N, T+1, D) labels of the state."""
        return self.proxy_mean[..., : len(self.system.variables)]

    @property
    def scene_labels(self) -> Tensor:
        """(N, S) labels of the scene, averaged over a trajectory, as it never changes in one."""
        return self.proxy_mean[..., len(self.system.variables) :].mean(1)

    def of_configuration(self, proxies: Tensor) -> Tensor:
        """(N, T+1, P) what frames show, of numbers of the state and the scene."""
        dimensions = range(len(self.system.variables), proxies.shape[-1])
        return proxies[..., [*self.system.visible, *dimensions]]

    @property
    def configurations(self) -> Tensor:
        """(N, T+1, P) labels of the configuration: visible dimensions and scene."""
        return steady(self.of_configuration(self.proxy_mean), self.system)

    def configuration_labels(self, autoencoder: Autoencoder) -> dict[str, Tensor]:
        """Normalised labels of the configuration, and the proxies' spread."""
        return {
            "proxy_mean": autoencoder.normalize(self.configurations),
            "proxy_std": autoencoder.normalize_std(self.of_configuration(self.proxy_std)),
        }

    def guess(self, readings: Tensor, params: Params) -> Tensor:
        """Best guess of every configuration, (N, T+1, P): labels, readings and motion together.

        Exact labels leave nothing to guess.
        """
        std = self.of_configuration(self.proxy_std)
        fused = steady(fuse(self.system, readings, self.configurations, std), self.system)
        return smooth(self.system, fused, self.actions, params) if (std > 0).any() else fused


def system_of(dataset: TrajectoryDataset) -> System:
    """The system of a data set, in the place where it was collected."""
    system = get_system(dataset.manifest["system"])
    asset = dataset.manifest.get("asset")
    return system if asset is None else system.with_asset(torch.tensor(asset))


def labelled_truth(dataset: TrajectoryDataset, system: System) -> tuple[np.ndarray, np.ndarray]:
    """What labels are drawn of, (N, T+1, D+S): states and scenes; and the range of each."""
    scenes = np.repeat(dataset.scenes[:, None], dataset.states.shape[1], axis=1)
    scene_ranges = np.array([v.range for v in system.scene_variables], dtype=np.float32)
    return (
        np.concatenate((dataset.states, scenes), axis=-1),
        np.concatenate((system.ranges.numpy(), scene_ranges)),
    )


def train_variant(config: TrainConfig, data: TrainingData, run: Run) -> tuple[WorldModel, dict]:
    """Train all stages of one variant.

    Returns:
        The model, and what each stage measured: losses on validation labels, epochs, seconds,
        and for the dynamics every starting point with the values it led to.
    """
    device = data.frames.device
    torch.manual_seed(config.vision.seed)
    model = WorldModel(
        WorldModelConfig(data.system.name, config.autoencoder, config.parametrisation),
        data.system.asset,
    ).to(device)
    autoencoder = model.autoencoder
    latents: Tensor | None = None
    if isinstance(autoencoder, Extrinsic):
        results, latents = train_reading(autoencoder, config, data, run)
    else:
        results = train_intrinsic(autoencoder, config, data, run)
    readings, results["dynamics"] = learn_dynamics(model, config, data, run)
    guess = data.guess(readings, model.params)
    if isinstance(autoencoder, Extrinsic):
        assert latents is not None
        if config.refinement.epochs:
            results["refinement"] = refine_reading(autoencoder, config, data, run, latents, guess)
            guess = data.guess(encode_all(autoencoder, data.frames), model.params)
        results["decoder"] = train_drawing(autoencoder, config, data, run, latents, guess)
    if autoencoder.direct is not None:
        results["direct"] = train_direct(autoencoder, config.direct, data, run, guess)
    estimated = data.system.estimated
    low, high = label_range(data.system, data.state_labels[data.train].flatten(0, 1))
    model.state_low[estimated] = low[estimated]
    model.state_high[estimated] = high[estimated]
    round_weights(model)
    return model.eval(), results


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


def train_reading(
    autoencoder: Extrinsic, config: TrainConfig, data: TrainingData, run: Run
) -> tuple[dict[str, Any], Tensor]:
    """Stage 1, and of stage 2 the encoder; then the latents of all frames."""
    latent = config.autoencoder.variant.split("-")[1]
    shape = {**asdict(config.autoencoder), "variant": latent, "transformer": None}
    for later in ("reader", "glimpse", "drawer", "direct"):
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
    autoencoder.requires_grad_(False).eval()

    source = LatentSource(autoencoder.bottleneck)
    cached = cache_latents(autoencoder, source, data.frames, shared / "latents.npy")
    results["vision"]["codes_used"] = (
        len(np.unique(cached.cpu())) if not cached.is_floating_point() else 0
    )
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
    source = LatentSource(autoencoder.bottleneck)
    interpretability = Interpretability(config.weights, data.system).to(data.frames.device)
    stage = PhysicalEncoderStage(autoencoder, source, interpretability)
    stage.requires_grad_(True).train()
    results = run.fit(stage, data.split(latent=latents, **labels), settings, name)
    stage.requires_grad_(False).eval()
    return results


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
    stage.requires_grad_(True).train()
    results = run.fit(stage, (train, validation), settings, name)
    stage.requires_grad_(False).eval()
    return results


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
    decoder.requires_grad_(True).train()
    batches = data.split(latent=latents, frames=data.frames, configuration=normalized)
    return run.fit(decoder, batches, config.decoder, "physical-decoder")


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
    stage = DirectStage(autoencoder.direct, foreground).requires_grad_(True).train()
    batches = data.split(frames=data.frames, configuration=normalized)
    results = run.fit(stage, batches, config, "direct")
    autoencoder.direct.requires_grad_(False).eval()
    return results


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


@torch.no_grad()
def cache_latents(
    autoencoder: Extrinsic, source: LatentSource, frames: Tensor, path: Path
) -> Tensor:
    """Latents of all frames, computed once per vision stage and kept beside it."""
    if distributed.rank() == 0 and not path.exists():
        latents = latents_of(autoencoder, source, frames.flatten(0, 1)).unflatten(
            0, frames.shape[:2]
        )
        temporary = path.with_suffix(".tmp.npy")
        np.save(temporary, latents.numpy())
        temporary.replace(path)
    distributed.barrier()
    return torch.from_numpy(np.load(path)).to(frames.device)


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


def steady(configurations: Tensor, system: System) -> Tensor:
    """Configurations (N, T+1, P) with the scene of each trajectory's mean, as a rollout has it."""
    state, scene = configurations.tensor_split((len(system.visible),), dim=-1)
    return torch.cat((state, scene.mean(1, keepdim=True).expand_as(scene)), dim=-1)


def key(*parts: object) -> str:
    """Short hash of JSON-able settings."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]
