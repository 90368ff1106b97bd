import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from training.collect import Settings, collect, shard_path
from training.dataset import (
    FOLDS,
    OF_SHARD,
    REQUIRED,
    TrajectoryDataset,
    describe,
    load_dataset,
    read_manifest,
)

SETTINGS = Settings("cartpole", trajectories=7, steps=4, shard_size=3, seed=1)


@pytest.fixture(scope="module")
def collected(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    collect(SETTINGS, folder)
    return folder


@pytest.fixture
def folder(collected, tmp_path) -> Path:
    return Path(shutil.copytree(collected, tmp_path / "copy"))


def test_shapes_and_dtypes(collected):
    data = load_dataset(collected)
    assert len(data) == 7
    assert data.frames.shape == (7, 5, 64, 64, 3)
    assert data.frames.dtype == np.uint8
    assert data.actions.shape == (7, 4)
    assert data.actions.dtype == np.int64
    assert data.states.shape == (7, 5, 4)
    assert data.states.dtype == np.float32
    assert data.manifest["system"] == "cartpole"


def test_order_is_that_of_the_shards(collected):
    data = load_dataset(collected)
    for shard, members in ((0, slice(0, 3)), (1, slice(3, 6)), (2, slice(6, 7))):
        with np.load(shard_path(collected, shard)) as arrays:
            np.testing.assert_array_equal(data.frames[members], arrays["frames"])
            np.testing.assert_array_equal(data.actions[members], arrays["actions"])
            np.testing.assert_allclose(data.states[members], arrays["states"], rtol=1e-6)


@pytest.mark.parametrize("limit", [1, 3, 5, 100])
def test_limit(collected, limit):
    whole, part = load_dataset(collected), load_dataset(collected, limit=limit)
    assert len(part) == min(limit, 7)
    np.testing.assert_array_equal(part.frames, whole.frames[:limit])
    np.testing.assert_array_equal(part.states, whole.states[:limit])


def test_limit_must_leave_something(collected):
    with pytest.raises(ValueError, match="limit is 0; expected at least 1"):
        load_dataset(collected, limit=0)


def empty(n: int, fold: int | None = None) -> TrajectoryDataset:
    return TrajectoryDataset(
        np.zeros((n, 2, 1, 1, 3), np.uint8),
        np.zeros((n, 1)),
        np.zeros((n, 2, 4)),
        np.zeros((n, 0)),
        {},
        fold,
    )


@pytest.mark.parametrize("n", [1, 7, 24, 2000])
def test_split_is_a_partition_of_the_trajectories(n):
    parts = empty(n).split(seed=5)
    assert list(parts) == ["train", "validation", "test"]
    together = np.concatenate(list(parts.values()))
    np.testing.assert_array_equal(np.sort(together), np.arange(n))
    if n == 2000:
        assert [len(p) for p in parts.values()] == [1600, 200, 200]


def test_split_depends_on_the_seed_only():
    first, again, other = (empty(50).split(seed=s) for s in (0, 0, 1))
    np.testing.assert_array_equal(first["train"], again["train"])
    assert not np.array_equal(first["train"], other["train"])


@pytest.mark.parametrize("fractions", [(0.8, 0.1, 0.2), (1.2, -0.1, -0.1), (0.5, 0.5)])
def test_split_rejects_other_fractions(fractions):
    with pytest.raises(ValueError, match="expected three non-negative shares"):
        empty(10).split(fractions=fractions)


def test_the_plain_split_is_the_one_that_shipped_weights_were_trained_with():
    split = empty(24).split()
    assert split["test"].tolist() == [1, 15]
    assert split["validation"].tolist() == [9, 14, 17]


@pytest.mark.parametrize("n", [5, 24, 2000])
def test_folds_test_every_trajectory_once_and_validate_on_the_next(n):
    splits = [empty(n, fold).split() for fold in range(FOLDS)]
    tested = np.concatenate([split["test"] for split in splits])
    np.testing.assert_array_equal(np.sort(tested), np.arange(n))
    for split, following in zip(splits, splits[1:] + splits[:1], strict=True):
        np.testing.assert_array_equal(split["validation"], following["test"])
        together = np.concatenate(list(split.values()))
        np.testing.assert_array_equal(np.sort(together), np.arange(n))
        assert max(map(len, split.values())) == len(split["train"]) >= 3 * (n // FOLDS)


def test_impossible_folds():
    with pytest.raises(ValueError, match=r"fold is 5; expected 0 to 4.*did you mean 4\?"):
        empty(24, 5)
    with pytest.raises(ValueError, match=r"fold is -1; expected 0 to 4.*did you mean 0\?"):
        load_dataset("nowhere", fold=-1)
    with pytest.raises(ValueError, match="4 trajectories; 5 folds need at least 5"):
        empty(4, 0).split()


def test_only_a_fold_changes_the_description(collected):
    plain, fold = load_dataset(collected).description, load_dataset(collected, fold=3).description
    assert "fold" not in plain
    assert fold == {**plain, "fold": 3}
    assert plain == describe(read_manifest(collected))
    assert load_dataset(collected, limit=2).description == {**plain, "trajectories": 2}


def test_missing_data_set_names_the_command(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no data set.*python -m training\.collect"):
        load_dataset(tmp_path / "nowhere")


def test_unfinished_collection_is_not_a_data_set(folder):
    (folder / "manifest.json").unlink()
    with pytest.raises(FileNotFoundError, match="collection has not finished"):
        load_dataset(folder)


def test_half_a_shard_never_loads(folder):
    path = shard_path(folder, 1)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"shard-00001.npz has sha256 .*expected .*--seed 1"):
        load_dataset(folder)


def test_missing_shard(folder):
    shard_path(folder, 2).unlink()
    with pytest.raises(ValueError, match=r"shard-00002.npz is missing.*run `python"):
        load_dataset(folder)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schema", "piwm-trajectories-0", "did you mean 'piwm-trajectories-1'"),
        ("steps", 9, r"frames has shape \(3, 5, 64, 64, 3\), expected \(3, 10, 64, 64, 3\)"),
    ],
)
def test_manifest_must_fit(folder, key, value, message):
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ValueError, match=message):
        load_dataset(folder)


@pytest.mark.parametrize("content", [b"{", b"", b"\xff\x00"])
def test_manifest_must_be_json(folder, content):
    (folder / "manifest.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"manifest\.json is not JSON .*run `python"):
        load_dataset(folder)


@pytest.mark.parametrize("content", ["[]", "null", "3", '"text"'])
def test_manifest_must_be_an_object(folder, content):
    (folder / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json holds a .*expected an object; delete it"):
        load_dataset(folder)


def test_what_a_manifest_lacks_is_named(folder):
    path = folder / "manifest.json"
    whole = json.loads(path.read_text())
    for name in REQUIRED:
        path.write_text(json.dumps({key: whole[key] for key in whole if key != name}))
        with pytest.raises(ValueError, match=rf"manifest\.json lacks {name}; delete it and run"):
            load_dataset(folder)
    lacking = [{k: v for k, v in whole["shards"][0].items() if k != name} for name in OF_SHARD]
    for shards in ([], {}, None, [None], *([shard] for shard in lacking)):
        path.write_text(json.dumps({**whole, "shards": shards}))
        with pytest.raises(ValueError, match=r"manifest\.json: shards is .*expected a list"):
            load_dataset(folder)


@pytest.mark.parametrize("content", ["[]", "{", ""])
def test_damaged_descriptions_are_made_again_or_named(folder, content):
    before = load_dataset(folder)
    (folder / "shard-00001.json").write_text(content)
    collect(SETTINGS, folder)
    np.testing.assert_array_equal(load_dataset(folder).frames, before.frames)
    (folder / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match=r"manifest\.json is damaged .*; delete it"):
        collect(SETTINGS, folder)
    (folder / "manifest.json").unlink()
    collect(SETTINGS, folder)
    assert load_dataset(folder).manifest == before.manifest
