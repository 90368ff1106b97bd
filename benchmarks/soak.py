"""Many steps with random resets in every autoreset mode: does anything grow, break or drift?

    python -m benchmarks.soak
    python -m benchmarks.soak --env-id PIWM-LunarLander-v0 --obs-types pixels --steps 1000000

Ten million steps are what a simulator at 100 steps per second does in more than a day. For each
mode: steps, growth of the process in MiB, states that are not finite, and slots that differ from a
batch of one with the same seed and the same actions. Writes ``assets/results/SYSTEM-soak.csv``.
"""

import resource
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import tyro
from gymnasium.vector import AutoresetMode

from benchmarks.tables import Row, print_rows, update_csv
from piwm_gym.registration import get_entry
from piwm_gym.vector_env import WorldModelVectorEnv

KEYS = ("obs_type", "mode")
SHOWN = (*KEYS, "steps", "growth_mib", "not_finite", "out_of_step")
SETTLE = 20
"""Rounds before memory is first looked at."""
FRAMES_APART = 1
"""Levels of brightness by which a pixel may depend on how many are drawn at once."""


class Pair:
    """A batch, and a batch of one that follows one of its slots.

    Args:
        env_id: Id of the environment.
        mode: What happens when an episode ends.
        num_envs: Slots of the batch.
        slot: Which of them is followed.
        arguments: More for the environments.
    """

    def __init__(
        self, env_id: str, mode: AutoresetMode, num_envs: int, slot: int, **arguments: Any
    ) -> None:
        def make(n: int) -> WorldModelVectorEnv:
            envs = gym.make_vec(env_id, n, autoreset_mode=mode.value, device="cpu", **arguments)
            assert isinstance(envs, WorldModelVectorEnv)
            return envs

        self.slot, self.mode = slot, mode
        self.many, self.one = make(num_envs), make(1)
        self._seen = self.many.reset(seed=0)[0][slot], self.one.reset(seed=slot)[0][0]

    def step(self, actions: np.ndarray) -> np.ndarray:
        """Step both; (n,) episodes that are over."""
        observations, _, terminated, truncated, _ = self.many.step(actions)
        alone, *_ = self.one.step(actions[self.slot : self.slot + 1])
        self._seen = observations[self.slot], alone[0]
        return terminated | truncated

    def reset(self, mask: np.ndarray) -> None:
        """Begin new episodes in some slots, the followed one included if it is among them."""
        if mask.any():
            self.many.reset(options={"reset_mask": mask})
            if mask[self.slot]:
                self.one.reset()

    @property
    def in_step(self) -> bool:
        """Whether the followed slot is where the batch of one is, bit for bit, and looks so."""
        same = np.array_equal(self.many.state[self.slot], self.one.state[0])
        seen, alone = (np.asarray(frame, dtype=np.float64) for frame in self._seen)
        same = same and np.abs(seen - alone).max() <= FRAMES_APART
        return same and int(self.many.simulation.elapsed[self.slot]) == int(
            self.one.simulation.elapsed[0]
        )


def soak(
    env_id: str, mode: AutoresetMode, steps: int, num_envs: int, seed: int, **arguments: Any
) -> Row:
    """Step a batch with random actions and random resets, and watch it."""
    rng = np.random.default_rng(seed)
    pair = Pair(env_id, mode, num_envs, int(rng.integers(num_envs)), **arguments)
    pair.many.action_space.seed(seed)
    broken = apart = start = 0
    for number in range(max(SETTLE + 1, steps // num_envs)):
        over = pair.step(pair.many.action_space.sample())
        mask = rng.random(num_envs) < 0.01
        pair.reset(mask | over if mode is AutoresetMode.DISABLED else mask)
        broken += int((~np.isfinite(pair.many.state)).any(1).sum())
        apart += not pair.in_step
        if number == SETTLE:
            start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    growth = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start) / 1024
    counted = {"not_finite": broken, "out_of_step": apart}
    about = {"obs_type": arguments["obs_type"], "mode": mode.value}
    return about | {"steps": (number + 1) * num_envs, "growth_mib": growth} | counted


def main(
    env_id: str = "PIWM-CartPole-v0",
    steps: int = 10_000_000,
    num_envs: int = 1024,
    obs_types: tuple[str, ...] = ("state",),
    checkpoint: str | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> None:
    """Soak the vector environment.

    Args:
        env_id: Which environment.
        steps: Environment steps in each mode.
        num_envs: Slots.
        obs_types: What is observed: state, pixels.
        checkpoint: A file instead of the shipped weights.
        seed: Of actions and resets.
        out: CSV file, assets/results/SYSTEM-soak.csv if not given; rows about the same mode and
            observations are replaced.
    """
    rows = [
        soak(env_id, mode, steps, num_envs, seed, checkpoint=checkpoint, obs_type=obs_type)
        for obs_type in obs_types
        for mode in AutoresetMode
    ]
    print_rows(rows, SHOWN, env_id)
    system = get_entry(env_id).system
    update_csv(out or Path("assets/results") / f"{system}-soak.csv", rows, KEYS)


if __name__ == "__main__":
    tyro.cli(main)


__all__ = ["main", "soak"]
