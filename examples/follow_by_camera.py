"""Follow the real lander by its camera alone, frame by frame, with error bars.

    python examples/follow_by_camera.py

A controller or a safety monitor gets states like this where no sensor tells them. Half of all
flights leave the picture at the top first: the learned dynamics bridge that, and what is known
widens until the lander is seen again. Takes a few seconds.
"""

import torch
import tyro

import piwm_gym

ENV_ID = "PIWM-LunarLander-v0"


def main(steps: int = 120, every: int = 10, seed: int = 1, checkpoint: str | None = None) -> None:
    """Fly with random actions and compare estimates with the truth.

    Args:
        steps: Length of the flight; it ends earlier where the lander does.
        every: Steps from one printed line to the next.
        seed: Seed of the episode and of its actions.
        checkpoint: A checkpoint of your own; default: the shipped weights.
    """
    model = piwm_gym.load(ENV_ID, checkpoint=checkpoint)
    states = piwm_gym.StateFilter(model)
    real = piwm_gym.make_real(ENV_ID, obs_type="pixels")
    real.action_space.seed(seed)
    frame, info = real.reset(seed=seed)
    state = states.reset(torch.from_numpy(frame)[None])

    names = ("y", "y_dot", "theta")
    columns = [model.system.state_names.index(name) for name in names]
    print("step" + "".join(f"{name:>10} +- {'std':>5} {'(truth)':>8}" for name in names))
    for step in range(steps):
        if step % every == 0:
            rows = zip(state[0], states.std[0], info["state"], strict=True)
            text = [f"{a:10.2f} +- {b:5.2f} ({c:6.2f})" for a, b, c in rows]
            print(f"{step:4}" + "".join(text[column] for column in columns))
        action = real.action_space.sample()
        frame, _, terminated, truncated, info = real.step(action)
        state = states.update(torch.from_numpy(frame)[None], torch.tensor([action]))
        if terminated or truncated:
            break
    real.close()


if __name__ == "__main__":
    tyro.cli(main)
