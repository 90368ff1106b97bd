"""The shipped weights keep, on real episodes they never saw, what their headers claim."""

from pathlib import Path

import numpy as np
import pytest
import torch

import piwm_gym
from piwm_gym.locate import WEIGHTS
from piwm_gym.models import VARIANTS
from piwm_gym.models.vision import VisionDecoder
from piwm_gym.world_model import WorldModel
from training.collect import Settings, collect
from training.dataset import load_dataset
from training.metrics import TestSet, decoding, summary

SLACK = 1.5
"""Forty trajectories instead of two hundred: their errors scatter."""
UNSEEN_SEED = 20_001


@pytest.fixture(scope="module")
def unseen(tmp_path_factory: pytest.TempPathFactory) -> TestSet:
    folder = tmp_path_factory.mktemp("unseen")
    collect(Settings("cartpole", trajectories=40, shard_size=40, seed=UNSEEN_SEED), folder)
    dataset = load_dataset(folder)
    system = piwm_gym.load("PIWM-CartPole-v0", device="cpu").system
    return TestSet(dataset, system, torch.device("cpu"), index=np.arange(len(dataset)))


def load(variant: str) -> WorldModel:
    return piwm_gym.load("PIWM-CartPole-v0", variant=variant, device="cpu")


def flatten(tree: dict, prefix: str = "") -> dict[str, float]:
    flat: dict[str, float] = {}
    for key, value in tree.items():
        flat |= (
            flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat


@pytest.mark.parametrize("variant", VARIANTS)
def test_claims_hold_on_unseen_episodes(variant: str, unseen: TestSet) -> None:
    model = load(variant)
    claimed = flatten(model.metadata["measured"])
    found = flatten(summary(model, unseen))
    assert found.keys() == claimed.keys()
    for name, value in found.items():
        if not name.startswith("persistence"):
            assert value <= SLACK * claimed[name] + 1e-4, (name, value, claimed[name])


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_shipped_was_trained_honestly(variant: str) -> None:
    metadata = load(variant).metadata
    assert metadata["training"]["autoencoder"]["variant"] == variant
    assert metadata["data"]["real_id"] == "CartPole-v1"
    assert metadata["data"]["supervision"]["noise_level"] == 0.05
    assert metadata["data"]["collection_seed"] != UNSEEN_SEED
    starts = metadata["stages"]["dynamics"]["starts"]
    assert len(starts) == 3
    reference = {"force_per_mass": 10 / 1.1, "pole_mass_fraction": 0.1 / 1.1, "length": 0.5}
    for start in starts:
        for name, value in start["start"].items():
            assert abs(value / reference[name] - 1) >= 0.5


def test_a_decoder_that_draws_an_empty_scene_would_be_noticed(
    unseen: TestSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load("extrinsic-discrete")
    honest = decoding(model, unseen)
    monkeypatch.setattr(
        VisionDecoder,
        "forward",
        lambda self, tokens: self.background.expand(len(tokens), 3, 64, 64),
    )
    empty = decoding(model, unseen)
    assert empty["foreground_mse"] > 10 * honest["foreground_mse"]
    assert empty["reread_rmse"]["x"] > 10 * honest["reread_rmse"]["x"]


def test_weights_are_small() -> None:
    for path in Path(WEIGHTS).glob("*.safetensors"):
        assert path.stat().st_size < 6e6
