"""Networks that judge decoded frames; trained once on real frames, part of no model.

A *reader* regresses the true configuration, so that decoded frames can be read by somebody who
did not draw them. A *pixel controller* imitates the expert from single frames; the paper's
Table 2 compares its actions on real and on reconstructed frames. True states are allowed here:
nothing of this reaches a checkpoint.

A probe's file is named after all that it was trained on: one of other data, of another course or of
another fold, which may have seen what this one is to be tested on, is not taken for it.
"""

import hashlib
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from piwm_gym.models import Autoencoder
from piwm_gym.models.physical import READERS
from piwm_gym.models.vision import VisionEncoder, to_float
from piwm_gym.registration import DEFAULT_VARIANT
from piwm_gym.systems import System
from training.config import architecture
from training.dataset import TrajectoryDataset
from training.fit import Batch, FitConfig, Stage, Terms, fit
from training.run import key

PROBE_FIT = FitConfig(
    epochs=15, batch_size=128, samples_per_epoch=20_000, warmup_epochs=1, patience=100
)


class FrameNet(nn.Module):
    """A frame to a few numbers.

    Attributes:
        sizes: What it is made of, JSON-able.
    """

    def __init__(self, system: System, outputs: int) -> None:
        super().__init__()
        networks = architecture(DEFAULT_VARIANT, system.name)
        vision = networks.vision
        self.vision = VisionEncoder(vision, system.frame.background)
        grid = vision.grid(system.frame.size)
        reader = READERS[networks.reader]
        self.read = reader(networks.transformer, grid, vision.token_dim, outputs)
        self.sizes = [asdict(vision), asdict(networks.transformer), networks.reader, outputs]

    def forward(self, frames: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B O"]:
        """Numbers of float frames."""
        return self.read(self.vision(frames))


class _Regression(Stage):
    def __init__(self, net: FrameNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: Batch) -> tuple[Tensor, Terms]:
        loss = F.mse_loss(self.net(to_float(batch["frames"])), batch["target"])
        return loss, {}


class _Imitation(Stage):
    def __init__(self, net: FrameNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: Batch) -> tuple[Tensor, Terms]:
        output, target = self.net(to_float(batch["frames"])), batch["target"]
        loss = F.mse_loss if target.is_floating_point() else F.cross_entropy
        return loss(output, target), {}


def _fit(
    stage: "_Regression | _Imitation",
    dataset: TrajectoryDataset,
    target: np.ndarray,
    folder: Path,
    config: FitConfig,
) -> None:
    split = dataset.split()
    train, validation = (
        {
            "frames": torch.from_numpy(dataset.frames[split[name]]).flatten(0, 1)[::stride],
            "target": torch.from_numpy(target[split[name]]).flatten(0, 1)[::stride],
        }
        for name, stride in (("train", 1), ("validation", 4))
    )
    shown = hashlib.sha256(np.ascontiguousarray(target).tobytes()).hexdigest()
    trained_on = key(dataset.description, shown, stage.net.sizes, asdict(config))
    name = f"{type(stage).__name__.strip('_').lower()}-{trained_on}"
    fit(stage, train, validation, config, folder, name)


def train_reader(
    dataset: TrajectoryDataset, system: System, folder: Path, config: FitConfig = PROBE_FIT
) -> FrameNet:
    """Network from frames to the normalised true configuration."""
    torch.manual_seed(config.seed)
    scale = Autoencoder(system)
    net = FrameNet(system, scale.num_features)
    scenes = np.repeat(dataset.scenes[:, None], dataset.states.shape[1], axis=1)
    truth = np.concatenate((dataset.states[..., system.visible], scenes), axis=-1)
    target = scale.normalize(torch.from_numpy(truth)).numpy()
    _fit(_Regression(net), dataset, target.astype(np.float32), folder, config)
    return net.eval()


def train_pixel_controller(
    dataset: TrajectoryDataset,
    system: System,
    actions: np.ndarray,
    folder: Path,
    config: FitConfig = PROBE_FIT,
) -> FrameNet:
    """Network from single frames to logits of discrete or values of continuous actions.

    Args:
        dataset: Real frames.
        system: Their system.
        actions: int64 (N, T+1), or float32 (N, T+1, A), what the expert does in each state.
        folder: Where the resumable state is kept.
        config: How to optimise.
    """
    torch.manual_seed(config.seed)
    continuous = actions.dtype.kind == "f"
    net = FrameNet(system, actions.shape[-1] if continuous else int(actions.max()) + 1)
    _fit(_Imitation(net), dataset, actions, folder, config)
    return net.eval()
