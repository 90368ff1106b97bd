"""Drawn views for an encoder that a camera feeds which drives along."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from piwm_gym.models.direct import DirectConfig
from piwm_gym.world_model import WorldModel
from training.collect import Settings, collect
from training.config import effective, preset
from training.dataset import load_dataset
from training.pipeline import polish
from training.reading import encode_all, latents_of, match_validation
from training.refine import extended
from training.run import Run
from training.stages import LatentSource
from training.supervision import Supervision
from training.training_data import TrainingData
from training.views import ASIDE, TURNED, drawn_views


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TrainingData:
    """Ten drives with weak labels."""
    folder = tmp_path_factory.mktemp("drives")
    collect(Settings("donkey_car", 10, shard_size=10, seed=5), folder)
    return TrainingData.prepare(load_dataset(folder), Supervision(0.05), torch.device("cpu"))


def test_views_show_places_near_those_of_the_data(make_tiny: Callable[..., WorldModel]) -> None:
    model = make_tiny(system="donkey_car")
    generator = torch.Generator().manual_seed(1)
    driven = torch.rand(1, 3, generator=generator).expand(40, 3) * torch.tensor([1.0, 1.0, 3.0])
    frames, places = drawn_views(model.autoencoder, model.system, driven, seed=0)
    assert frames.shape == (40, 48, 80, 3)
    away = model.system.difference(places, driven, model.system.visible_variables).abs()
    furthest = torch.tensor([ASIDE, ASIDE, TURNED])
    assert (away <= furthest + 1e-5).all()
    assert (away.amax(0) > 0.7 * furthest).all()
    drawn = model.autoencoder.draw_frames(places)
    torch.testing.assert_close(frames, drawn, rtol=0, atol=1)  # gradients change the last bit
    again = drawn_views(model.autoencoder, model.system, driven, seed=0)
    assert torch.equal(again[1], places)
    assert not torch.equal(drawn_views(model.autoencoder, model.system, driven, 1)[1], places)


@pytest.mark.parametrize(
    ("system", "variant", "wanted"),
    [
        ("donkey_car", "extrinsic-discrete", True),
        ("donkey_car", "intrinsic-continuous", False),
        ("lunar_lander", "extrinsic-discrete", False),
    ],
)
def test_only_cameras_that_drive_along_have_views(system: str, variant: str, wanted: bool) -> None:
    for name in ("laptop", "gpu", "debug"):
        assert ("views" in effective(preset(name, variant, system))) == wanted
    assert "views" not in effective(preset("paper", variant, system))


def test_without_a_camera_there_are_no_views(model: WorldModel) -> None:
    with pytest.raises(ValueError, match="cartpole has no camera that drives along"):
        drawn_views(model.autoencoder, model.system, torch.zeros(4, 2), seed=0)


def test_views_train_the_physical_encoder_alone(
    make_tiny: Callable[..., WorldModel], data: TrainingData, tmp_path: Path
) -> None:
    model = make_tiny(system="donkey_car")
    autoencoder = model.autoencoder
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    config = preset("debug", "extrinsic-discrete", "donkey_car")
    none = replace(config.views, epochs=0)
    weights = replace(config.weights, interpretability_loss="kl")
    config = replace(config, refinement=none, decoder=none, direct=none, weights=weights)
    latents = latents_of(autoencoder, LatentSource(autoencoder.bottleneck), data.frames[0])
    latents = latents.expand(len(data.frames), *latents.shape)
    run = Run(tmp_path / "run")
    assert list(polish(model, config, data, run, latents, data.configurations)) == ["views"]
    changed = {n for n, t in model.state_dict().items() if not torch.equal(t, before[n])}
    parts = {name.removeprefix("autoencoder.").split(".")[0] for name in changed}
    assert parts == {"physical_encoder", "reading_std"}


def test_refined_models_match_their_readings(make_tiny: Callable[..., WorldModel]) -> None:
    """Where they have, or get, a direct decoder to match them with."""
    old = make_tiny(system="donkey_car")
    config = preset("laptop", "extrinsic-continuous", "donkey_car")
    none = replace(config.views, epochs=0)
    config = replace(config, refinement=none, views=none)
    new = extended(old, config)
    assert new.config.autoencoder.matching == 3
    without = replace(config, direct=none)
    assert extended(old, without).config.autoencoder.matching == 0
    assert extended(new, without).config.autoencoder.matching == 3
    assert preset("paper", "extrinsic-continuous", "donkey_car").autoencoder.matching == 0


def test_readings_of_validation_trajectories_alone_are_matched(
    make_tiny: Callable[..., WorldModel], data: TrainingData
) -> None:
    config = make_tiny(system="donkey_car").config
    parts = replace(config.autoencoder, direct=DirectConfig(4, 16), matching=2)
    torch.manual_seed(0)
    model = WorldModel(replace(config, autoencoder=parts)).eval()
    readings = encode_all(model.autoencoder, data.frames)
    matched = match_validation(model, data, readings)
    moved = (matched != readings).flatten(1).any(1)
    assert moved.nonzero().flatten().tolist() == sorted(data.validation.tolist())
    expected = model.encode_frames(data.frames[data.validation])
    torch.testing.assert_close(matched[data.validation], expected, rtol=0, atol=1e-3)
