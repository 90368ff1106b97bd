"""Balance the real Cart Pole from pixels, by planning in the learned model.

    python examples/cem_planning.py

At every step the state is estimated from the last frames, CEM finds actions in the model, and
the real environment gets the first of them. Takes about 20 seconds for 200 steps.
"""

import torch
import tyro

import piwm_gym
from piwm_gym.planning import cem, shift

WINDOW = 10


def off_centre(states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Small cost, next to the reward of 1 per step, for leaving the centre."""
    return 0.1 * (states[..., 0] / 2.4) ** 2 + 0.1 * (states[..., 2] / 0.2) ** 2


def main(steps: int = 200, seed: int = 0, checkpoint: str | None = None) -> None:
    """Balance the pole.

    Args:
        steps: Steps to survive.
        seed: Seed of the real environment and of the planner.
        checkpoint: A checkpoint of your own; default: the shipped weights.
    """
    model = piwm_gym.load("PIWM-CartPole-v0", checkpoint=checkpoint, device="cpu")
    real = piwm_gym.make_real("PIWM-CartPole-v0", obs_type="pixels")
    generator = torch.Generator().manual_seed(seed)

    frame, _ = real.reset(seed=seed)
    frames, plan = [torch.as_tensor(frame)], None
    actions: list[int] = []
    terminated = False
    for step in range(steps):
        action = step % 2  # the first frame alone shows no velocities
        if actions:
            window = torch.stack(frames[-WINDOW:])[None]
            with torch.no_grad():
                state = model.encode(window, torch.tensor([actions[1 - len(window[0]) :]]))
            plan = cem(model, state, 20, generator, cost=off_centre, warm_start=plan)
            action = int(plan[0, 0])
            plan = shift(plan)
        frame, _, terminated, truncated, _ = real.step(action)
        frames.append(torch.as_tensor(frame))
        actions.append(action)
        if terminated or truncated:
            break
    print(f"{'fell' if terminated else 'balanced'} after {len(actions)} of {steps} steps")


if __name__ == "__main__":
    tyro.cli(main)
