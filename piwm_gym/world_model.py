"""A physically interpretable world model: an autoencoder, learned dynamics, an estimator."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped, UInt8
from torch import Tensor, nn

from piwm_gym.frames import check_drawn, float_frames
from piwm_gym.fused_rollout import FusedRollout, compiled_rollout
from piwm_gym.models import AutoencoderConfig, Dynamics, build_autoencoder
from piwm_gym.models.estimation import ESTIMATORS
from piwm_gym.models.matching import matched
from piwm_gym.models.recognition import recognized
from piwm_gym.param_table import ParamRow, param_rows
from piwm_gym.surroundings import (
    check_choices,
    check_noise,
    check_rollout,
    check_states,
    check_tensor,
    check_window,
    spread_scene,
)
from piwm_gym.systems import Params, System, get_system, unknown

UNTRAINED_STD = 0.01
"""How far readings scatter, as a share of the range, before training has told."""


SHOWN = 0.5
"""Share of a window's frames in which the system is recognized where the window shows it."""


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


class WorldModel(nn.Module):
    """Learned simulator of one system.

    Args:
        config: What it is made of.
        asset: The system's asset, see :attr:`System.asset`; default: the system's own.

    Attributes:
        config: What it is made of.
        system: The physical system: names, units, equations.
        autoencoder: Frames to configurations and back.
        dynamics: Learned physical parameters.
        state_low: (D,) lowest state labels seen in training, SI units; not used for derived
            dimensions, which have no labels.
        state_high: (D,) highest ones.
        reading_std: (V,) how far readings of the visible dimensions scatter about the smoothed
            motion of the validation trajectories, SI units.
        asset: What the system's equations need of the place that the training data come from,
            such as a track's path; only for systems that have such a thing.
        metadata: Provenance, filled when loaded from a checkpoint.
    """

    state_low: Tensor
    state_high: Tensor
    reading_std: Tensor
    derived: Tensor
    asset: Tensor

    def __init__(self, config: WorldModelConfig, asset: Tensor | None = None) -> None:
        super().__init__()
        if config.init not in ESTIMATORS:
            raise ValueError(unknown("init", config.init, tuple(ESTIMATORS)))
        self.config = config
        self.system: System = get_system(config.system)
        if asset is not None:
            self.system = self.system.with_asset(asset)
        if self.system.asset is not None:
            self.register_buffer("asset", self.system.asset.clone())
        self.autoencoder = build_autoencoder(config.autoencoder, self.system)
        self.dynamics = Dynamics(self.system, config.parametrisation)
        dimensions = len(self.system.variables)
        self.register_buffer("state_low", torch.full((dimensions,), -torch.inf))
        self.register_buffer("state_high", torch.full((dimensions,), torch.inf))
        visible = self.system.ranges[self.system.visible]
        self.register_buffer("reading_std", UNTRAINED_STD * visible)
        derived = torch.tensor([v.derived for v in self.system.variables])
        self.register_buffer("derived", derived, persistent=False)
        self.metadata: dict[str, Any] = {}
        self._rollouts: dict[tuple[int, bool], FusedRollout] = {}

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
        return param_rows(self.dynamics.parametrisation, self.params, self.system.reference)

    def _float_frames(self, frames: Tensor) -> Float[Tensor, "*B 3 H W"]:
        """Accept uint8 (..., H, W, 3) or float (..., 3, H, W) frames, wherever they are."""
        return float_frames(frames, self.system.frame.size, self.device)

    def encode_frames(self, frames: Tensor) -> Float[Tensor, "*B P"]:
        """Configurations of single frames, SI units: ``system.configuration`` names the numbers.

        What the encoder reads, matched to the frames where the model does that, see
        :mod:`piwm_gym.models.matching`.

        Args:
            frames: (..., H, W, 3) uint8, or (..., 3, H, W) float in [0, 1].

        Returns:
            Visible dimensions of the state, then the scene where the system has one.
        """
        frames = self._float_frames(frames)
        shape = (*frames.shape[:-3], len(self.system.configuration))
        if not frames.numel():  # which the networks do not take
            return frames.new_zeros(shape)
        pictures = frames.reshape(-1, *frames.shape[-3:])
        flat = self.autoencoder.encode(pictures)
        if steps := self.config.autoencoder.matching:
            flat = matched(self.autoencoder, pictures, flat, steps)
        return flat.reshape(shape)

    def recognize(
        self, frames: Tensor, configurations: Float[Tensor, "*B P"]
    ) -> Bool[Tensor, "*B"]:
        """Whether what was read of frames is there to be seen.

        An encoder reads something of every frame, also where the system has left the picture.

        Args:
            frames: As in :meth:`encode_frames`.
            configurations: What it returned.

        Returns:
            Whether a drawing of them explains the frames better than the body elsewhere would;
            always true for a camera that drives along.

        Raises:
            ValueError: Wrong shapes.
        """
        frames = self._float_frames(frames)
        check_tensor("configurations", configurations)
        expected = (*frames.shape[:-3], len(self.system.configuration))
        if tuple(configurations.shape) != expected:
            raise ValueError(
                f"configurations has shape {tuple(configurations.shape)}; expected {expected}, "
                "as encode_frames reads these frames"
            )
        if not frames.numel():
            return frames.new_zeros(expected[:-1], dtype=torch.bool)
        pictures = frames.reshape(-1, *frames.shape[-3:])
        flat = configurations.reshape(len(pictures), -1)
        seen = recognized(self.autoencoder, self.system, pictures, flat)
        return seen.reshape(expected[:-1])

    def shown(self, frames: Tensor, configurations: Float[Tensor, "B T P"]) -> Bool[Tensor, " B"]:
        """Whether windows show the system: it is recognized in half of their frames, or more.

        Args:
            frames: (B, T, H, W, 3) uint8 or (B, T, 3, H, W) float in [0, 1].
            configurations: What :meth:`encode_frames` made of them.

        Raises:
            ValueError: Wrong shapes.
        """
        return self.recognize(frames, configurations).float().mean(1) >= SHOWN

    def encode_scene(self, frames: Tensor) -> Float[Tensor, "B S"]:
        """Scene of a window: what the frames show of it, averaged, as it never changes.

        Args:
            frames: (B, T, H, W, 3) uint8 or (B, T, 3, H, W) float in [0, 1].
        """
        return self._split(self.encode_frames(frames))[1].mean(dim=1)

    def _split(
        self, configurations: Float[Tensor, "*B P"]
    ) -> tuple[Float[Tensor, "*B V"], Float[Tensor, "*B S"]]:
        """Visible dimensions of the state, and scene."""
        count = len(self.system.visible)
        return configurations[..., :count], configurations[..., count:]

    def encode(
        self,
        frames: Tensor,
        actions: Shaped[Tensor, "B S *A"],
        init: str | None = None,
        params: Params | None = None,
        scene: Float[Tensor, "*C S"] | None = None,
    ) -> Float[Tensor, "B D"]:
        """State at the last frame of a window: :meth:`encode_window` without its scene."""
        return self.encode_window(frames, actions, init, params, scene)[0]

    def encode_window(
        self,
        frames: Tensor,
        actions: Shaped[Tensor, "B S *A"],
        init: str | None = None,
        params: Params | None = None,
        scene: Float[Tensor, "*C S"] | None = None,
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B S"] | None]:
        """State at the last frame of a window, and the scene it was estimated in.

        Args:
            frames: (B, T, H, W, 3) uint8 or (B, T, 3, H, W) float in [0, 1], T at least 2.
            actions: (B, T - 1) actions between the frames; ``actions[:, t]`` leads from frame t
                to frame t + 1.
            init: ``"shooting"`` or ``"fd"`` (last two frames only); default: the model's.
            params: Parameters to estimate with; default: the learned ones.
            scene: (S,) or (B, S) static visible variables; default: as :meth:`encode_scene`.

        Returns:
            The state, whose derived dimensions, such as contact flags, are those that the
            window's motion sets; the scene, None for systems that have none.

        Raises:
            ValueError: Wrong shapes, fewer than two frames, colours outside [0, 1], actions that
                the system does not have, an unknown ``init``, a scene for a system that has none.
        """
        check_window(self.system, "frames", frames, actions, ndim=5)
        return self.estimate(self.encode_frames(frames), actions, init, params, scene)

    def estimate(
        self,
        configurations: Float[Tensor, "B T P"],
        actions: Shaped[Tensor, "B S *A"],
        init: str | None = None,
        params: Params | None = None,
        scene: Float[Tensor, "*C S"] | None = None,
    ) -> tuple[Float[Tensor, "B D"], Float[Tensor, "B S"] | None]:
        """State and scene at the end of a window whose frames have been read already.

        Args:
            configurations: What :meth:`encode_frames` made of the window, T at least 2.
            actions: (B, T - 1) actions between the frames.
            init: As in :meth:`encode_window`.
            params: Parameters to estimate with; default: the learned ones.
            scene: (S,) or (B, S); default: what was read, averaged.

        Raises:
            ValueError: As :meth:`encode_window`.
        """
        init = self.config.init if init is None else init
        if init not in ESTIMATORS:
            raise ValueError(unknown("init", init, tuple(ESTIMATORS)))
        check_window(self.system, "configurations", configurations, actions, ndim=3)
        params = self.params if params is None else params
        visible, seen = self._split(configurations)
        if scene is None and self.system.scene_variables:
            scene = seen.mean(dim=1)
        scene = spread_scene(self.system, scene, visible[:, 0])
        actions = actions.to(self.device)
        state = ESTIMATORS[init](self.system, visible, actions, params, scene, self.reading_std)
        return state, scene

    def step(
        self,
        state: Float[Tensor, "*B D"],
        action: Shaped[Tensor, "*A"],
        scene: Float[Tensor, "*C S"] | None = None,
        noise: Float[Tensor, "*B U"] | None = None,
    ) -> Float[Tensor, "*B D"]:
        """State one time step later, by the learned dynamics; see :meth:`rollout`."""
        check_states(self.system, state)
        check_choices(self.system, action)
        check_noise(self.system, noise, tuple(state.shape[:-1]))
        scene = spread_scene(self.system, scene, state)
        keywords = {
            name: value for name, value in (("scene", scene), ("noise", noise)) if value is not None
        }
        return self.system.transition(state, action, self.dynamics.params, **keywords)

    def rollout(
        self,
        state: Float[Tensor, "B D"],
        actions: Shaped[Tensor, "B H *A"],
        params: Params | None = None,
        scene: Float[Tensor, "*C S"] | None = None,
        noise: Float[Tensor, "B H U"] | None = None,
    ) -> Float[Tensor, "B H D"]:
        """States after each of H actions; differentiable in state, actions and parameters.

        Args:
            state: Where to start, SI units.
            actions: H actions for each batch element.
            params: Physical parameters; default: the learned ones.
            scene: (S,) or (B, S) static visible variables; default: ``system.nominal_scene``.
            noise: Numbers uniform on [0, 1) for the process noise; default: the mean motion.

        Raises:
            ValueError: States or actions of other shapes, actions that the system does not have,
                a scene or noise for a system that has none, or of a wrong shape.
        """
        params = self.dynamics.params if params is None else params
        check_rollout(self.system, state, actions)
        check_noise(self.system, noise, tuple(actions.shape[:2]))
        scene = spread_scene(self.system, scene, state)
        quick = self._rollouts.get((len(state), noise is not None))
        given = (state, actions, noise, scene, *vars(params).values())
        if quick is not None and actions.shape[1] and not _wants_gradients(given):
            states = quick(state, actions, params, noise, scene)
            if states is not None:
                return states
        return self.system.rollout(state, actions, params, noise, scene)

    def compile_rollout(self, batch_size: int, noise: bool = False) -> None:
        """Compile :meth:`rollout` for so many states, now, which takes a while.

        Rollouts that need no gradients, such as those of planners, use it from now on; their
        results differ in the last bits. On the CPU only.

        Args:
            batch_size: Number of states, B. Planners roll out ``samples`` sequences from each of
                theirs: 64 for ``cem`` of one state.
            noise: For rollouts with ``noise`` instead of those of the mean motion.

        Raises:
            ValueError: Noise for a system that has none, or a batch size below 1.

        Warns:
            UserWarning: There is nothing to compile with here; rollouts run as they are.
        """
        rollout = compiled_rollout(self.system, batch_size, self.params, noise, self.device)
        if rollout is not None:
            self._rollouts[batch_size, noise] = rollout

    def decode(
        self, states: Float[Tensor, "*B D"], scene: Float[Tensor, "*C S"] | None = None
    ) -> Float[Tensor, "*B 3 H W"]:
        """Frames of states, in [0, 1]. Differentiable except where a pixel is clipped.

        Args:
            states: (..., D) SI units.
            scene: (S,), or (B, S) for states (B, ..., D); default: ``system.nominal_scene``.

        Raises:
            ValueError: States without the system's dimensions or that are not finite, a scene for
                a system that has none, or of a wrong shape.
        """
        configurations = self._configurations(states, scene)
        if not len(configurations):
            return configurations.new_zeros(*states.shape[:-1], 3, *self.system.frame.size)
        try:
            frames = self.autoencoder.decode(configurations).clamp(0, 1)
        except (IndexError, RuntimeError):
            _check_somewhere(states)
            raise
        return frames.reshape(*states.shape[:-1], *frames.shape[1:])

    @torch.no_grad()
    def draw(
        self,
        states: Float[Tensor, "*B D"],
        scene: Float[Tensor, "*C S"] | None = None,
        still: UInt8[Tensor, "B H W 3"] | None = None,
        out: UInt8[Tensor, "*B H W 3"] | None = None,
    ) -> UInt8[Tensor, "*B H W 3"]:
        """Frames of states as environments give them: :meth:`decode`, rounded, in less time.

        Args:
            states: As for :meth:`decode`.
            scene: Likewise.
            still: Of the scenes of (B, D) states, by :meth:`still`, where that is drawn already.
            out: Where to put them, instead of new memory; contiguous.

        Raises:
            ValueError: As for :meth:`decode`; ``still`` or ``out`` of another shape or dtype, or
                ``out`` in pieces.
        """
        check_tensor("states", states)
        shape = (*states.shape[:-1], *self.system.frame.size, 3)
        check_drawn("still", still, shape)
        check_drawn("out", out, shape)
        if out is not None and not out.is_contiguous():
            raise ValueError(f"out has strides {out.stride()}; expected contiguous memory")
        behind, into = (
            None if given is None else given.reshape(-1, *shape[-3:]) for given in (still, out)
        )
        configurations = self._configurations(states, scene)
        if not len(configurations):
            return torch.zeros(shape, dtype=torch.uint8, device=self.device)
        try:
            frames = self.autoencoder.draw_frames(configurations, behind, into)
        except (IndexError, RuntimeError):
            _check_somewhere(states)
            raise
        return frames.view(shape) if out is None else out

    @torch.no_grad()
    def still(self, scene: Float[Tensor, "B S"]) -> UInt8[Tensor, "B H W 3"] | None:
        """What scenes look like without the bodies, for many frames with :meth:`draw`.

        None for systems without a scene, and where the decoder does not tell them apart.

        Args:
            scene: Static visible variables, SI units.
        """
        if not self.system.scene_variables:
            return None
        nothing = scene.new_zeros(len(scene), len(self.system.visible))
        return self.autoencoder.still(torch.cat((nothing, scene), dim=-1))

    def _configurations(self, states: Tensor, scene: Tensor | None) -> Float[Tensor, "N P"]:
        """What frames of states show."""
        check_states(self.system, states)
        # Not by a list of indices, for which a GPU would have to be waited for.
        configurations = torch.stack([states[..., i] for i in self.system.visible], dim=-1)
        scene = spread_scene(self.system, scene, states)
        if scene is not None:
            configurations = torch.cat((configurations, scene), dim=-1)
        # In the networks' precision: states of other simulators often come in double.
        return configurations.reshape(-1, configurations.shape[-1]).to(self.autoencoder.centre)

    def in_distribution(self, state: Float[Tensor, "*B D"]) -> Bool[Tensor, "*B"]:
        """Whether a state lies within the range of the training labels, where there are labels.

        The range of a periodic dimension is an arc, from the lowest label on to the highest.
        """
        check_states(self.system, state)
        inside = (state >= self.state_low) & (state <= self.state_high)
        for i, variable in enumerate(self.system.variables):
            if variable.periodic:
                width = self.state_high[i] - self.state_low[i]
                along = torch.remainder(state[..., i] - self.state_low[i], variable.range)
                inside[..., i] = (along <= width) | (width >= variable.range)
        return (inside | self.derived).all(-1)


def _check_somewhere(states: Tensor) -> None:
    """Raise ValueError for states that have no place in any picture: asked when drawing failed."""
    lost = ~states.isfinite().all(-1)
    if lost.any():
        raise ValueError(
            f"{int(lost.sum())} of {lost.numel()} states are not finite; expected finite numbers"
        ) from None


def _wants_gradients(values: Iterable[Any]) -> bool:
    """Whether torch would record what is done with any of these."""
    return torch.is_grad_enabled() and any(
        isinstance(value, Tensor) and value.requires_grad for value in values
    )
