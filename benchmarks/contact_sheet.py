"""Real and imagined episodes side by side in one picture.

    python -m benchmarks.contact_sheet --env-id PIWM-LunarLander-v0

The model sees ten frames of a held-out trajectory and imagines how it goes on under the recorded
actions; a row of the picture is every tenth of 30 imagined steps, its start included. Writes
``assets/SYSTEM-contact-sheet.png``.
"""

from pathlib import Path

import numpy as np
import torch
import tyro
from jaxtyping import UInt8
from PIL import Image

from piwm_gym.checkpoint import load
from piwm_gym.imagine import Episode, imagine
from piwm_gym.registration import DEFAULT_VARIANT, get_entry
from piwm_gym.systems import System
from piwm_gym.video import side_by_side, tile
from piwm_gym.world_model import WorldModel
from training.dataset import TrajectoryDataset, load_dataset
from training.metrics import counted

CONTEXT = 10
EVERY = 10
STEPS = CONTEXT - 1 + 3 * EVERY


def seen_episodes(dataset: TrajectoryDataset, system: System) -> list[Episode]:
    """The test trajectories that the camera sees from their first frame to the last one needed."""
    index = dataset.split()["test"]
    states = torch.from_numpy(dataset.states[index, : STEPS + 1])
    scenes = dataset.scenes if system.scene_variables else None
    tensor = None if scenes is None else torch.from_numpy(scenes[index])
    seen = (counted(system, states, tensor) & system.in_view(states)).all(1)
    return [
        Episode(
            dataset.frames[i, : STEPS + 1],
            dataset.actions[i, :STEPS],
            dataset.states[i, : STEPS + 1],
            None if scenes is None else scenes[i],
        )
        for i in index[seen.numpy()]
    ]


def sheet(model: WorldModel, episodes: list[Episode]) -> UInt8[np.ndarray, "H W 3"]:
    """One row for each episode."""
    films = []
    for episode in episodes:
        rollout = imagine(model, episode, CONTEXT)
        real, imagined = rollout.real_frames[::EVERY], rollout.imagined_frames[::EVERY]
        films.append(side_by_side(real, imagined, scale=2))
    return tile(np.concatenate(films), columns=len(films[0]))


def main(
    env_id: str = "PIWM-LunarLander-v0",
    variant: str = DEFAULT_VARIANT,
    checkpoint: str | None = None,
    rows: int = 4,
    data: Path | None = None,
    out: Path | None = None,
) -> None:
    """Draw the picture.

    Args:
        env_id: Which environment.
        variant: Which shipped weights.
        checkpoint: A file instead of them.
        rows: Episodes, spread evenly over those of the test split.
        data: Folder of the data set; data/SYSTEM-laptop if not given.
        out: File; assets/SYSTEM-contact-sheet.png if not given.

    Raises:
        ValueError: There are not so many episodes.
    """
    system = get_entry(env_id).system
    model = load(env_id, variant, checkpoint, "cpu")
    dataset = load_dataset(data or Path("data") / f"{system}-laptop")
    episodes = seen_episodes(dataset, model.system)
    if not 1 <= rows <= len(episodes):
        raise ValueError(f"rows is {rows}; expected 1 to {len(episodes)}, the episodes there are")
    chosen = np.linspace(0, len(episodes) - 1, rows + 2)[1:-1].round().astype(int)
    path = out or Path("assets") / f"{system}-contact-sheet.png"
    Image.fromarray(sheet(model, [episodes[i] for i in chosen])).save(path)
    print(f"wrote {path}")


if __name__ == "__main__":
    tyro.cli(main)


__all__ = ["main", "seen_episodes", "sheet"]
