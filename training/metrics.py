"""What a world model is measured by; every number is against true states of test trajectories.

    0 ... c-T+1 ... c          context: T frames up to frame c
                    c ... c+30 forecast, under the recorded actions

All windows end at the same frames, so that numbers for different T compare like with like.
States beyond the real environment's termination are left out, and windows that contain one: the
data go a little beyond on purpose, but no episode does.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from piwm_gym.models.vision import to_float
from piwm_gym.systems import Params, System
from piwm_gym.world_model import WorldModel
from training.dataset import TrajectoryDataset
from training.losses import foreground_error

HORIZON = 30
WINDOWS = (2, 10, 20)
CHUNK = 512


class TestSet:
    """Test trajectories as tensors on the model's device.

    Attributes:
        frames: uint8 (K, H, W, 3) single frames of states that are not terminal.
        states: (K, D) their states.
        trajectories: (K,) the trajectory that each comes from.
    """

    __test__ = False  # not a test case, whatever pytest thinks of the name

    def __init__(
        self,
        dataset: TrajectoryDataset,
        system: System,
        device: torch.device,
        index: np.ndarray | None = None,
    ) -> None:
        """Take the trajectories of ``index``; by default those of the test split."""
        index = dataset.split()["test"] if index is None else index
        self._frames = torch.from_numpy(dataset.frames[index]).to(device)
        self._actions = torch.from_numpy(dataset.actions[index]).to(device)
        self._states = torch.from_numpy(dataset.states[index]).to(device)
        alive = ~system.terminal(self._states)
        self.frames, self.states = self._frames[alive], self._states[alive]
        self.trajectories = alive.nonzero()[:, 0]
        self._ends = range(max(WINDOWS) - 1, self._actions.shape[1] - HORIZON + 1)
        first = 1 - max(WINDOWS)
        self._valid = self._gather(alive, first, HORIZON + 1, check=False).all(1)

    def _gather(self, tensor: Tensor, first: int, last: int, check: bool = True) -> Tensor:
        """(M, last - first, ...) pieces around the context ends, one per window."""
        pieces = torch.cat([tensor[:, end + first : end + last] for end in self._ends])
        return pieces[self._valid] if check else pieces

    def contexts(self, window: int) -> tuple[Tensor, Tensor]:
        """(M, T, H, W, 3) frames of the contexts and (M, T - 1, ...) actions between them."""
        first = 1 - window
        return self._gather(self._frames, first, 1), self._gather(self._actions, first, 0)

    @property
    def future_actions(self) -> Tensor:
        """(M, H, ...) actions of the forecasts."""
        return self._gather(self._actions, 0, HORIZON)

    @property
    def futures(self) -> Tensor:
        """(M, H + 1, D) true states of the forecasts, the start included."""
        return self._gather(self._states, 0, HORIZON + 1)


def rmse(error: Tensor) -> np.ndarray:
    """Root mean squared error over the first dimension."""
    return error.double().square().mean(0).sqrt().cpu().numpy()


@torch.no_grad()
def single_frame_rmse(model: WorldModel, test: TestSet) -> np.ndarray:
    """(P,) error of the visible dimensions read from single frames, SI units."""
    read = torch.cat([model.encode_frames(part) for part in test.frames.split(CHUNK)])
    return rmse(read - test.states[:, model.system.visible])


@torch.no_grad()
def estimate(
    model: WorldModel,
    test: TestSet,
    window: int,
    init: str = "shooting",
    params: Params | None = None,
) -> Tensor:
    """(M, D) states estimated at the ends of the contexts."""
    frames, actions = test.contexts(window)
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
    states, frames = test.states[::2], test.frames[::2]
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


def summary(model: WorldModel, test: TestSet) -> dict[str, Any]:
    """The claims that a checkpoint carries, and that a test holds it to."""
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
