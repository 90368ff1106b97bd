"""The real twin of each environment: same spaces, same frame preprocessing, same infos."""

import os
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from piwm_gym.actions import check_actions
from piwm_gym.courses import get_course
from piwm_gym.observations import observation_space, observe_states
from piwm_gym.options import KEYS, read_options
from piwm_gym.preprocess import preprocess_frame
from piwm_gym.registration import get_entry
from piwm_gym.shell import check_render_mode, key_bindings
from piwm_gym.slot_params import read_params
from piwm_gym.systems import Params, System, get_system, unknown
from piwm_gym.twins import TWINS
from piwm_gym.world_model import WorldModel

OPTIONS = tuple(key for key in KEYS if key not in ("frames", "actions"))
"""Of resets: no simulator can be put to where frames are from."""


class RealEnv(gym.Env[Any, Any]):
    """The real environment behind an id, seen through the imagined one's interface.

    Observations, ``info["state"]`` (float32, SI units), ``info["params"]`` and ``info["scene"]``
    at a reset, and the reset options ``state``, ``scene`` and ``params`` are those of
    :class:`piwm_gym.env.WorldModelEnv`. Derived dimensions of a start state (contacts, timers)
    are not written: they follow from the place.
    Frames are drawn only when an observation or ``render()`` needs one.

    Args:
        env_id: Id of the imagined environment.
        obs_type: ``"pixels"``, ``"state"`` or ``"pixels_state"``.
        render_mode: None or ``"rgb_array"``.
        simulator_options: Of the real simulator, such as the host and port of the Donkey Car's
            (see :class:`piwm_gym.donkey_client.DonkeyEnv`); those of Gymnasium have none.

    Raises:
        ValueError: Unknown id, observation type, render mode or simulator option.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012

    def __init__(
        self,
        env_id: str = "PIWM-CartPole-v0",
        obs_type: str = "pixels",
        render_mode: str | None = None,
        **simulator_options: Any,
    ) -> None:
        self.system: System = get_system(get_entry(env_id).system)
        self.obs_type = obs_type
        self.render_mode = check_render_mode(render_mode)
        self.observation_space = observation_space(self.system, obs_type)
        self.action_space = self.system.action_space
        self.metadata = {**self.metadata, "render_fps": round(1 / self.system.dt)}
        if not {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
            # Frames are drawn off screen; without this SDL complains that there is none.
            os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        twin = TWINS[self.system.name]
        self.native = twin.make(self.system.real_id, **simulator_options)
        self._twin = twin(self.native)
        self.system = self._twin.adapt(self.system, obs_type)
        self._lasting = self._twin.params()
        self._frame: np.ndarray | None = None
        self._started = False

    @property
    def params(self) -> Params:
        """Physical parameters in force.

        Raises:
            NotImplementedError: The simulator does not tell them.
        """
        values = self._twin.params()
        if not values:
            raise NotImplementedError(
                f"the real simulator of {self.system.name} does not tell its physical parameters"
            )
        return type(self.system.reference)(**values)

    @property
    def state(self) -> np.ndarray:
        """Copy of the state, float32 (D,), SI units."""
        self._require_reset("state")
        return self._twin.state().astype(np.float32)

    def set_params(self, **values: float) -> None:
        """Replace physical parameters of the real simulator.

        Raises:
            ValueError: Unknown name, not a positive and finite number, or one that the real
                simulator cannot be given.
        """
        changes = self._read_params(values)
        self._twin.set_params({**self._twin.params(), **changes})
        self._lasting |= changes
        self._frame = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Passed on to the real environment.
            options: ``state``, (D,) start state in SI units; ``scene``, (S,) static visible
                variables; ``params`` for this episode only.

        Raises:
            ValueError: Unknown option or wrong shape.
        """
        super().reset(seed=seed)
        for name in options if isinstance(options, Mapping) else ():
            if name not in OPTIONS:
                raise ValueError(unknown("option of a real environment", name, OPTIONS))
        read = read_options(options, self.system)
        episode = self._read_params(read.params)
        self._twin.set_params({**self._lasting, **episode})
        self._twin.reset(seed)
        if read.scene is not None:
            self._twin.set_scene(read.scene[0].numpy())
        if read.state is not None:
            self._twin.set_state(read.state[0].numpy())
        self._started, self._frame = True, None
        info = {**self._twin.info(), "state": self.state, "params": self._twin.params()}
        if self.system.scene_variables:
            info["scene"] = self._twin.scene().astype(np.float32)
        return self._observe(), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Advance one time step.

        Raises:
            ValueError: The action is of another shape, not a number, or not in a discrete space;
                one outside a Box is clipped.
            gymnasium.error.ResetNeeded: There has been no reset yet.
        """
        self._require_reset("step")
        checked = check_actions(self.action_space, action, ())
        native = checked if checked.ndim else checked.item()
        _, reward, terminated, truncated, _ = self._twin.step(native)
        self._frame = None
        info = {**self._twin.info(), "state": self.state}
        return self._observe(), float(reward), bool(terminated), bool(truncated), info

    def render(self) -> np.ndarray | None:
        """The preprocessed frame, uint8 (H, W, 3); None without a render mode."""
        if self.render_mode is None:
            gym.logger.warn("You are calling render method without specifying any render mode.")
            return None
        self._require_reset("render")
        return self._frames().copy()

    def get_keys_to_action(self) -> dict[tuple[int, ...], Any]:
        """Arrow keys to actions, for ``gymnasium.utils.play``."""
        return key_bindings(self.system)

    def close(self) -> None:
        """Close the real environment."""
        self.native.close()

    def _frames(self) -> np.ndarray:
        if self._frame is None:
            self._frame = preprocess_frame(np.asarray(self.native.render()), self.system.frame)
        return self._frame

    def _observe(self) -> Any:
        if self.obs_type == "pixels":
            return self._frames().copy()
        state = observe_states(self.system, self.state[None])[0]
        if self.obs_type == "state":
            return state
        return {"pixels": self._frames().copy(), "state": state}

    def _read_params(self, values: Mapping[str, Any] | None) -> dict[str, float]:
        checked = read_params(type(self.system.reference), values, num_slots=1)
        return {name: float(value) for name, value in checked.items()}

    def _require_reset(self, what: str) -> None:
        if not self._started:
            raise gym.error.ResetNeeded(f"{what} before reset; call env.reset() first")


def same_place(model: WorldModel) -> dict[str, Any]:
    """Options with which :func:`make_real` makes the place that a model was trained in.

    Empty but for Donkey Car's models of another course than the embedded simulator's default.

    Raises:
        ValueError: The course is none of the embedded simulator's: its path came from a file.
    """
    name = model.metadata.get("data", {}).get("course")
    if name is None:
        return {}
    try:
        get_course(name)
    except ValueError as error:
        raise ValueError(
            f"the model was trained on a course from the file {name!r}, which the embedded "
            f"simulator does not have: {error}"
        ) from None
    return {"course": name}


def make_real(
    env_id: str = "PIWM-CartPole-v0",
    obs_type: str = "pixels",
    render_mode: str | None = None,
    max_episode_steps: int | None = None,
    **simulator_options: Any,
) -> gym.Env:
    """Make the real environment behind an id, with the imagined one's spaces and step limit.

    Args:
        env_id: Id of the imagined environment.
        obs_type: ``"pixels"``, ``"state"`` or ``"pixels_state"``.
        render_mode: None or ``"rgb_array"``.
        max_episode_steps: Step limit; default that of the id, -1 for none.
        simulator_options: Of the real simulator, such as ``host``, ``port``, ``course``, ``seed``
            and ``units_per_metre`` of the Donkey Car's
            (see :class:`piwm_gym.donkey_client.DonkeyEnv`); those of Gymnasium have none.

    Raises:
        ValueError: Unknown id, observation type, render mode or simulator option.
    """
    spec = real_spec(env_id, obs_type, **simulator_options)
    return gym.make(spec, render_mode=render_mode, max_episode_steps=max_episode_steps)


def real_spec(
    env_id: str, obs_type: str = "pixels", **simulator_options: Any
) -> gym.envs.registration.EnvSpec:
    """What :func:`make_real` makes, for ``gymnasium.make``; starts no simulator.

    Raises:
        ValueError: Unknown id.
    """
    entry = get_entry(env_id)
    return gym.envs.registration.EnvSpec(
        id=f"real/{env_id}",
        entry_point="piwm_gym.real:RealEnv",
        max_episode_steps=entry.max_episode_steps,
        reward_threshold=entry.reward_threshold,
        kwargs={"env_id": env_id, "obs_type": obs_type, **simulator_options},
    )


__all__ = ["RealEnv", "make_real", "real_spec", "same_place"]
