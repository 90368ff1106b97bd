"""What a world model is measured by; every number is against true states of test trajectories.

    0 ... c-T+1 ... c          context: T frames up to frame c
                    c ... c+30 forecast, under the recorded actions

All windows end at the same frames, so that numbers for different T compare like with like.
States beyond the real environment's termination are left out, and windows that contain one: the
data go a little beyond on purpose, but no episode does. Left out too is what is not in free
motion, where the system has a ground: there a bounce magnifies every error.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from piwm_gym.models.vision import to_float
from piwm_gym.systems import Params, System
from piwm_gym.world_model import WorldModel
from training.dataset import TrajectoryDataset
from training.foreground import foreground_of
from training.losses import foreground_error

HORIZON = 30
CONFUSED = 1.0
"""Distance (m) beyond which a place was taken for another one."""
WINDOWS = (2, 10, 20)
CHUNK = 512


def counted(system: System, states: Tensor, scenes: Tensor | None) -> Tensor:
    """Which of the states (N, T, D), with scenes (N, S), are not terminal and move freely."""
    scenes = None if scenes is None else scenes[:, None]
    return ~system.terminal(states) & system.in_free_motion(states, scenes)


class TestSet:
    """Test trajectories as tensors on the model's device.

    Attributes:
        single: bool (N, T+1) which frames are looked at one by one: of states that are not terminal
            and move freely.
        frames: uint8 (K, H, W, 3) those.
        states: (K, D) their states.
        scenes: (K, S) their scenes, or None where the system has none.
        configurations: (K, P) what there is to see: visible dimensions and scene.
        trajectories: (K,) the trajectory that each comes from.
    """

    __test__ = False  # not a test case, whatever pytest thinks of the name

    def __init__(
        self,
        dataset: TrajectoryDataset,
        system: System,
        device: torch.device,
        index: np.ndarray | None = None,
        every: int = 1,
    ) -> None:
        """Take the trajectories of ``index``; by default those of the test split.

        Of single frames, which look much like their neighbours, every so many are enough.
        """
        index = dataset.split()["test"] if index is None else index
        self._frames = torch.from_numpy(dataset.frames[index]).to(device)
        self._actions = torch.from_numpy(dataset.actions[index]).to(device)
        self._states = torch.from_numpy(dataset.states[index]).to(device)
        scenes = torch.from_numpy(dataset.scenes[index]).to(device)
        self._scenes = scenes if system.scene_variables else None
        alive = counted(system, self._states, self._scenes)
        self.single = alive.clone()
        self.single[:, torch.arange(alive.shape[1], device=device) % every > 0] = False
        self.frames, self.states = self._frames[self.single], self._states[self.single]
        self.trajectories = self.single.nonzero()[:, 0]
        self.scenes = None if self._scenes is None else self._scenes[self.trajectories]
        self.configurations = torch.cat(
            (self.states[:, system.visible], scenes[self.trajectories]), dim=1
        )
        self._ends = range(max(WINDOWS) - 1, self._actions.shape[1] - HORIZON + 1)
        first = 1 - max(WINDOWS)
        self._valid = self._gather(alive, first, HORIZON + 1, check=False).all(1)

    def _gather(self, tensor: Tensor, first: int, last: int, check: bool = True) -> Tensor:
        """(M, last - first, ...) pieces around the context ends, one per window."""
        pieces = torch.cat([tensor[:, end + first : end + last] for end in self._ends])
        return pieces[self._valid] if check else pieces

    @torch.no_grad()
    def readings(self, model: WorldModel) -> Tensor:
        """(N, T+1, P) configurations that a model reads, SI units; NaN of frames between."""
        wanted = self.single.clone()
        wanted[:, : self._ends[-1] + 1] = True  # windows are read whole
        parts = [model.encode_frames(part) for part in self._frames[wanted].split(CHUNK)]
        read = torch.cat(parts)
        readings = read.new_full((*wanted.shape, read.shape[-1]), torch.nan)
        readings[wanted] = read
        return readings

    def contexts(self, readings: Tensor, window: int) -> tuple[Tensor, Tensor]:
        """(M, T, P) readings of the contexts and (M, T - 1, ...) actions between them."""
        first = 1 - window
        return self._gather(readings, first, 1), self._gather(self._actions, first, 0)

    @property
    def future_actions(self) -> Tensor:
        """(M, H, ...) actions of the forecasts."""
        return self._gather(self._actions, 0, HORIZON)

    @property
    def futures(self) -> Tensor:
        """(M, H + 1, D) true states of the forecasts, the start included."""
        return self._gather(self._states, 0, HORIZON + 1)

    @property
    def future_scenes(self) -> Tensor | None:
        """(M, S) scenes of the windows, or None where the system has none."""
        if self._scenes is None:
            return None
        return self._scenes.repeat(len(self._ends), 1)[self._valid]


@dataclass(frozen=True)
class Start:
    """Where forecasts start.

    Attributes:
        state: (M, D) states.
        scene: (M, S) scenes, or None where the system has none.
    """

    state: Tensor
    scene: Tensor | None


def rmse(error: Tensor) -> np.ndarray:
    """Root mean squared error over the first dimension."""
    return error.double().square().mean(0).sqrt().cpu().numpy()


def reading_errors(model: WorldModel, test: TestSet, readings: Tensor) -> Tensor:
    """(K, P) errors of the configuration read from single frames, SI units."""
    system = model.system
    return system.difference(readings[test.single], test.configurations, system.configuration)


def misplacement(errors: Tensor) -> dict[str, float]:
    """How far off single frames place a car, which drives about in a plane.

    Args:
        errors: (K, P) errors of readings whose first two numbers are x and y, m.

    Returns:
        The share of frames that place it more than a metre off, as if in another part of the
        course, and the median distance, m.
    """
    distance = errors[:, :2].norm(dim=1)
    share = 100 * float((distance > CONFUSED).float().mean())
    return {"misplaced_percent": share, "median_distance": float(distance.median())}


@torch.no_grad()
def estimate(
    model: WorldModel,
    test: TestSet,
    readings: Tensor,
    window: int,
    init: str = "shooting",
    params: Params | None = None,
) -> Start:
    """States estimated at the ends of the contexts, and scenes estimated from the contexts."""
    read, actions = test.contexts(readings, window)
    return Start(*model.estimate(read, actions, init, params))


def true_start(test: TestSet) -> Start:
    """The true states at the ends of the contexts, and the true scenes."""
    return Start(test.futures[:, 0], test.future_scenes)


@torch.no_grad()
def forecast_errors(
    model: WorldModel, test: TestSet, start: Start, params: Params | None = None
) -> Tensor:
    """(M, H + 1, D) errors of rollouts of the mean motion, SI units."""
    params = model.params if params is None else params
    states = model.system.rollout(start.state, test.future_actions, params, scene=start.scene)
    states = torch.cat((start.state[:, None], states), dim=1)
    return model.system.difference(states, test.futures)


@torch.no_grad()
def decoding(model: WorldModel, test: TestSet) -> dict[str, Any]:
    """Faithfulness of frames drawn from true states: foreground error, state re-read from them."""
    states, frames, truth = test.states[::2], test.frames[::2], test.configurations[::2]
    scenes = truth[:, len(model.system.visible) :]
    foreground = foreground_of(model.system, to_float(frames[::8]))
    errors, reread = [], []
    for part in torch.arange(len(states)).split(CHUNK):
        decoded = decode(model, states[part], scenes[part])
        error = foreground_error(decoded, to_float(frames[part]), foreground)
        errors.append(float(error) * len(part))
        read = model.autoencoder.encode(decoded)
        reread.append(model.system.difference(read, truth[part], model.system.configuration))
    return {
        "foreground_mse": sum(errors) / len(states),
        "reread_rmse": _short(of_configuration(model.system, rmse(torch.cat(reread)))),
    }


def decode(model: WorldModel, states: Tensor, scenes: Tensor) -> Tensor:
    """Frames of (K, D) states in (K, S) scenes; S may be 0."""
    return model.decode(states, scenes) if scenes.shape[1] else model.decode(states)


def of_configuration(system: System, values: np.ndarray) -> dict[str, float]:
    """(P,) errors under the names of the visible dimensions; the scene's as one, ``scene``."""
    visible = len(system.visible)
    names = [system.state_names[i] for i in system.visible]
    named = dict(zip(names, values[:visible], strict=True))
    if system.scene_variables:
        named["scene"] = float(np.sqrt((values[visible:] ** 2).mean()))
    return named


def of_state(system: System, values: np.ndarray) -> dict[str, float]:
    """(D,) errors under the names of the dimensions that are estimated."""
    return {system.state_names[i]: values[i] for i in system.estimated}


def _short(values: dict[str, float]) -> dict[str, float]:
    """Four significant digits."""
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def summary(model: WorldModel, test: TestSet) -> dict[str, Any]:
    """The claims that a checkpoint carries, and that a test holds it to."""
    system, futures, readings = model.system, test.futures, test.readings(model)
    single = reading_errors(model, test, readings)
    forecasts = {}
    for window in WINDOWS:
        start = estimate(model, test, readings, window, model.config.init)
        errors = forecast_errors(model, test, start)
        forecasts[str(window)] = _short(of_state(system, rmse(errors[:, -1])))
    persistence = rmse(system.difference(futures[:, -1], futures[:, 0]))
    return {
        "single_frame_rmse": _short(of_configuration(system, rmse(single))),
        "forecast_rmse_30_steps_by_window": forecasts,
        "persistence_rmse_30_steps": _short(of_state(system, persistence)),
        "decoding": decoding(model, test),
        "relative_parameter_error": {
            row.name: float(f"{row.relative_error:.4g}")
            for row in model.param_table()
            if row.name in model.dynamics.names
        },
    }
