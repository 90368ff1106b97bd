"""The shipped weights keep, on real episodes they never saw, what their headers claim."""

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import piwm_gym
from piwm_gym.locate import WEIGHTS
from piwm_gym.models import VARIANTS
from piwm_gym.registration import DEFAULT_VARIANT, ENTRIES, get_entry
from piwm_gym.systems import get_system
from piwm_gym.world_model import WorldModel
from training.collect import Settings, collect
from training.dataset import load_dataset
from training.metrics import TestSet, decoding, summary

SLACK = {
    "cartpole": 1.5,
    "lunar_lander": 1.5,
    "lunar_lander-extrinsic-discrete": 2.2,
    "lunar_lander-intrinsic-continuous": 1.9,
    "donkey_car": 1.9,
    "donkey_car-intrinsic-discrete": 2.2,
}
"""Fewer trajectories than the two hundred of the claims: their errors scatter. Most where one frame
in two hundred, taken for another place, or one terrain in eighty makes most of a root mean
square."""
TRAJECTORIES = {"cartpole": 40, "lunar_lander": 80, "donkey_car": 80}
"""Half of Lunar Lander's have no 50 frames in free flight, and engines are dispersed."""
UNSEEN_SEED = 20_001


def _systems_apart(*cases: str) -> Any:
    """Parameters whose first is a system's id: one worker has all of a system, collected once."""
    return pytest.param(*cases, marks=pytest.mark.xdist_group(cases[0]))


CASES = [_systems_apart(*case) for case in product(ENTRIES, VARIANTS)]


@pytest.fixture(scope="session")
def unseen(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TestSet]:
    @lru_cache
    def collected(env_id: str) -> TestSet:
        system = get_system(get_entry(env_id).system)
        folder = tmp_path_factory.mktemp("unseen")
        count = TRAJECTORIES[system.name]
        collect(Settings(system.name, count, shard_size=count, seed=UNSEEN_SEED), folder)
        dataset = load_dataset(folder)
        return TestSet(dataset, system, torch.device("cpu"), index=np.arange(len(dataset)))

    return collected


def load(env_id: str, variant: str) -> WorldModel:
    return piwm_gym.load(env_id, variant=variant, device="cpu")


def flatten(tree: dict, prefix: str = "") -> dict[str, float]:
    flat: dict[str, float] = {}
    for key, value in tree.items():
        flat |= (
            flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat


@pytest.mark.parametrize(("env_id", "variant"), CASES)
def test_claims_hold_on_unseen_episodes(
    env_id: str, variant: str, unseen: Callable[[str], TestSet]
) -> None:
    model = load(env_id, variant)
    system = model.system.name
    slack = SLACK.get(f"{system}-{variant}", SLACK[system])
    claimed = flatten(model.metadata["measured"])
    found = flatten(summary(model, unseen(env_id)))
    assert found.keys() == claimed.keys()
    for name, value in found.items():
        if not name.startswith("persistence"):
            assert value <= slack * claimed[name] + 1e-4, (name, value, claimed[name])


@pytest.mark.parametrize(("env_id", "variant"), CASES)
def test_what_shipped_was_trained_honestly(env_id: str, variant: str) -> None:
    model = load(env_id, variant)
    metadata, system = model.metadata, model.system
    assert metadata["training"]["autoencoder"]["variant"] == variant
    assert metadata["data"]["real_id"] == system.real_id
    assert metadata["data"]["supervision"]["noise_level"] == 0.05
    assert metadata["data"]["collection_seed"] != UNSEEN_SEED
    starts = metadata["stages"]["dynamics"]["starts"]
    assert len(starts) == 3
    truth = model.dynamics.parametrisation.from_params(system.reference)
    reference = dict(zip(model.dynamics.names, truth, strict=True))
    for start in starts:
        assert start["start"].keys() == reference.keys()
        for name, value in start["start"].items():
            assert abs(value / reference[name] - 1) >= 0.5


@pytest.mark.parametrize("env_id", [_systems_apart(env_id) for env_id in ENTRIES])
def test_a_decoder_that_draws_an_empty_scene_would_be_noticed(
    env_id: str, unseen: Callable[[str], TestSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(env_id, DEFAULT_VARIANT)
    honest = decoding(model, unseen(env_id))
    height, width = model.system.frame.size
    nothing = (torch.tensor(model.system.frame.background) / 255).view(3, 1, 1)
    monkeypatch.setattr(
        type(model.autoencoder),
        "decode",
        lambda self, configuration: nothing.expand(len(configuration), 3, height, width),
    )
    empty = decoding(model, unseen(env_id))
    assert empty["foreground_mse"] > 2 * honest["foreground_mse"]
    assert empty["reread_rmse"]["x"] > 5 * honest["reread_rmse"]["x"]


def test_weights_are_small() -> None:
    for path in WEIGHTS.glob("*.safetensors"):
        assert path.stat().st_size < 6.5e6
