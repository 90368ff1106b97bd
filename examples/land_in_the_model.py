"""Teach a policy to land in the learned model only, then let it land the real lander.

    pip install "piwm-gym[sb3]"
    python examples/land_in_the_model.py

PPO of Stable-Baselines3 on 256 imagined landers, each episode over another terrain; ten to
fifteen minutes on a CPU core. The real environment takes no part in training.
"""

import numpy as np
import tyro

import piwm_gym
from piwm_gym.sb3 import PPO, make_vec_env

ENV_ID = "PIWM-LunarLander-v0"


def main(
    steps: int = 10_000_000,
    episodes: int = 10,
    num_envs: int = 256,
    seed: int = 0,
    checkpoint: str | None = None,
) -> None:
    """Train for a number of imagined steps; score on a number of real episodes."""
    imagined = make_vec_env(ENV_ID, num_envs, obs_type="state", checkpoint=checkpoint, device="cpu")
    agent = PPO(
        "MlpPolicy",
        imagined,
        n_steps=64,
        batch_size=min(2048, 64 * num_envs),
        n_epochs=6,
        gae_lambda=0.98,
        gamma=0.999,
        learning_rate=lambda left: 1e-3 * left,
        ent_coef=0.01,
        seed=seed,
        device="cpu",
    )
    agent.learn(steps)

    real = piwm_gym.make_real(ENV_ID, obs_type="state")
    returns = []
    for episode in range(episodes):
        obs, _ = real.reset(seed=seed + episode)
        done, total = False, 0.0
        while not done:
            action, _ = agent.predict(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = real.step(int(action))
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    print(f"real return: {np.mean(returns):.1f} +- {np.std(returns):.1f}, solved from 200 on")


if __name__ == "__main__":
    tyro.cli(main)
