"""Film an imagined rollout beside the real one: videos/imagined_rollout.mp4 and .gif.

    python examples/imagined_rollout.py

The model sees ten real frames, estimates the state, and imagines the rest under the same actions.
Takes a few seconds. `piwm-gym rollout` does the same over ten episodes, with tables.
"""

from pathlib import Path

import tyro

import piwm_gym
from piwm_gym.imagine import imagined_rollout
from piwm_gym.video import side_by_side, write_video


def main(
    checkpoint: str | None = None,
    context: int = 10,
    horizon: int = 50,
    seed: int = 0,
    output: Path = Path("videos"),
) -> None:
    """Imagine an episode.

    Args:
        checkpoint: A checkpoint of your own; default: the shipped weights.
        context: Frames that the model sees.
        horizon: Steps to imagine.
        seed: Seed of the real episode.
        output: Folder for the films.
    """
    model = piwm_gym.load("PIWM-CartPole-v0", checkpoint=checkpoint)
    real = piwm_gym.make_real("PIWM-CartPole-v0", obs_type="pixels")
    rollout = imagined_rollout(model, real, context, horizon, seed)

    for variable, error in zip(model.system.variables, rollout.errors[-1], strict=True):
        print(f"error of {variable.name} at the end: {error:.4f} {variable.unit}")

    film = side_by_side(rollout.real_frames, rollout.imagined_frames)
    for suffix in (".mp4", ".gif"):
        print(write_video(film, output / f"imagined_rollout{suffix}", fps=1 / model.system.dt))


if __name__ == "__main__":
    tyro.cli(main)
