"""What if the pole were longer? Actions that balance the learned pole, under changed physics.

    python examples/change_physics.py                                     # twice the pole
    python examples/change_physics.py --length-factor 1 --gravity 3.7     # on Mars

Writes videos/change_physics.mp4 and .gif in seconds, and asks the real simulator for the truth.
"""

from pathlib import Path

import torch
import tyro

import piwm_gym
from piwm_gym.planning import cem, shift
from piwm_gym.systems import CartPoleParams
from piwm_gym.video import side_by_side, write_video


@torch.no_grad()
def main(
    length_factor: float = 2.0,
    gravity: float = 9.8,
    checkpoint: str | None = None,
    output: Path = Path("videos"),
    steps: int = 150,
) -> None:
    """Imagine two worlds, which differ in the length of the pole and in gravity (m/s^2)."""
    model = piwm_gym.load("PIWM-CartPole-v0", checkpoint=checkpoint, device="cpu")
    changed = model.params.replace(length=length_factor * model.params.length, gravity=gravity)
    start = torch.tensor([[0.0, 0.0, 0.05, 0.0]])  # m, m/s, rad, rad/s
    state, plan, actions, generator = start, None, [], torch.Generator()
    for _ in range(steps):
        plan = cem(model, state, 20, generator, warm_start=plan)
        actions.append(plan[:, 0])
        state, plan = model.step(state, plan[:, 0]), shift(plan)

    same = torch.stack(actions, dim=1)
    learned, other = (model.rollout(start, same, p)[0] for p in (None, changed))
    stands = int((~model.system.terminal(other)).cumprod(0).sum())

    real = piwm_gym.make_real("PIWM-CartPole-v0", obs_type="state")
    physics = {"length": length_factor * CartPoleParams().length, "gravity": gravity}
    real.reset(options={"state": start[0], "params": physics})
    really = 0
    while really < steps and not real.step(int(same[0, really]))[2]:
        really += 1
    print(f"length x {length_factor}, gravity {gravity} m/s^2: the pole stands {stands} steps")
    print(f"of {steps} in the model, {really} of {steps} in CartPole-v1 changed alike")

    films = [model.draw(s[: stands + 1]).numpy() for s in (learned, other)]
    film = side_by_side(films[0], films[1], captions=("learned physics", "changed physics"))
    for name in ("change_physics.mp4", "change_physics.gif"):
        print(write_video(film, output / name, fps=1 / model.system.dt))


if __name__ == "__main__":
    tyro.cli(main)
