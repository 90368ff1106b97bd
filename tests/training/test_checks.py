"""What nothing can be done with is refused by name, before anything runs."""

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from piwm_gym.checkpoint import save
from piwm_gym.checks import writable_folder
from piwm_gym.models import VARIANTS
from piwm_gym.world_model import WorldModel
from training import collect, evaluate, identify, refine, reproduce, train
from training.checks import check_settings
from training.config import PRESETS, TrainConfig, preset
from training.training_data import check_place, check_system

NOWHERE = Path("/dev/null/x")


@pytest.mark.parametrize("system", ["cartpole", "lunar_lander", "donkey_car"])
def test_every_preset_is_within_bounds(system: str) -> None:
    for name in PRESETS:
        for variant in VARIANTS:
            check_settings(preset(name, variant, system))


def numbers(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float]]:
    """Paths and values of all numbers among the settings."""
    for field in dataclasses.fields(tree):
        value, here = getattr(tree, field.name), (*path, field.name)
        if dataclasses.is_dataclass(value):
            yield from numbers(value, here)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield here, value


def changed(tree: Any, path: tuple[str, ...], value: float) -> Any:
    """Settings with another number at a path."""
    name, *rest = path
    inner = changed(getattr(tree, name), tuple(rest), value) if rest else value
    return dataclasses.replace(tree, **{name: inner})


def test_no_number_may_be_negative_or_infinite() -> None:
    config = preset("debug", "extrinsic-discrete")
    paths = list(numbers(config))
    assert len(paths) > 100
    for path, value in paths:
        if path[-2:] in (("transformer", "heads"), ("transformer", "width")):
            continue  # their own class refuses these
        for wrong in (-1.0, math.nan, math.inf) if isinstance(value, float) else (-1,):
            named = re.escape(f"{'.'.join(path)} is {wrong}; expected ")
            with pytest.raises(ValueError, match=named):
                check_settings(changed(config, path, wrong))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--vision.epochs 0", "vision.epochs is 0; expected at least 1"),
        ("--vision.epochs -1", "vision.epochs is -1; expected at least 1"),
        ("--vision.batch-size 0", "vision.batch_size is 0; expected at least 1"),
        ("--vision.patience 0", "vision.patience is 0; expected at least 1"),
        ("--vision.learning-rate -1", "vision.learning_rate is -1.0; expected at least 0"),
        ("--views.epochs -1", "views.epochs is -1; expected at least 0"),
        ("--starts 0", "starts is 0; expected at least 1"),
        ("--autoencoder.num-codes 0", "autoencoder.num_codes is 0; expected 1 to 32767"),
        ("--autoencoder.num-codes 40000", "num_codes is 40000; expected 1 to 32767"),
        ("--autoencoder.vision.kernels 8 4", "kernels has 2 numbers; expected 1, one for each of"),
        ("--weights.pixel -1", "weights.pixel is -1.0; expected at least 0"),
        ("--weights.visual-dropout 2", "weights.visual_dropout is 2.0; expected 0 to 1"),
        ("--noise-level 5", "noise_level is 5.0; expected a fraction of the range, 0 to 1"),
        ("--noise-level nan", "noise_level is nan; expected"),
        ("--label-seed -1", "seed is -1; expected 0 or more"),
    ],
)
def test_settings_out_of_bounds_show_at_once(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main(["cartpole", "--preset", "debug", "--data", "nowhere", *words.split()]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_stages_may_be_left_out() -> None:
    words = ["cartpole", "--preset", "debug", "--views.epochs", "0", "--refinement.epochs", "0"]
    _, (config,) = train.parse([*words, "--decoder.epochs", "0", "--direct.epochs", "0"])
    assert isinstance(config, TrainConfig)


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    assert writable_folder("out", tmp_path / "a" / "b").is_dir()
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", NOWHERE):
        with pytest.raises(ValueError, match=f"out: nothing can be written to {folder} "):
            writable_folder("out", folder)


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    collect.collect(collect.Settings("cartpole", 10, steps=49), folder)
    return folder


@pytest.fixture(scope="module")
def lander_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lander-data")
    collect.collect(collect.Settings("lunar_lander", 2, steps=5), folder)
    return folder


@pytest.fixture
def checkpoint(make_tiny: Callable[..., WorldModel], tmp_path: Path) -> Path:
    path = tmp_path / "cartpole-extrinsic-continuous.safetensors"
    supervision = {"noise_level": 0.05, "bias": "per_step", "num_proxies": 50, "seed": 0}
    record = {"data": {"supervision": supervision}, "training": {}, "stages": {}}
    save(make_tiny(), path, record)
    return path


def said(call: Callable[[], Any], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says that ends with exit status 2, in one line."""
    try:
        status = call()
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    return " ".join(capsys.readouterr().err.split())


def test_commands_refuse_folders_that_cannot_be_written_to(
    data_folder: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cartpole", "--preset", "debug", "--quiet", "--data", str(data_folder)]
    runs, out = (["--runs", str(tmp_path / "r")], ["--out", str(tmp_path / "o")])
    matrix = ["cartpole", "--preset", "debug", "--data-preset", "debug"]
    places = {"data": data_folder, "runs": tmp_path / "runs"}
    refused: dict[str, list[Callable[[], Any]]] = {
        "runs": [
            lambda: train.main([*words, *out, "--runs", str(NOWHERE)]),
            lambda: evaluate.main("cartpole", (checkpoint,), data_folder, tmp_path, NOWHERE),
            lambda: refine.main(checkpoint, data_folder, NOWHERE, preset_name="debug"),
            lambda: reproduce.main([*matrix, *out, "--runs", str(NOWHERE)]),
        ],
        "out": [
            lambda: train.main([*words, *runs, "--out", str(NOWHERE)]),
            lambda: collect.main("cartpole", "debug", NOWHERE, workers=1),
            lambda: evaluate.main("cartpole", (checkpoint,), out=NOWHERE, **places),
            lambda: refine.main(checkpoint, out=NOWHERE / "x", preset_name="debug", **places),
            lambda: reproduce.main([*matrix, *runs, "--out", str(NOWHERE)]),
            lambda: identify.main((data_folder / "x.csv",), NOWHERE / "x.csv"),
        ],
        "data": [lambda: reproduce.main([*matrix, *runs, *out, "--data", str(NOWHERE)])],
        "results": [
            lambda: reproduce.main(
                [*matrix, *runs, *out, "--data", str(tmp_path), "--results", str(NOWHERE)]
            )
        ],
    }
    for name, calls in refused.items():
        for call in calls:
            assert f"{name}: nothing can be written to {NOWHERE}" in said(call, capsys)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match=r"out: nothing .* \(Permission denied\)"):
        writable_folder("out", tmp_path)


def test_data_of_another_system_are_refused(
    lander_folder: Path,
    checkpoint: Path,
    make_tiny: Callable[..., WorldModel],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both systems are named, and nothing is trained, measured or written."""
    before = checkpoint.read_bytes()
    words = ["cartpole", "--preset", "debug", "--runs", str(tmp_path / "runs")]
    for call in (
        lambda: train.main([*words, "--data", str(lander_folder)]),
        lambda: evaluate.main("cartpole", (checkpoint,), lander_folder, tmp_path / "results"),
        lambda: refine.main(checkpoint, lander_folder, tmp_path / "runs", preset_name="debug"),
    ):
        told = said(call, capsys)
        assert "data: they are of 'lunar_lander'; expected data of 'cartpole'" in told
    told = said(lambda: evaluate.main("lunar_lander", (checkpoint,), lander_folder), capsys)
    assert "is of 'cartpole'; expected a checkpoint of 'lunar_lander'" in told
    assert [path for path in tmp_path.iterdir() if path != checkpoint] == []
    assert checkpoint.read_bytes() == before
    check_system({"system": "cartpole"}, "cartpole")
    with pytest.raises(ValueError, match="'donkey_car'; expected data of 'cartpole'"):
        check_place(make_tiny(), {"system": "donkey_car"})


def test_evaluation_needs_checkpoints(
    data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = said(lambda: evaluate.main("cartpole", (), data_folder), capsys)
    assert "checkpoints: there are none; expected at least one file" in told


def test_models_of_untold_training_are_refused(
    make_tiny: Callable[..., WorldModel],
    data_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "mine.safetensors"
    save(make_tiny(), path, {"data": {}})
    for call in (
        lambda: evaluate.main("cartpole", (path,), data_folder, tmp_path, tmp_path / "runs"),
        lambda: refine.main(path, data_folder, tmp_path / "runs", preset_name="debug"),
    ):
        told = said(call, capsys)
        assert "does not tell training, stages in its metadata; expected a checkpoint" in told
