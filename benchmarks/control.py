"""Policies trained in the world model alone, scored in the real environment.

    python -m benchmarks.control                    # Cart Pole, all policies, three seeds
    python -m benchmarks.control --policies pixels --seeds 0
    python -m benchmarks.control --env-id PIWM-LunarLander-v0 --uncertainty 0.05

All policies are PPO: on imagined states, or on decoded frames. The first kind is also scored on
states estimated from real frames. A policy that exploits errors of the model would show as a high
imagined return next to a low real one. Writes ``assets/results/SYSTEM-control.csv``.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console

from benchmarks.agents import HELD_OUT, Trained, World, train
from benchmarks.reality import EstimatedStates, Observer, StackedFrames, real_returns, true_states
from benchmarks.recipes import RECIPES, Recipe
from benchmarks.tables import Row, print_rows, update_csv
from piwm_gym.checkpoint import CheckpointError
from piwm_gym.registration import DEFAULT_VARIANT, get_entry
from piwm_gym.systems import unknown

POLICIES = {"state": "PPO, MLP on states", "pixels": "PPO, CNN on stacked frames"}
KEYS = ("policy", "variant", "uncertainty", "deployment_observations", "seed")
SHOWN = (
    "deployment_observations",
    "training_seconds",
    "imagined_return_mean",
    "real_return_mean",
    "real_return_std",
    "real_return_min",
)


def choose_recipe(system: str, name: str, steps: int | None, num_envs: int | None) -> Recipe:
    """Recipe of a policy, with what the command line changes.

    Raises:
        ValueError: No such policy.
    """
    if name not in RECIPES[system]:
        raise ValueError(unknown("policy", name, tuple(RECIPES[system])))
    recipe = RECIPES[system][name]
    if num_envs is not None:
        recipe = replace(recipe, num_envs=num_envs, eval_episodes=num_envs)
    samples = recipe.num_envs * recipe.rollout
    recipe = replace(recipe, batch_size=min(recipe.batch_size, samples))
    return recipe if steps is None else replace(recipe, steps=steps)


def observers(name: str, world: World) -> dict[str, Observer]:
    """How the policy may look at the real environment, by the name in the table."""
    if name == "pixels":
        return {"real frames": StackedFrames()}
    return {"true state": true_states, "state from real frames": EstimatedStates(world.model())}


def rows(name: str, world: World, seed: int, trained: Trained, episodes: int) -> list[Row]:
    """Scores of one agent, one row for each way to observe the real environment."""
    seeds = [HELD_OUT + i for i in range(episodes)]
    common: dict[str, Any] = {
        "policy": POLICIES[name],
        "variant": world.variant,
        "uncertainty": f"{world.uncertainty:g}",
        "training_observations": {"state": "imagined state", "pixels": "decoded frames"}[name],
    }
    result = []
    for observation, observer in observers(name, world).items():
        returns = real_returns(trained.agent, world.env_id, observer, seeds)
        result.append(
            common
            | {
                "deployment_observations": observation,
                "seed": seed,
                "training_steps": trained.steps,
                "training_seconds": round(trained.seconds),
                "imagined_return_mean": float(np.mean(trained.imagined)),
                "real_return_mean": float(np.mean(returns)),
                "real_return_std": float(np.std(returns)),
                "real_return_min": float(np.min(returns)),
                "real_episodes": episodes,
            }
        )
    return result


def main(
    env_id: str = "PIWM-CartPole-v0",
    policies: tuple[str, ...] = (),
    variant: str = DEFAULT_VARIANT,
    checkpoint: str | None = None,
    uncertainty: float = 0.0,
    seeds: tuple[int, ...] = (0, 1, 2),
    steps: int | None = None,
    num_envs: int | None = None,
    episodes: int = 100,
    threads: int = 1,
    verbose: bool = False,
    out: Path | None = None,
) -> None:
    """Train and score policies.

    Args:
        env_id: Which environment.
        policies: Which, of state and pixels; default: all that have a recipe.
        variant: Which world model.
        checkpoint: A file instead of the shipped weights.
        uncertainty: Draw the learned parameters per episode of training, within this fraction.
        seeds: One agent is trained for each.
        steps: Imagined steps of training, instead of the recipe's.
        num_envs: Imagined environments, instead of the recipe's.
        episodes: Episodes to score on, imagined and real.
        threads: Threads of torch; more than one rarely helps such small networks.
        verbose: Show PPO's progress.
        out: CSV file, assets/results/SYSTEM-control.csv if not given; rows about the same policy,
            variant, uncertainty and seed are replaced.
    """
    torch.set_num_threads(threads)
    world = World(env_id, variant, checkpoint, uncertainty)
    try:
        system = get_entry(env_id).system
        out = out or Path("assets/results") / f"{system}-control.csv"
        names = policies or tuple(RECIPES[system])
        recipes = {name: choose_recipe(system, name, steps, num_envs) for name in names}
        for name, recipe in recipes.items():
            for seed in seeds:
                trained = train(recipe, world, seed, episodes, verbose=int(verbose))
                scored = rows(name, world, seed, trained, episodes)
                print_rows(scored, SHOWN, f"{POLICIES[name]}, seed {seed}")
                update_csv(out, scored, KEYS)
    except (ValueError, CheckpointError) as error:
        Console(stderr=True).print(str(error), markup=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    tyro.cli(main)


__all__ = ["KEYS", "POLICIES", "choose_recipe", "main"]
