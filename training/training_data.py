"""What training sees of a data set: frames, actions and weak labels; no true states."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from piwm_gym.courses import DEFAULT_COURSE
from piwm_gym.models import Autoencoder
from piwm_gym.systems import Params, System, get_system
from piwm_gym.world_model import WorldModel
from training.dataset import TrajectoryDataset
from training.fit import Batch
from training.smoothing import fuse, smooth
from training.supervision import Supervision, weak_labels

VALIDATION_STRIDE = 4
"""Every fourth frame of the validation trajectories is enough to select by."""
SAMPLE_FRAMES = 512


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
        system = system_of(dataset.manifest)
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


def system_of(manifest: Mapping[str, Any]) -> System:
    """The system of a data set's manifest, in the place where it was collected."""
    system = get_system(manifest["system"])
    asset = manifest.get("asset")
    return system if asset is None else system.with_asset(torch.tensor(asset))


def check_system(manifest: Mapping[str, Any], expected: str) -> None:
    """Raise ValueError if data are of another system than the expected one."""
    found = manifest["system"]
    if found != expected:
        raise ValueError(
            f"data: they are of {found!r}; expected data of {expected!r}, such as "
            f"`python -m training.collect {expected}` collects"
        )


def check_place(model: WorldModel, manifest: Mapping[str, Any]) -> None:
    """Raise ValueError if data are of another system than a model, or of another place."""
    check_system(manifest, model.system.name)
    found, expected = system_of(manifest).asset, model.system.asset
    if found is not None and expected is not None and not torch.equal(found, expected.cpu()):
        trained = model.metadata.get("data", {}).get("course", DEFAULT_COURSE)
        raise ValueError(
            f"data: the course is {manifest.get('course', DEFAULT_COURSE)!r}, and its path "
            f"not that of {trained!r}, with which the checkpoint was trained; expected data of the "
            "same course"
        )


def labelled_truth(dataset: TrajectoryDataset, system: System) -> tuple[np.ndarray, np.ndarray]:
    """What labels are drawn of, (N, T+1, D+S): states and scenes; and the range of each."""
    scenes = np.repeat(dataset.scenes[:, None], dataset.states.shape[1], axis=1)
    scene_ranges = np.array([v.range for v in system.scene_variables], dtype=np.float32)
    return (
        np.concatenate((dataset.states, scenes), axis=-1),
        np.concatenate((system.ranges.numpy(), scene_ranges)),
    )


def steady(configurations: Tensor, system: System) -> Tensor:
    """Configurations (N, T+1, P) with the scene of each trajectory's mean, as a rollout has it."""
    state, scene = configurations.tensor_split((len(system.visible),), dim=-1)
    return torch.cat((state, scene.mean(1, keepdim=True).expand_as(scene)), dim=-1)


__all__ = ["TrainingData", "check_place", "check_system", "labelled_truth", "steady", "system_of"]
