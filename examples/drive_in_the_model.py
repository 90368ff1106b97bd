"""Teach a policy to drive in the learned model only, then let it drive the Donkey simulator.

    pip install "piwm-gym[sb3,donkey]"
    python examples/drive_in_the_model.py      # with --port 9091: in one that you have started

PPO of Stable-Baselines3 on 256 imagined cars, some minutes on a CPU core. The simulator, behind
the unchanged gym-donkeycar, takes no part in it.
"""

import numpy as np
import tyro

import piwm_gym
from piwm_gym.sb3 import PPO, StartAnywhere, make_vec_env

ENV_ID = "PIWM-DonkeyCar-v0"


def main(
    steps: int = 1_200_000,
    laps: int = 3,
    max_steps: int = 3_000,
    num_envs: int = 256,
    seed: int = 0,
    port: int | None = None,
    checkpoint: str | None = None,
) -> None:
    """Train for a number of imagined steps; drive a number of laps."""
    cars = make_vec_env(ENV_ID, num_envs, obs_type="state", checkpoint=checkpoint, device="cpu")
    agent = PPO(
        "MlpPolicy",
        StartAnywhere(cars, seed),
        n_steps=64,
        batch_size=min(2048, 64 * num_envs),
        n_epochs=8,
        gamma=0.99,
        learning_rate=lambda left: 1e-3 * left,
        use_sde=True,
        sde_sample_freq=8,
        policy_kwargs={"squash_output": True, "log_std_init": -1.0},  # stay within the box
        seed=seed,
        device="cpu",
    ).learn(steps)

    real = piwm_gym.make_real(ENV_ID, "state", max_episode_steps=max_steps, port=port)
    obs, info = real.reset(seed=seed)
    drive, over = [], False
    while info["laps"] < laps and not over:
        action, _ = agent.predict(obs, deterministic=True)
        obs, _, terminated, truncated, info = real.step(action)
        over = terminated or truncated
        drive.append((info["state"][3], abs(info["cte"])))
    real.close()
    speed, offset = np.mean(drive, axis=0)
    print(f"{info['laps']} laps at {speed:.2f} m/s, {offset:.2f} m from the path")


if __name__ == "__main__":
    tyro.cli(main)
