"""What a world model is measured by; every number is against true states of test trajectories.

    0 ... c-T+1 ... c          context: T frames up to frame c
                    c ... c+30 forecast, under the recorded actions

All windows end at the same frames, so that numbers for different T compare like with like.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from piwm_gym.models.vision import to_float
from piwm_gym.systems import Params
from piwm_gym.world_model import WorldModel
from training.dataset import TrajectoryDataset
from training.losses import foreground_error

HORIZON = 30
WINDOWS = (2, 10, 20)
CHUNK = 512


class TestSet:
    """Test trajectories as tensors on the model's device."""

    __test__ = False  # not a test case, whatever pytest thinks of the name

    def __init__(self, dataset: TrajectoryDataset, device: torch.device) -> None:
        index = dataset.split()["test"]
        self.frames = torch.from_numpy(dataset.frames[index]).to(device)
        self.actions = torch.from_numpy(dataset.actions[index]).to(device)
        self.states = torch.from_numpy(dataset.states[index]).to(device)
        self.ends = range(max(WINDOWS) - 1, self.actions.shape[1] - HORIZON + 1)
        """Frames at which contexts end."""

    def contexts(self, tensor: Tensor, length: int) -> Tensor:
        """(M, T, ...) pieces of (N, T+1, ...) tensors, one for each trajectory and end."""
        return torch.cat([tensor[:, end - length + 1 : end + 1] for end in self.ends])

    def context_actions(self, length: int) -> Tensor:
        """(M, T - 1, ...) actions inside the contexts."""
        return torch.cat([self.actions[:, end - length + 1 : end] for end in self.ends])

    @property
    def future_actions(self) -> Tensor:
        """(M, H, ...) actions of the forecasts."""
        return torch.cat([self.actions[:, end : end + HORIZON] for end in self.ends])

    @property
    def futures(self) -> Tensor:
        """(M, H + 1, D) true states of the forecasts, the start included."""
        return torch.cat([self.states[:, end : end + HORIZON + 1] for end in self.ends])


def rmse(error: Tensor, dims: tuple[int, ...] = (0,)) -> np.ndarray:
    """Root mean squared error over the given dimensions."""
    return error.double().square().mean(dims).sqrt().cpu().numpy()


@torch.no_grad()
def configurations(model: WorldModel, frames: Tensor) -> Tensor:
    """Configurations of (N, T, H, W, 3) uint8 frames, chunk by chunk."""
    parts = [model.encode_frames(part) for part in frames.flatten(0, 1).split(CHUNK)]
    return torch.cat(parts).unflatten(0, frames.shape[:2])


@torch.no_grad()
def single_frame_rmse(model: WorldModel, test: TestSet) -> np.ndarray:
    """(P,) error of the visible dimensions read from single frames, SI units."""
    truth = test.states[..., model.system.visible]
    return rmse(configurations(model, test.frames) - truth, (0, 1))


@torch.no_grad()
def estimate(
    model: WorldModel,
    test: TestSet,
    window: int,
    init: str = "shooting",
    params: Params | None = None,
) -> Tensor:
    """(M, D) states estimated at the ends of the contexts."""
    frames, actions = test.contexts(test.frames, window), test.context_actions(window)
    parts = zip(frames.split(64), actions.split(64), strict=True)
    return torch.cat([model.encode(f, a, init=init, params=params) for f, a in parts])


@torch.no_grad()
def forecast_errors(
    model: WorldModel, test: TestSet, start: Tensor, params: Params | None = None
) -> Tensor:
    """(M, H + 1, D) errors of rollouts from estimated states, SI units."""
    params = model.params if params is None else params
    states = model.system.rollout(start, test.future_actions, params)
    return torch.cat((start[:, None], states), dim=1) - test.futures


@torch.no_grad()
def decoding(model: WorldModel, test: TestSet) -> dict[str, Any]:
    """Faithfulness of frames drawn from true states: foreground error, state re-read from them."""
    visible = model.system.visible
    states, frames = test.states.flatten(0, 1)[::2], test.frames.flatten(0, 1)[::2]
    median = to_float(frames[::8]).median(dim=0).values
    errors, reread = [], []
    for state, frame in zip(states.split(CHUNK), frames.split(CHUNK), strict=True):
        decoded = model.decode(state)
        errors.append(float(foreground_error(decoded, to_float(frame), median)) * len(state))
        reread.append(model.autoencoder.encode(decoded) - state[:, visible])
    return {
        "foreground_mse": sum(errors) / len(states),
        "reread_rmse": _named(model, rmse(torch.cat(reread))),
    }


def _named(model: WorldModel, values: np.ndarray) -> dict[str, float]:
    """Numbers under the names of the visible dimensions, or of all if there are as many."""
    names = model.system.state_names
    if len(values) != len(names):
        names = tuple(names[i] for i in model.system.visible)
    return {name: float(f"{value:.4g}") for name, value in zip(names, values, strict=True)}


def summary(model: WorldModel, dataset: TrajectoryDataset) -> dict[str, Any]:
    """The claims that a checkpoint carries, and that a test holds it to."""
    test = TestSet(dataset, model.device)
    futures = test.futures
    forecasts = {}
    for window in WINDOWS:
        errors = forecast_errors(model, test, estimate(model, test, window))
        forecasts[str(window)] = _named(model, rmse(errors[:, -1]))
    return {
        "single_frame_rmse": _named(model, single_frame_rmse(model, test)),
        "forecast_rmse_30_steps_by_window": forecasts,
        "persistence_rmse_30_steps": _named(model, rmse(futures[:, -1] - futures[:, 0])),
        "decoding": decoding(model, test),
        "relative_parameter_error": {
            row.name: float(f"{row.relative_error:.4g}")
            for row in model.param_table()
            if row.name in model.dynamics.names
        },
    }
