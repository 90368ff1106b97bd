"""A physically interpretable world model: an autoencoder, learned dynamics, an estimator."""

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from piwm_gym.models import AutoencoderConfig, Dynamics, build_autoencoder
from piwm_gym.models.estimation import ESTIMATORS
from piwm_gym.models.vision import to_float
from piwm_gym.systems import Params, System, get_system, unknown


@dataclass(frozen=True)
class WorldModelConfig:
    """What a world model is made of.

    Attributes:
        system: Name of the physical system.
        autoencoder: Architecture of the autoencoder.
        parametrisation: What is learned of the dynamics.
        init: Default state estimator, ``"shooting"`` or ``"fd"``.
    """

    system: str = "cartpole"
    autoencoder: AutoencoderConfig = field(default_factory=AutoencoderConfig)
    parametrisation: str = "identifiable"
    init: str = "shooting"


@dataclass(frozen=True)
class ParamRow:
    """One row of :meth:`WorldModel.param_table`.

    Attributes:
        name: Learned quantity or physical parameter.
        unit: SI unit.
        value: The model's.
        reference: The real environment's.
        relative_error: Of the value, a fraction.
        learned: False for what the model was given: it agrees by construction.
    """

    name: str
    unit: str
    value: float
    reference: float
    relative_error: float
    learned: bool


class WorldModel(nn.Module):
    """Learned simulator of one system.

    Attributes:
        config: What it is made of.
        system: The physical system: names, units, equations.
        autoencoder: Frames to configurations and back.
        dynamics: Learned physical parameters.
        state_low: (D,) lowest state labels seen in training, SI units.
        state_high: (D,) highest ones.
        metadata: Provenance, filled when loaded from a checkpoint.
    """

    state_low: Tensor
    state_high: Tensor

    def __init__(self, config: WorldModelConfig) -> None:
        super().__init__()
        if config.init not in ESTIMATORS:
            raise ValueError(unknown("init", config.init, tuple(ESTIMATORS)))
        self.config = config
        self.system: System = get_system(config.system)
        self.autoencoder = build_autoencoder(config.autoencoder, self.system)
        self.dynamics = Dynamics(self.system, config.parametrisation)
        dimensions = len(self.system.variables)
        self.register_buffer("state_low", torch.full((dimensions,), -torch.inf))
        self.register_buffer("state_high", torch.full((dimensions,), torch.inf))
        self.metadata: dict[str, Any] = {}

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.dynamics.raw.device

    @property
    def params(self) -> Any:
        """The learned physical parameters, detached 0-d tensors and floats."""
        with torch.no_grad():
            return self.dynamics.params

    def param_table(self) -> list[ParamRow]:
        """Learned quantities, then physical parameters, beside the real environment's values."""
        reference, params = self.system.reference, self.params
        parametrisation = self.dynamics.parametrisation
        learned = parametrisation.from_params(params)
        truth = parametrisation.from_params(reference)
        rows = [
            _row(item.name, item.unit, value, true)
            for item, value, true in zip(parametrisation.learnables, learned, truth, strict=True)
        ]
        rows += [
            _row(f.name, f.metadata["unit"], getattr(params, f.name), getattr(reference, f.name))
            for f in fields(reference)
            if f.name not in self.dynamics.names
        ]
        return rows

    def _float_frames(self, frames: Tensor) -> Tensor:
        """Accept uint8 (..., H, W, 3) or float (..., 3, H, W) frames."""
        height, width = self.system.frame.size
        expected = (height, width, 3) if frames.dtype == torch.uint8 else (3, height, width)
        if tuple(frames.shape[-3:]) != expected or not (
            frames.dtype == torch.uint8 or frames.is_floating_point()
        ):
            raise ValueError(
                f"frames has shape {tuple(frames.shape)} and dtype {frames.dtype}; expected "
                f"(..., {height}, {width}, 3) uint8 or (..., 3, {height}, {width}) float in [0, 1]"
            )
        frames = frames.to(self.device)
        return to_float(frames) if frames.dtype == torch.uint8 else frames

    def encode_frames(self, frames: Tensor) -> Float[Tensor, "*B P"]:
        """Configurations of single frames, SI units.

        Args:
            frames: (..., H, W, 3) uint8, or (..., 3, H, W) float in [0, 1].
        """
        frames = self._float_frames(frames)
        flat = self.autoencoder.encode(frames.flatten(0, -4))
        return flat.unflatten(0, frames.shape[:-3])

    def encode(
        self,
        frames: Tensor,
        actions: Shaped[Tensor, "B S *A"],
        init: str | None = None,
        params: Params | None = None,
    ) -> Float[Tensor, "B D"]:
        """State at the last frame of a window.

        Args:
            frames: (B, T, H, W, 3) uint8 or (B, T, 3, H, W) float in [0, 1], T at least 2.
            actions: (B, T - 1) actions between the frames; ``actions[:, t]`` leads from frame t
                to frame t + 1.
            init: ``"shooting"`` or ``"fd"`` (last two frames only); default: the model's.
            params: Parameters to estimate with; default: the learned ones.

        Raises:
            ValueError: Wrong shapes, fewer than two frames, an unknown ``init``.
        """
        init = self.config.init if init is None else init
        if init not in ESTIMATORS:
            raise ValueError(unknown("init", init, tuple(ESTIMATORS)))
        if frames.ndim != 5 or frames.shape[1] < 2:
            raise ValueError(
                f"frames has shape {tuple(frames.shape)}; expected (B, T, ...) with T >= 2: "
                "velocities do not show in a single frame"
            )
        if tuple(actions.shape[:2]) != (frames.shape[0], frames.shape[1] - 1):
            raise ValueError(
                f"actions has shape {tuple(actions.shape)}; expected one action between "
                f"neighbouring frames, ({frames.shape[0]}, {frames.shape[1] - 1}, ...)"
            )
        params = self.params if params is None else params
        configurations = self.encode_frames(frames)
        return ESTIMATORS[init](self.system, configurations, actions.to(self.device), params)

    def step(
        self, state: Float[Tensor, "*B D"], action: Shaped[Tensor, "*A"]
    ) -> Float[Tensor, "*B D"]:
        """State one time step later, by the learned dynamics."""
        return self.system.transition(state, action, self.dynamics.params)

    def rollout(
        self,
        state: Float[Tensor, "B D"],
        actions: Shaped[Tensor, "B H *A"],
        params: Params | None = None,
    ) -> Float[Tensor, "B H D"]:
        """States after each of H actions; differentiable in state, actions and parameters."""
        params = self.dynamics.params if params is None else params
        return self.system.rollout(state, actions, params)

    def decode(self, states: Float[Tensor, "*B D"]) -> Float[Tensor, "*B 3 H W"]:
        """Frames of states, in [0, 1]. Differentiable except where a pixel is clipped."""
        flat = states.reshape(-1, states.shape[-1])[:, self.system.visible]
        frames = self.autoencoder.decode(flat).clamp(0, 1)
        return frames.unflatten(0, states.shape[:-1]) if states.ndim > 1 else frames[0]

    def in_distribution(self, state: Float[Tensor, "*B D"]) -> Bool[Tensor, "*B"]:
        """Whether a state lies within the range of the training labels."""
        return ((state >= self.state_low) & (state <= self.state_high)).all(-1)


def _row(name: str, unit: str, value: float | Tensor, reference: float | Tensor) -> ParamRow:
    """Row of the parameter table; what depends on a learned quantity is a tensor."""
    number, true = float(value), float(reference)
    error = abs(number - true) / true
    return ParamRow(name, unit, number, true, error, isinstance(value, Tensor))
