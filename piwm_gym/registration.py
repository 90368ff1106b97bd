"""The one table of environments: Gymnasium id, physical system, step limit.

Nothing here imports torch, so that ``import piwm_gym`` stays light.
"""

from dataclasses import dataclass

import gymnasium as gym

DEFAULT_VARIANT = "extrinsic-continuous"
SCALAR_ENTRY_POINT = "piwm_gym.env:WorldModelEnv"
VECTOR_ENTRY_POINT = "piwm_gym.vector_env:WorldModelVectorEnv"


@dataclass(frozen=True)
class Entry:
    """One environment.

    Attributes:
        env_id: Gymnasium id.
        system: Name of the physical system.
        max_episode_steps: Step limit of the real environment, or ours where it has none.
        reward_threshold: Mean return at which the real environment counts as solved, if any.
    """

    env_id: str
    system: str
    max_episode_steps: int
    reward_threshold: float | None


ENTRIES: dict[str, Entry] = {
    entry.env_id: entry
    for entry in (
        Entry("PIWM-CartPole-v0", "cartpole", 500, 475.0),
        Entry("PIWM-LunarLander-v0", "lunar_lander", 1000, 200.0),
        Entry("PIWM-DonkeyCar-v0", "donkey_car", 2000, None),
    )
}


def get_entry(env_id: str) -> Entry:
    """Row of the table.

    Raises:
        ValueError: No such environment; the nearest id is suggested.
    """
    if env_id not in ENTRIES:
        from piwm_gym.systems import unknown

        raise ValueError(unknown("environment", env_id, tuple(ENTRIES)))
    return ENTRIES[env_id]


def register_environments() -> None:
    """Register every id with Gymnasium; ids that are registered already are left alone."""
    for entry in ENTRIES.values():
        if entry.env_id not in gym.registry:
            gym.register(
                entry.env_id,
                entry_point=SCALAR_ENTRY_POINT,
                vector_entry_point=VECTOR_ENTRY_POINT,
                max_episode_steps=entry.max_episode_steps,
                reward_threshold=entry.reward_threshold,
                kwargs={"env_id": entry.env_id},
            )


__all__ = ["DEFAULT_VARIANT", "ENTRIES", "Entry", "get_entry", "register_environments"]
