"""Hyperparameters of the agents."""

from dataclasses import dataclass
from typing import Any

from benchmarks.pixels import StripExtractor


@dataclass(frozen=True)
class Recipe:
    """How to train an agent.

    Attributes:
        obs_type: Observations of the imagined environment, ``"state"`` or ``"pixels"``.
        steps: Imagined environment steps.
        num_envs: Imagined environments.
        rollout: Steps of each between two updates.
        batch_size: Samples per gradient step.
        epochs: Passes over a rollout.
        learning_rate: At the start; falls linearly to zero.
        entropy: Weight of the entropy bonus.
        gamma: Discount per step.
        gae_lambda: Of the advantage estimator.
        net_arch: Widths of the hidden layers of policy and value.
        eval_every: Updates between two evaluations in imagination.
        eval_episodes: Episodes of each.
        squash: Squash continuous actions into their box, and explore with generalised
            state-dependent noise (Raffin et al. 2022). A plain Gaussian's mean wanders out of
            the box, where nothing pulls it back: cars raced into the first tight turn.
        anywhere: Start episodes of the training all over the course.
        noise: On frames in training, see :class:`benchmarks.pixels.FrameStack`.
    """

    obs_type: str
    steps: int
    num_envs: int
    rollout: int
    batch_size: int
    epochs: int
    learning_rate: float
    entropy: float = 0.0
    gamma: float = 0.99
    gae_lambda: float = 0.95
    net_arch: tuple[int, ...] = (64, 64)
    eval_every: int = 5
    eval_episodes: int = 20
    squash: bool = False
    anywhere: bool = False
    noise: float = 0.0

    @property
    def policy(self) -> dict[str, Any]:
        """Arguments of SB3's policy."""
        arguments: dict[str, Any] = {"net_arch": list(self.net_arch)}
        if self.squash:
            arguments |= {"squash_output": True, "log_std_init": -1.0}
        if self.obs_type == "pixels":
            arguments["features_extractor_class"] = StripExtractor
        return arguments


RECIPES = {
    "cartpole": {
        "state": Recipe(
            "state",
            steps=300_000,
            num_envs=256,
            rollout=32,
            batch_size=1024,
            epochs=10,
            learning_rate=1e-3,
            eval_episodes=100,
        ),
        "pixels": Recipe(
            "pixels",
            steps=600_000,
            num_envs=64,
            rollout=64,
            batch_size=512,
            epochs=10,
            learning_rate=1e-3,
            net_arch=(64,),
            eval_every=10,
            eval_episodes=50,
            noise=4.0,
        ),
    },
    "lunar_lander": {
        "state": Recipe(
            "state",
            steps=10_000_000,
            num_envs=256,
            rollout=64,
            batch_size=2048,
            epochs=6,
            learning_rate=1e-3,
            entropy=0.01,
            gamma=0.999,
            gae_lambda=0.98,
            eval_every=20,
            eval_episodes=100,
        ),
    },
    "donkey_car": {
        "state": Recipe(
            "state",
            steps=1_200_000,
            num_envs=256,
            rollout=64,
            batch_size=2048,
            epochs=8,
            learning_rate=1e-3,
            gamma=0.99,
            eval_every=10,
            eval_episodes=20,
            squash=True,
            anywhere=True,
        ),
    },
}
"""By system and policy."""


__all__ = ["RECIPES", "Recipe"]
