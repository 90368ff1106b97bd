from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import contact_sheet
from piwm_gym.systems import CartPole
from training.collect import Settings, collect
from training.dataset import load_dataset


def test_the_sheet_shows_held_out_episodes(checkpoint: str, tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "sheet.png"
    collect(Settings("cartpole", 40, shard_size=40, seed=3), data)
    contact_sheet.main("PIWM-CartPole-v0", checkpoint=checkpoint, rows=1, data=data, out=out)
    picture = np.asarray(Image.open(out))
    episodes = contact_sheet.seen_episodes(load_dataset(data), CartPole())
    shown = [
        np.array_equal(picture[-128:, :128], episode.frames[9].repeat(2, 0).repeat(2, 1))
        for episode in episodes
    ]
    assert sum(shown) == 1
    with pytest.raises(ValueError, match="rows is 99; expected 1 to"):
        contact_sheet.main("PIWM-CartPole-v0", checkpoint=checkpoint, rows=99, data=data, out=out)
