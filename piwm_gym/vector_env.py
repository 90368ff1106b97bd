"""Many imagined episodes at once: the Gymnasium vector environment of a world model."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from torch import Tensor

from piwm_gym.actions import ActionReader
from piwm_gym.lazy import LazyDict
from piwm_gym.moments import Ended
from piwm_gym.observations import observation_space
from piwm_gym.options import read_options
from piwm_gym.registration import DEFAULT_VARIANT
from piwm_gym.shell import Shell, Source, check_compile, check_render_mode, wait
from piwm_gym.slots import Slots
from piwm_gym.systems import Params, unknown
from piwm_gym.transfer import to_host
from piwm_gym.world_model import WorldModel

OUTPUTS = ("numpy", "torch")

Observed = Tensor | dict[str, Tensor]
Deferred = dict[str, Callable[[], Any]]
"""Parts of an info, each computed when the user looks at it."""


class WorldModelVectorEnv(Shell, gym.vector.VectorEnv[Any, Any, Any]):
    """n slots of :class:`piwm_gym.env.WorldModelEnv` in one batched simulation.

    All slots share one model, and there is no loop over them. Slot i equals the single
    environment seeded with ``seed + i``: states, rewards and flags bit for bit on the CPU,
    whatever n is; decoded frames within one of 255 levels, because matrix products round
    differently in other batch sizes.

    Infos are dicts of arrays with a leading dimension n, each with its mask ``_key``: ``state``
    (n, D) in SI units, ``in_distribution`` (n,) and ``system.info_names`` (n,) at every step,
    ``params`` (n,) by name at a reset and, where episodes may differ in their parameters, at the
    steps that start one;
    ``scene`` (n, S), for systems that have one, at a reset and at the steps that start an
    episode. Each value is computed when it is looked at, so that the others cost nothing.

    With ``output="torch"`` all of it stays on the device, and no step waits for the device
    unless pixels are asked for. Then actions that lie on a GPU are checked with a delay, see
    :class:`piwm_gym.actions.ActionReader`, and Gymnasium's wrappers, which expect numpy, do not
    apply.

    What happens when an episode ends is Gymnasium's ``autoreset_mode``:

    - ``"SameStep"`` (default): the step that ends an episode returns the first observation of
      the next. ``info["final_obs"]`` and ``info["final_info"]`` hold the end of the old one:
      numpy gives, as Gymnasium does, an object array of unbatched observations and a dict with
      masks; torch gives ``final_obs`` batched like observations. Rows outside ``_final_obs``
      mean nothing.
    - ``"NextStep"``: the step after the end ignores the action and starts the next episode, with
      reward 0.
    - ``"Disabled"``: ``reset(options={"reset_mask": mask})`` starts episodes. To step a slot
      whose episode is over is an error (not noticed on a GPU).

    Gymnasium's documentation of the modes: https://farama.org/Vector-Autoreset-Mode.
    """

    metadata = {  # noqa: RUF012
        "render_modes": ["rgb_array"],
        "render_fps": 50,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        env_id: str = "PIWM-CartPole-v0",
        num_envs: int = 1,
        max_episode_steps: int | None = None,
        variant: str = DEFAULT_VARIANT,
        obs_type: str = "pixels",
        checkpoint: Path | str | None = None,
        params: Mapping[str, Any] | None = None,
        randomize: Mapping[str, Any] | None = None,
        device: torch.device | str = "auto",
        output: str = "numpy",
        autoreset_mode: AutoresetMode | str = AutoresetMode.SAME_STEP,
        render_mode: str | None = None,
        model: WorldModel | None = None,
        compile: bool = False,
        decoder: str | None = None,
    ) -> None:
        """Load the world model.

        Args:
            env_id: Id of the environment.
            num_envs: Number of slots, n.
            max_episode_steps: Steps after which a slot is truncated; None or -1 for never.
            variant: Which shipped weights.
            obs_type: ``"pixels"``, ``"state"`` or ``"pixels_state"``.
            checkpoint: A file, a folder or a Hub id instead of the shipped weights.
            params: Physical parameters to replace: numbers, or (n,) numbers, by name.
            randomize: Name to (low, high): drawn per slot at the start of each episode.
            device: Where to run.
            output: ``"numpy"``, or ``"torch"`` for tensors that stay on the device.
            autoreset_mode: ``"SameStep"``, ``"NextStep"``, ``"Disabled"``, or Gymnasium's enum.
            render_mode: None or ``"rgb_array"``.
            model: A model in memory instead of a checkpoint.
            compile: Compile the step, now, and drawing at the first frame, which takes a while
                (less the next time). On a CPU states stay the same bits; frames differ by at most
                1 of 255, by 2 in bfloat16. Parameters that become one for each slot are compiled
                anew at the first step with them.
            decoder: How frames are drawn: ``"direct"``; ``"direct-bfloat16"``, off by at most 3 of
                255, which is quicker where the processor or GPU computes in bfloat16; or, as the
                paper does it, through the ``"latent"``. Default: directly where the checkpoint can.

        Raises:
            ValueError: Unknown name or value that is not allowed; the message says what is.
            CheckpointError: No such checkpoint, or one that cannot be used.
        """
        self.num_envs = _count("num_envs", num_envs)
        limit = None if max_episode_steps in (None, -1) else max_episode_steps
        if limit is not None:
            limit = _count("max_episode_steps", limit)
        if output not in OUTPUTS:
            raise ValueError(unknown("output", output, OUTPUTS))
        self.output = output
        self.autoreset_mode = _autoreset_mode(autoreset_mode)
        self.render_mode = check_render_mode(render_mode)
        self._setup(
            Source(env_id, variant, checkpoint, device, decoder),
            model,
            num_slots=self.num_envs,
            params=params,
            randomize=randomize,
            max_episode_steps=limit,
            compiled=self.autoreset_mode if check_compile(compile) else None,
        )
        self.obs_type = obs_type
        self.single_observation_space = observation_space(self.system, obs_type)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.single_action_space = self.system.action_space
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {
            **self.metadata,
            "render_fps": round(1 / self.system.dt),
            "autoreset_mode": self.autoreset_mode,
        }
        self._reader = ActionReader(self.single_action_space, self.num_envs, self.simulation.device)

    @property
    def params(self) -> Params:
        """Physical parameters in force, (n,) tensors."""
        return type(self.model.params)(**self.simulation.params.per_slot())

    @property
    def state(self) -> Any:
        """Copy of the states, float32 (n, D), SI units."""
        self._require_reset("state")
        return self._export(self.simulation.state)

    def reset(
        self,
        *,
        seed: int | Sequence[int] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Start episodes, in all slots or in those of ``options["reset_mask"]``.

        Args:
            seed: Slot i is seeded with ``seed + i``, or with the i-th of n seeds; None continues
                the random numbers.
            options: As for the single environment, with a leading dimension n, and
                ``reset_mask``, (n,) bool.

        Raises:
            ValueError: Unknown option, wrong shape, not finite, or contradictory.
        """
        self._reader.verify()
        super().reset(seed=seed if isinstance(seed, int) else None)
        read = read_options(options, self.system, self.num_envs)
        self.simulation.params.read(read.params)
        slots = self._slots(read.mask)
        self._seed(seed, slots)
        self.simulation.begin(slots, read)
        shown = self._state_info(self.simulation.state)
        shown |= self._params_info(slots.mask) | self._scene_info(slots.mask)
        (obs,) = self._handed(self._observe())
        return obs, LazyDict(shown)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Advance every slot by one time step.

        Args:
            actions: (n, *A), numbers of any kind: list, array, tensor.

        Raises:
            ValueError: An action is of another shape, not a number, or not in a discrete space;
                its slot is named. One outside a Box is clipped.
            gymnasium.error.ResetNeeded: There has been no reset yet, or autoreset is disabled
                and an episode is over.
        """
        self._require_reset("step")
        action = self._reader.read(actions)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._require_running()
        outcome, ended = self.simulation.advance(action, self.autoreset_mode)
        shown = self._state_info(self.simulation.state)
        if ended is not None and not self._nobody(ended.slots):
            if self.autoreset_mode is AutoresetMode.SAME_STEP:
                shown |= self._final(ended)
            shown |= self._scene_info(ended.slots.mask)
            if self.simulation.params.varies:
                shown |= self._params_info(ended.slots.mask)
        flags = outcome.terminated, outcome.truncated
        return (*self._handed(self._observe(), outcome.reward, *flags), LazyDict(shown))

    def render(self) -> tuple[np.ndarray, ...] | None:
        """The imagined frames, n times uint8 (H, W, 3); None without a render mode."""
        return tuple(wait(self.simulation.frames())) if self._may_render() else None

    def _require_running(self) -> None:
        slots = Slots(self.simulation.done)
        if slots.by_index and len(slots.rows):
            raise gym.error.ResetNeeded(
                f"the episodes of environments {slots.rows.tolist()} are over and autoreset is "
                "disabled; call reset(options={'reset_mask': terminated | truncated})"
            )

    def rollout(self, actions: Any) -> Any:
        """Where actions would lead from here, by the mean motion and past any end of an episode.

        No slot is stepped. Each starts at its state, in its scene and with its parameters.

        Args:
            actions: (n, H, *A) numpy or tensor. With ``output="torch"`` gradients flow back to
                continuous ones that require them.

        Returns:
            (n, H, D) states after each action, SI units.

        Raises:
            ResetNeeded: There has been no reset.
            ValueError: Actions of another shape or that do not exist.
        """
        if not self.simulation.started:
            raise gym.error.ResetNeeded("call reset before rollout")
        given = torch.as_tensor(actions, device=self.simulation.device)
        return self._give(self.simulation.rollout(given))

    def _nobody(self, slots: Slots) -> bool:
        """Whether no slot is meant; on a GPU known where numpy waits for the device anyway."""
        return not slots.by_index and self.output == "numpy" and len(slots.rows) == 0

    def _slots(self, mask: Tensor | None) -> Slots:
        device = self.simulation.device
        if mask is None or bool(mask.all()):
            return Slots.every(self.num_envs, device)
        if not self.simulation.started:
            raise ValueError("the first reset starts all environments; leave 'reset_mask' out")
        return Slots(mask.to(device))

    def _seed(self, seed: int | Sequence[int] | None, slots: Slots) -> None:
        if seed is None:
            if self.simulation.started:
                return
            seeds = self.np_random.integers(2**63, size=self.num_envs).tolist()
        elif isinstance(seed, int):
            seeds = [seed + i for i in range(self.num_envs)]
        else:
            seeds = np.asarray(seed).tolist()
            seeds = seeds if isinstance(seeds, list) else []
        if len(seeds) != self.num_envs or not all(isinstance(s, int) and s >= 0 for s in seeds):
            raise ValueError(
                f"seed is {seed!r}; expected an integer >= 0 or {self.num_envs} of them"
            )
        self.simulation.seed(seeds, None if slots.all else slots.mask)

    def _export(self, tensor: Tensor) -> Any:
        """Copy for the user: an array, or a tensor on the device."""
        return tensor.clone() if self.output == "torch" else wait(tensor)

    def _give(self, tensor: Tensor) -> Any:
        """A tensor that nothing else refers to, for the user."""
        return tensor if self.output == "torch" else tensor.cpu().numpy()

    def _handed(self, obs: Observed, *others: Tensor) -> Any:
        """An observation and other tensors that nothing else refers to, for the user."""
        if self.output == "torch":
            return obs, *others
        parts = list(obs.values()) if isinstance(obs, dict) else [obs]
        arrays = to_host([*parts, *others])
        seen: Any = dict(zip(obs, arrays, strict=False)) if isinstance(obs, dict) else arrays[0]
        return seen, *arrays[len(parts) :]

    def _observe(self) -> Observed:
        return self._observation(self.simulation.state, self._present_frames)

    def _present_frames(self) -> Tensor:
        """The frames, given away if nobody will want them once more: copies take their time."""
        frames = self.simulation.frames()
        if self.render_mode is not None or self.autoreset_mode is AutoresetMode.DISABLED:
            return frames.clone()
        self.simulation.drawn.forget()
        return frames

    def _observation(self, states: Tensor, frames: Callable[[], Tensor]) -> Observed:
        """What agents see of (m, D) states, for which ``frames`` makes frames if need be."""
        if self.obs_type == "pixels":
            return frames()
        state = self.simulation.observation(states)
        return state if self.obs_type == "state" else {"pixels": frames(), "state": state}

    def _state_info(self, states: Tensor, mask: Tensor | None = None) -> Deferred:
        simulation, export = self.simulation, self._export
        meant = (lambda: torch.ones_like(simulation.done)) if mask is None else lambda: mask
        return {
            "state": lambda: export(states),
            "_state": lambda: export(meant()),
            "in_distribution": lambda: self._give(simulation.in_distribution(states)),
            "_in_distribution": lambda: export(meant()),
            **{name: partial(self._told, name, states) for name in self.system.info_names},
            **{f"_{name}": lambda: export(meant()) for name in self.system.info_names},
        }

    def _told(self, name: str, states: Tensor) -> Any:
        return self._give(self.system.info(states)[name])

    def _params_info(self, mask: Tensor) -> Deferred:
        values = self.simulation.params.per_slot()
        return {
            "params": lambda: {name: self._give(value) for name, value in values.items()},
            "_params": lambda: self._export(mask),
        }

    def _scene_info(self, mask: Tensor) -> Deferred:
        scene = self.simulation.scene
        if not self.system.scene_variables:
            return {}
        return {"scene": lambda: self._export(scene), "_scene": lambda: self._export(mask)}

    def _final(self, ended: Ended) -> Deferred:
        """``final_obs`` and ``final_info`` of the episodes that have just ended."""
        mask = ended.slots.mask
        return {
            "final_obs": lambda: self._final_obs(ended.slots, ended.state(), ended.scene),
            "_final_obs": lambda: self._export(mask),
            "final_info": lambda: LazyDict(self._state_info(ended.state(), mask)),
            "_final_info": lambda: self._export(mask),
        }

    def _final_obs(self, slots: Slots, states: Tensor, scenes: Tensor) -> Any:
        if self.output == "torch":
            seen = self._seen(slots.take(states), slots.take(scenes))
            return _map(seen, lambda v: slots.put(v.new_zeros(self.num_envs, *v.shape[1:]), v))
        rows = slots.rows
        (seen,) = self._handed(self._seen(states[rows], scenes[rows]))
        final = np.full(self.num_envs, None, dtype=object)
        for i, row in enumerate(rows.tolist()):
            final[row] = _map(seen, partial(_row, i))
        return final

    def _seen(self, states: Tensor, scenes: Tensor) -> Observed:
        """Observations of any (m, ...) states in their scenes."""
        return self._observation(states, lambda: self.simulation.drawn.draw(states, scenes))


def _row(i: int, values: np.ndarray) -> np.ndarray:
    return values[i].copy()


def _map(observation: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to an observation, or to both parts of one."""
    if isinstance(observation, dict):
        return {key: function(value) for key, value in observation.items()}
    return function(observation)


def _count(name: str, value: Any) -> int:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} is {value!r}; expected an integer of at least 1")
    return int(value)


def _autoreset_mode(value: AutoresetMode | str) -> AutoresetMode:
    try:
        return AutoresetMode(value)
    except ValueError:
        names = tuple(mode.value for mode in AutoresetMode)
        raise ValueError(unknown("autoreset_mode", value, names)) from None


__all__ = ["OUTPUTS", "WorldModelVectorEnv"]
