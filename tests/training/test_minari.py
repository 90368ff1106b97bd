import importlib
import json
import sys
from pathlib import Path

import minari
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from minari.serialization import serialize_space

from piwm_gym.systems import get_system
from training.collect import Settings, collect, preset_settings
from training.dataset import read_manifest, read_shard
from training.minari import METADATA_KEY, from_minari, main, to_minari

SETTINGS = {
    "cartpole": preset_settings("cartpole", "debug"),
    "lunar_lander": Settings("lunar_lander", 5, steps=12, shard_size=2),
    "donkey_car": Settings("donkey_car", 3, steps=6, shard_size=2),
}
SMALL = Settings("cartpole", trajectories=3, steps=4, shard_size=2)
ID = "piwm/cartpole/small-v0"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "small"
    collect(SMALL, folder)
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def edit(data: Path, **changes: object) -> None:
    """Change the metadata of a dataset; None removes a key."""
    path = data / "data" / "metadata.json"
    metadata = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in metadata.items() if v is not None}))


@pytest.mark.parametrize("system", SETTINGS)
def test_a_data_set_comes_back_bit_for_bit(system, tmp_path):
    """Every file: shards, marks, and the manifest."""
    there, back = tmp_path / "there", tmp_path / "deeper" / "back"
    collect(SETTINGS[system], there)
    to_minari(there, f"piwm/{system}/debug-v0")
    assert from_minari(f"piwm/{system}/debug-v0", back) == back / "manifest.json"
    assert files(back) == files(there)
    collect(SETTINGS[system], back)  # finds everything done
    assert files(back) == files(there)


@pytest.mark.parametrize("system", SETTINGS)
def test_episodes_are_what_the_real_environment_shows(system, tmp_path):
    collect(SETTINGS[system], tmp_path / "there")
    target = to_minari(tmp_path / "there", f"piwm/{system}/debug-v0")
    assert json.loads((target / "data" / "metadata.json").read_text())["jpeg_encoding"] is False
    dataset = minari.load_dataset(f"piwm/{system}/debug-v0")
    manifest = read_manifest(tmp_path / "there")
    assert len(dataset) == manifest["trajectories"]
    assert dataset.storage.metadata[METADATA_KEY] == manifest
    assert dataset.env_spec.kwargs["obs_type"] == "pixels_state"
    shard = read_shard(tmp_path / "there", manifest["shards"][0], manifest)
    steps = manifest["steps"]
    for i, episode in enumerate(dataset.iterate_episodes(range(2))):
        np.testing.assert_array_equal(episode.observations["pixels"], shard["frames"][i])
        np.testing.assert_array_equal(episode.infos["state"], shard["states"][i])
        for t in range(steps):
            seen = {name: values[t] for name, values in episode.observations.items()}
            assert seen in dataset.observation_space
            assert episode.actions[t] in dataset.action_space
        assert episode.rewards.shape == episode.terminations.shape == (steps,)
        assert not episode.truncations[:-1].any()
        assert episode.truncations[-1] != episode.terminations[-1]


def test_the_environment_of_the_metadata_repeats_an_episode(small):
    to_minari(small, ID)
    dataset = minari.load_dataset(ID)
    env = dataset.recover_environment()
    assert env.observation_space == dataset.observation_space
    assert env.action_space == dataset.action_space
    episode = dataset[0]
    observed, _ = env.reset(options={"state": episode.infos["state"][0]})
    for t in range(SMALL.steps):
        np.testing.assert_array_equal(observed["pixels"], episode.observations["pixels"][t])
        np.testing.assert_allclose(observed["state"], episode.observations["state"][t], atol=1e-5)
        observed, reward, terminated, *_ = env.step(episode.actions[t])
        assert (reward, terminated) == (episode.rewards[t], episode.terminations[t])
        if terminated:
            break
    env.close()


def test_jpeg_is_refused(small, tmp_path):
    """Minari's own combination of datasets encodes the pixels anew."""
    to_minari(small, ID)
    minari.combine_datasets([minari.load_dataset(ID)], "combined-v0")
    with pytest.raises(ValueError, match="combined-v0 has jpeg_encoding true, expected false"):
        from_minari("combined-v0", tmp_path / "back")


CART = get_system("cartpole")
PIXELS = Box(0, 255, (64, 64, 3), np.uint8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"observation_space": serialize_space(PIXELS)}, "lack pixels and state"),
        ({"observation_space": serialize_space(Dict({"pixels": PIXELS}))}, "lack state: they are"),
        (
            {"observation_space": serialize_space(Dict({"pixels": PIXELS, "state": PIXELS}))},
            "observation_space of .* is Dict.*, expected Dict.* of cartpole",
        ),
        ({"action_space": serialize_space(Discrete(3))}, r"Discrete\(3\), expected Discrete\(2\)"),
        ({METADATA_KEY: None}, "has no piwm_manifest in its metadata"),
        ({METADATA_KEY: {"schema": "2"}}, "unknown schema '2'"),
        ({"total_episodes": 2}, "has 2 episodes, expected 3"),
    ],
)
def test_other_datasets_are_refused(changes, message, small, tmp_path):
    edit(to_minari(small, ID), **changes)
    with pytest.raises(ValueError, match=message):
        from_minari(ID, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_nothing_half_written_stays(small, tmp_path, root):
    target = to_minari(small, ID)
    edit(target, **{METADATA_KEY: {**read_manifest(small), "steps": 5}})
    with pytest.raises(ValueError, match="episode 0 has 4 steps, expected 5"):
        from_minari(ID, tmp_path / "new" / "back")
    assert not list((tmp_path / "new").iterdir())
    damaged = tmp_path / "damaged"
    collect(SMALL, damaged)
    (damaged / "shard-00001.npz").write_bytes(b"")
    with pytest.raises(ValueError, match="the file is damaged"):
        to_minari(damaged, "other-v0")
    assert [path.name for path in root.iterdir()] == ["piwm"]


def test_existing_targets_and_bad_ids_are_refused(small, tmp_path):
    to_minari(small, ID)
    with pytest.raises(FileExistsError, match="small-v0 exists; .* next version"):
        to_minari(small, ID)
    with pytest.raises(FileExistsError, match="choose another folder"):
        from_minari(ID, tmp_path)
    for wrong in ("piwm/cartpole/small", "../small-v0"):
        with pytest.raises(ValueError, match=r"expected namespace/name-vNUMBER"):
            to_minari(small, wrong)
    with pytest.raises(FileNotFoundError, match=f"did you mean '{ID}'"):
        from_minari("piwm/cartpole/smal-v0", tmp_path / "back")


def test_a_data_set_without_all_states_is_refused(small, tmp_path):
    manifest = {**read_manifest(small), "missing_states": ["x_dot"]}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match="holds no x_dot, which rewards"):
        to_minari(tmp_path, ID)


def test_the_command_line(small, tmp_path, capsys):
    assert main(["export", str(small), ID]) == 0
    assert main(["import", ID, str(tmp_path / "back")]) == 0
    assert files(tmp_path / "back") == files(small)
    capsys.readouterr()
    assert main(["import", "none-v0", str(tmp_path / "back2")]) == 2
    assert "unknown dataset_id 'none-v0'" in capsys.readouterr().err


def test_without_minari_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    monkeypatch.delitem(sys.modules, "training.minari")
    with pytest.raises(ImportError, match=r"pip install 'piwm-gym\[minari\]'"):
        importlib.import_module("training.minari")
