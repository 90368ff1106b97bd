"""PPO agents that never see the real environment: training and scoring in imagination."""

import time
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

import piwm_gym
from benchmarks.pixels import VecStack
from benchmarks.recipes import Recipe
from piwm_gym.registration import DEFAULT_VARIANT
from piwm_gym.sb3 import PPO, StartAnywhere, WorldModelVecEnv, make_vec_env
from piwm_gym.world_model import WorldModel

HELD_OUT = 1_000_000
"""Seeds of scored episodes start here; training uses small ones."""
SELECTION = 2_000_000
"""Seeds of the imagined episodes by which a policy is chosen start here."""


@dataclass(frozen=True)
class World:
    """Which world model to imagine with.

    Attributes:
        env_id: Id of the environment.
        variant: Which shipped weights.
        checkpoint: A file instead of them.
        uncertainty: Every learned parameter is drawn per episode, uniform within this fraction of
            its value to both sides; 0 keeps the learned values.
    """

    env_id: str = "PIWM-CartPole-v0"
    variant: str = DEFAULT_VARIANT
    checkpoint: str | None = None
    uncertainty: float = 0.0

    def model(self) -> WorldModel:
        """The model itself, on the CPU."""
        return piwm_gym.load(self.env_id, self.variant, self.checkpoint, "cpu")

    def make(self, num_envs: int, seed: int, obs_type: str, **kwargs: Any) -> WorldModelVecEnv:
        """Imagined environments, on the CPU; other arguments as for ``gymnasium.make_vec``."""
        source = {"variant": self.variant, "checkpoint": self.checkpoint, "device": "cpu"}
        return make_vec_env(self.env_id, num_envs, seed, obs_type=obs_type, **source, **kwargs)

    def imagine(
        self, recipe: Recipe, num_envs: int, seed: int, *, training: bool = False
    ) -> VecEnv:
        """Imagined environments as the agent sees them; only those for training are randomised."""
        randomize = self._randomize() if training and self.uncertainty else None
        venv = self.make(num_envs, seed, recipe.obs_type, randomize=randomize)
        if training and recipe.anywhere:
            return StartAnywhere(venv, seed)
        noise = recipe.noise if training else 0.0
        return VecStack(venv, noise, seed) if recipe.obs_type == "pixels" else venv

    def _randomize(self) -> dict[str, tuple[float, float]]:
        """Ranges around the learned physical parameters."""
        learned = {row.name: row.value for row in self.model().param_table() if row.learned}
        names = self.model().system.reference.names()
        low, high = 1 - self.uncertainty, 1 + self.uncertainty
        return {n: (low * v, high * v) for n, v in learned.items() if n in names}


@dataclass(frozen=True)
class Trained:
    """An agent and what its training took."""

    agent: PPO
    steps: int
    seconds: float
    imagined: np.ndarray = field(repr=False)
    """Returns of held-out imagined episodes."""


def imagined_returns(agent: PPO, venv: VecEnv) -> np.ndarray:
    """(n,) returns of the first episode in each imagined environment, without exploration."""
    returns = np.full(venv.num_envs, np.nan)
    obs = venv.reset()
    while np.isnan(returns).any():
        actions, _ = agent.predict(obs, deterministic=True)  # type: ignore[arg-type]
        obs, _, dones, infos = venv.step(actions)
        for i in np.flatnonzero(dones & np.isnan(returns)):
            returns[i] = infos[i]["episode"]["r"]
    return returns


class KeepBest(BaseCallback):
    """Keeps the policy with the highest imagined return; of equal ones the latest.

    Args:
        venv: Imagined environments to evaluate in.
        every: Updates between two evaluations.
        seed: Of the evaluation episodes, the same every time.
    """

    def __init__(self, venv: VecEnv, every: int, seed: int) -> None:
        super().__init__()
        self.venv, self.every, self.seed = venv, every, seed
        self.best = -np.inf
        self._rollouts = 0
        self._weights: dict[str, Tensor] = {}

    def _on_rollout_start(self) -> None:
        if self._rollouts and self._rollouts % self.every == 0:
            self.evaluate()
        self._rollouts += 1

    def _on_training_end(self) -> None:
        self.evaluate()
        self.model.policy.load_state_dict(self._weights)

    def _on_step(self) -> bool:
        return True

    def evaluate(self) -> None:
        """Score the present policy, and remember it if none was better."""
        self.venv.seed(self.seed)
        score = float(imagined_returns(self.model, self.venv).mean())  # type: ignore[arg-type]
        self.logger.record("imagined/return", score)
        if score >= self.best:
            self.best = score
            self._weights = deepcopy(self.model.policy.state_dict())


def train(recipe: Recipe, world: World, seed: int, episodes: int, verbose: int = 0) -> Trained:
    """Train an agent in imagination, and score it in imagination.

    Args:
        recipe: How.
        world: In which world model.
        seed: Of weights, exploration and start states.
        episodes: Imagined episodes to score it on.
        verbose: 1 for SB3's progress tables.
    """
    began = time.perf_counter()
    agent = PPO(
        "MlpPolicy" if recipe.obs_type == "state" else "CnnPolicy",
        world.imagine(recipe, recipe.num_envs, seed=1000 * seed, training=True),
        n_steps=recipe.rollout,
        batch_size=recipe.batch_size,
        n_epochs=recipe.epochs,
        learning_rate=lambda left: recipe.learning_rate * left,
        ent_coef=recipe.entropy,
        gamma=recipe.gamma,
        gae_lambda=recipe.gae_lambda,
        policy_kwargs=recipe.policy,
        use_sde=recipe.squash,
        sde_sample_freq=8 if recipe.squash else -1,
        seed=seed,
        device="cpu",
        verbose=verbose,
    )
    judges = world.imagine(recipe, recipe.eval_episodes, SELECTION)
    agent.learn(recipe.steps, KeepBest(judges, recipe.eval_every, SELECTION))
    seconds = time.perf_counter() - began
    returns = imagined_returns(agent, world.imagine(recipe, episodes, HELD_OUT))
    return Trained(agent, agent.num_timesteps, seconds, returns)


__all__ = ["HELD_OUT", "KeepBest", "Trained", "World", "imagined_returns", "train"]
