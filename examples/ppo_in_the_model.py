"""Train a policy in the learned model only, then let it drive the real Cart Pole.

    pip install "piwm-gym[sb3]"
    python examples/ppo_in_the_model.py

PPO of Stable-Baselines3 on 16 imagined environments; about 15 seconds on a CPU. The real
environment takes no part in training.
"""

import numpy as np
import tyro
from stable_baselines3 import PPO

import piwm_gym
from piwm_gym.sb3 import make_vec_env


def main(
    steps: int = 60_000,
    episodes: int = 10,
    num_envs: int = 16,
    seed: int = 0,
    checkpoint: str | None = None,
) -> None:
    """Train for a number of imagined steps; score on a number of real episodes."""
    imagined = make_vec_env(
        "PIWM-CartPole-v0", num_envs, obs_type="state", checkpoint=checkpoint, device="cpu"
    )
    agent = PPO(
        "MlpPolicy",
        imagined,
        n_steps=128,
        batch_size=256,
        gae_lambda=0.95,
        gamma=0.99,
        learning_rate=1e-3,
        ent_coef=0.0,
        seed=seed,
        device="cpu",
    )
    agent.learn(steps)

    real = piwm_gym.make_real("PIWM-CartPole-v0", obs_type="state")
    returns = []
    for episode in range(episodes):
        obs, _ = real.reset(seed=seed + episode)
        done, total = False, 0.0
        while not done:
            action, _ = agent.predict(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = real.step(int(action))
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    print(f"real return: {np.mean(returns):.1f} +- {np.std(returns):.1f} of 500")


if __name__ == "__main__":
    tyro.cli(main)
