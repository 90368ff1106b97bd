"""From frames of your own to the physical state, in units.

    python examples/state_from_frames.py

Renders ten frames of CartPole-v1, as they would come from your recording, and compares the
estimate with the truth. Takes a few seconds. For a file: `piwm-gym state FRAMES.npz`.
"""

import gymnasium as gym
import numpy as np
import torch
import tyro

import piwm_gym
from piwm_gym.preprocess import preprocess_frame


def main(frames: int = 10, seed: int = 0, checkpoint: str | None = None) -> None:
    """Estimate the state at the last frame.

    Args:
        frames: Length of the window; at least two, since one frame shows no velocities. It ends
            earlier where the episode does.
        seed: Seed of the episode and of its random actions.
        checkpoint: A checkpoint of your own; default: the shipped weights.
    """
    model = piwm_gym.load("PIWM-CartPole-v0", checkpoint=checkpoint)

    env = gym.make("CartPole-v1", render_mode="rgb_array")
    env.action_space.seed(seed)
    truth, _ = env.reset(seed=seed)
    pictures, actions = [np.asarray(env.render())], []
    for _ in range(frames - 1):
        actions.append(env.action_space.sample())
        truth, _, terminated, truncated, _ = env.step(actions[-1])
        pictures.append(np.asarray(env.render()))
        if terminated or truncated:
            break
    env.close()

    window = np.stack([preprocess_frame(picture, model.system.frame) for picture in pictures])
    with torch.no_grad():
        state = model.encode(torch.as_tensor(window)[None], torch.tensor([actions]))[0]

    print(f"{'':10} {'estimate':>9} {'truth':>9}")
    for variable, value, real in zip(model.system.variables, state, truth, strict=True):
        print(f"{variable.name:10} {value:9.4f} {real:9.4f} {variable.unit}")


if __name__ == "__main__":
    tyro.cli(main)
