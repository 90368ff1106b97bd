"""Stable-Baselines3 on top of the batched simulation; needs ``pip install 'piwm-gym[sb3]'``.

    from stable_baselines3 import PPO
    from piwm_gym.sb3 import make_vec_env
    PPO("MlpPolicy", make_vec_env("PIWM-CartPole-v0", 64, obs_type="state")).learn(100_000)

SB3 does not accept Gymnasium's vector environments, and its own ``make_vec_env`` steps one
environment after the other.
"""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode

from piwm_gym.registration import ENTRIES, VECTOR_ENTRY_POINT
from piwm_gym.systems import unknown
from piwm_gym.vector_env import WorldModelVectorEnv

try:
    import stable_baselines3
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
except ImportError as error:
    raise ImportError(
        f"piwm_gym.sb3 needs the package stable_baselines3 ({error}): pip install 'piwm-gym[sb3]'"
    ) from error

FIXED: dict[str, Any] = {
    "output": "numpy",
    "autoreset_mode": AutoresetMode.SAME_STEP.value,
    "vectorization_mode": "vector_entry_point",
}
"""What SB3's contract leaves no choice of."""

Indices = None | int | Iterable[int]


def make_vec_env(
    env_id: str = "PIWM-CartPole-v0", n_envs: int = 1, seed: int | None = None, **kwargs: Any
) -> "WorldModelVecEnv":
    """Make n imagined environments that step as one batch.

    Args:
        env_id: Id of the environment.
        n_envs: n.
        seed: Environment i is seeded with ``seed + i`` at the first reset.
        **kwargs: As for ``gymnasium.make_vec``: ``obs_type``, ``variant``, ``checkpoint``,
            ``params``, ``randomize``, ``device``, ``render_mode``, ``max_episode_steps``.

    Raises:
        ValueError: Not an imagined environment, or an argument that is not allowed.
    """
    arguments = FIXED | kwargs
    for name, value in FIXED.items():
        if arguments[name] != value:
            raise ValueError(f"{name} is not to be chosen here: SB3 needs {value!r}; leave it out")
    if not _is_imagined(env_id):
        raise ValueError(unknown("imagined environment", env_id, ENTRIES))
    envs = gym.make_vec(env_id, num_envs=n_envs, **arguments)
    assert isinstance(envs, WorldModelVectorEnv)
    venv = WorldModelVecEnv(envs)
    if seed is not None:
        venv.seed(seed)
    return venv


def _is_imagined(env_id: str) -> bool:
    """Whether an id makes our batched environment; of unknown ids Gymnasium has more to say."""
    spec = gym.registry.get(env_id.rpartition(":")[2])
    entry = VECTOR_ENTRY_POINT if spec is None else spec.vector_entry_point
    kind = load_env_creator(entry) if isinstance(entry, str) else entry
    return issubclass(kind, WorldModelVectorEnv) if isinstance(kind, type) else kind is not None


class WorldModelVecEnv(VecEnv):
    """SB3's VecEnv contract around :class:`piwm_gym.vector_env.WorldModelVectorEnv`.

    Infos of running environments are empty dicts, because filling them would cost more than the
    simulation: read :attr:`physical_state` instead. Finished ones hold ``terminal_observation``,
    ``TimeLimit.truncated``, and ``episode`` (return ``r``, length ``l``, seconds ``t``) as SB3's
    Monitor writes it, so that returns are logged without another wrapper.

    Args:
        envs: With numpy output and same-step autoreset.

    Raises:
        ValueError: They have another output or autoreset mode.
    """

    def __init__(self, envs: WorldModelVectorEnv) -> None:
        for name, value in (("output", envs.output), ("autoreset_mode", envs.autoreset_mode.value)):
            if value != FIXED[name]:
                raise ValueError(f"envs has {name} {value!r}; SB3 needs {FIXED[name]!r}")
        self.envs = envs
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)
        self._actions: np.ndarray | None = None
        self._returns = np.zeros(self.num_envs)
        self._lengths = np.zeros(self.num_envs, dtype=np.int64)
        self._began = time.perf_counter()

    @property
    def physical_state(self) -> np.ndarray:
        """Copy of the states, float32 (n, D), SI units."""
        return self.envs.state

    def reset(self) -> Any:
        """Start all episodes, with the seeds and options set before."""
        seeds, options = self._seeds, self._options
        self._reset_seeds()  # also if they turn out to be wrong: they are of this reset
        self._reset_options()
        obs, info = self.envs.reset(
            seed=None if None in seeds else seeds,  # type: ignore[arg-type]
            options=_batch_options(options) if any(options) else None,
        )
        starts = _starts(info)
        self.reset_infos = [_start(starts, i) for i in range(self.num_envs)]
        self._returns[:], self._lengths[:] = 0.0, 0
        self._began = time.perf_counter()
        return obs

    def step_async(self, actions: np.ndarray) -> None:
        """Remember the actions for :meth:`step_wait`."""
        self._actions = actions

    def step_wait(self) -> Any:
        """Observations, float32 rewards, bool dones, list of n new dicts."""
        obs, rewards, terminated, truncated, info = self.envs.step(self._actions)
        dones = terminated | truncated
        self._returns += rewards
        self._lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        rows = np.flatnonzero(dones).tolist()
        if rows:
            last, starts = info["final_obs"], _starts(info)
            limits = truncated & ~terminated
            for i in rows:
                infos[i] = {
                    "terminal_observation": last[i],
                    "TimeLimit.truncated": bool(limits[i]),
                    "episode": self._episode(i),
                }
                self.reset_infos[i] = _start(starts, i)
        self._returns[dones], self._lengths[dones] = 0.0, 0
        return obs, rewards, dones, infos

    def _episode(self, i: int) -> dict[str, float]:
        elapsed = time.perf_counter() - self._began
        return {
            "r": round(float(self._returns[i]), 6),
            "l": int(self._lengths[i]),
            "t": round(elapsed, 6),
        }

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """Imagined frames, n times uint8 (H, W, 3)."""
        frames = self.envs.render()
        return [None] * self.num_envs if frames is None else frames

    def has_attr(self, attr_name: str) -> bool:
        """Whether there is such an attribute, even if it can only be read after a reset."""
        return hasattr(type(self.envs), attr_name) or attr_name in vars(self.envs)

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """Attribute of each environment: its own spaces, row of the state, and parameters.

        Raises:
            AttributeError: There is no such attribute.
            IndexError: There is no such environment.
        """
        chosen = [range(self.num_envs)[i] for i in self._get_indices(indices)]
        if attr_name in ("action_space", "observation_space"):
            return [getattr(self, attr_name)] * len(chosen)
        if attr_name == "state":
            return [self.envs.state[i] for i in chosen]
        if attr_name == "params":
            values = self.envs.simulation.params.per_slot()
            kind = type(self.envs.params)
            return [kind(**{k: float(v[i]) for k, v in values.items()}) for i in chosen]
        return [getattr(self.envs, attr_name)] * len(chosen)

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set an attribute of all environments.

        Raises:
            ValueError: Only some are meant; they are one object.
        """
        self._require_all(indices, "set_attr")
        setattr(self.envs, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Call a method of the batch once, for instance ``set_params``; its result n times.

        Raises:
            ValueError: Only some environments are meant; they are one object.
        """
        self._require_all(indices, "env_method")
        result = getattr(self.envs, method_name)(*method_args, **method_kwargs)
        return [result] * self.num_envs

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper], indices: Indices = None
    ) -> list[bool]:
        """True for Monitor, whose work this class does; otherwise False."""
        return [issubclass(wrapper_class, Monitor) for _ in self._get_indices(indices)]

    def _require_all(self, indices: Indices, what: str) -> None:
        if set(self._get_indices(indices)) != set(range(self.num_envs)):
            raise ValueError(
                f"{what} with indices={indices}: the {self.num_envs} environments are one "
                "batched simulation; leave indices out. Parameters may differ: "
                "env_method('set_params', length=[...]) takes one number per environment"
            )


def _starts(info: dict[str, Any]) -> dict[str, np.ndarray]:
    """What the starts of episodes say: states and, if any, scenes."""
    return {key: info[key] for key in ("state", "scene") if key in info}


def _start(starts: dict[str, np.ndarray], i: int) -> dict[str, np.ndarray]:
    """The part of one environment."""
    return {key: values[i].copy() for key, values in starts.items()}


def _batch_options(options: list[dict[str, Any]]) -> dict[str, Any]:
    """SB3's list of one options dict per environment as one dict of batched values."""
    keys = set(options[0])
    if any(set(option) != keys for option in options):
        raise ValueError("the options of all environments must have the same keys")
    batched: dict[str, Any] = {
        key: np.stack([np.asarray(option[key]) for option in options]) for key in keys - {"params"}
    }
    if "params" in keys:
        names = set(options[0]["params"])
        if any(set(option["params"]) != names for option in options):
            raise ValueError("options['params'] of all environments must name the same parameters")
        batched["params"] = {n: [option["params"][n] for option in options] for n in names}
    return batched


class StartAnywhere(VecEnvWrapper):
    """Imagined episodes that start anywhere, not only where real ones do: to train with.

    A policy that always starts at the same line meets the far side of a course only once it
    masters the near one, and then at full speed. The real environment cannot start everywhere;
    the model can.

    Args:
        venv: From :func:`make_vec_env`.
        seed: Of the starts.

    Raises:
        ValueError: The system has no other starts than the real environment's.
    """

    def __init__(self, venv: WorldModelVecEnv, seed: int = 0) -> None:
        super().__init__(venv)
        self._venv, self._envs, self._system = venv, venv.envs, venv.envs.system
        if not self._system.num_anywhere_uniforms:
            raise ValueError(
                f"venv imagines {self._system.name}, whose episodes start as in the real "
                "environment; expected a system that can start anywhere, such as donkey_car"
            )
        self._generator = torch.Generator().manual_seed(seed)

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seed the environments, and the starts."""
        if seed is not None:
            self._generator.manual_seed(seed)
        return self.venv.seed(seed)

    def reset(self) -> Any:
        """Start all episodes, those with a state in their options there."""
        options = _batch_options(self._venv._options)
        obs = self.venv.reset()
        if "state" in options:
            return obs
        kept = {"params": options["params"]} if "params" in options else {}
        return self._restart(np.ones(self.num_envs, dtype=bool), **kept)

    def step_wait(self) -> Any:
        """As the wrapped environments; episodes that begin do so anywhere."""
        obs, rewards, dones, infos = self.venv.step_wait()
        return (self._restart(dones) if dones.any() else obs), rewards, dones, infos

    def _restart(self, mask: np.ndarray, **options: Any) -> Any:
        shape = self.num_envs, self._system.num_anywhere_uniforms
        states = self._system.anywhere(torch.rand(shape, generator=self._generator))
        obs, info = self._envs.reset(options={"reset_mask": mask, "state": states, **options})
        starts = _starts(info)
        for i in np.flatnonzero(mask).tolist():
            self._venv.reset_infos[i] = _start(starts, i)
        return obs


class _Bootstrap(VecEnvWrapper):
    """Adds the discounted value of the last observation to the reward of truncated episodes.

    Args:
        venv: What the algorithm steps.
        algorithm: Whose policy values observations.
    """

    def __init__(self, venv: VecEnv, algorithm: "PPO") -> None:
        super().__init__(venv)
        self.algorithm = algorithm

    def reset(self) -> Any:
        return self.venv.reset()

    def step_wait(self) -> Any:
        obs, rewards, dones, infos = self.venv.step_wait()
        rows = [i for i in np.flatnonzero(dones) if infos[i].get("TimeLimit.truncated")]
        if rows:
            last = [infos[i]["terminal_observation"] for i in rows]
            batch: Any = np.stack(last)
            if isinstance(last[0], dict):
                batch = {key: np.stack([o[key] for o in last]) for key in last[0]}
            policy = self.algorithm.policy
            with torch.no_grad():
                values = policy.predict_values(policy.obs_to_tensor(batch)[0])
            rewards = rewards.copy()
            rewards[rows] += self.algorithm.gamma * values.flatten().cpu().numpy()
            for i in rows:  # or SB3 would add it again, one forward pass per episode
                infos[i]["TimeLimit.truncated"] = False
                infos[i]["TimeLimit.bootstrapped"] = True
        return obs, rewards, dones, infos


class PPO(stable_baselines3.PPO):
    """SB3's PPO that values all truncated episodes of a step in one forward pass.

    SB3 values them one by one, which dominates the collection when many imagined episodes are
    short. The result is the same.
    """

    def collect_rollouts(
        self, env: VecEnv, callback: BaseCallback, rollout_buffer: Any, n_rollout_steps: int
    ) -> bool:
        """As SB3, in an environment whose rewards are bootstrapped already."""
        return super().collect_rollouts(
            _Bootstrap(env, self), callback, rollout_buffer, n_rollout_steps
        )


__all__ = ["PPO", "StartAnywhere", "WorldModelVecEnv", "make_vec_env"]
