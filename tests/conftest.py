"""Fixtures for all tests; checks the shape annotations of physics and networks at run time."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")

import jaxtyping
from jaxtyping import install_import_hook

with install_import_hook(["piwm_gym.systems", "piwm_gym.models"], "beartype.beartype"):
    import piwm_gym.models
    import piwm_gym.systems

import pytest
import torch

import piwm_gym
from piwm_gym.checkpoint import save
from piwm_gym.models import VARIANTS, AutoencoderConfig
from piwm_gym.models.physical import TransformerConfig
from piwm_gym.models.vision import VisionConfig
from piwm_gym.registration import DEFAULT_VARIANT
from piwm_gym.systems import System
from piwm_gym.world_model import WorldModel, WorldModelConfig

torch.set_num_threads(1)


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def unchecked_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shape annotations that are not checked: that takes a third of a training's time."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def hasty_dynamics(monkeypatch: pytest.MonkeyPatch) -> None:
    """One second-order step of stage 3 instead of ten: a training that need not learn anything."""
    from training import dynamics

    monkeypatch.setattr(dynamics, "refine", partial(dynamics.refine, iterations=1))


def tiny_model(variant: str = DEFAULT_VARIANT, system: str = "cartpole") -> WorldModel:
    """Untrained networks, the real environment's parameters, the documented range as data."""
    autoencoder = AutoencoderConfig(
        variant=variant,
        vision=VisionConfig(channels=(8,), token_dim=16),
        transformer=TransformerConfig(width=16, heads=2, feedforward=16, layers=1, frequencies=2),
        latent_dim=16,
        num_codes=16,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = WorldModel(WorldModelConfig(system=system, autoencoder=autoencoder))
    physics: System = model.system
    parametrisation = model.dynamics.parametrisation
    model.dynamics.set_values(parametrisation.from_params(physics.reference))
    model.state_low.copy_(torch.tensor([v.low for v in physics.variables]))
    model.state_high.copy_(torch.tensor([v.high for v in physics.variables]))
    return model.eval()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths of tiny, untrained Cart Pole checkpoints, by variant."""
    folder: Path = tmp_path_factory.mktemp("checkpoints")
    paths = {variant: str(folder / f"cartpole-{variant}.safetensors") for variant in VARIANTS}
    for variant, path in paths.items():
        save(tiny_model(variant), path, {"note": "untrained"})
    return paths


@pytest.fixture(scope="session")
def lander_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a tiny, untrained Lunar Lander checkpoint."""
    path = str(tmp_path_factory.mktemp("lander") / f"lunar_lander-{DEFAULT_VARIANT}.safetensors")
    save(tiny_model(system="lunar_lander"), path, {"note": "untrained"})
    return path


@pytest.fixture(scope="session")
def car_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a tiny, untrained Donkey Car checkpoint."""
    path = str(tmp_path_factory.mktemp("car") / f"donkey_car-{DEFAULT_VARIANT}.safetensors")
    save(tiny_model(system="donkey_car"), path, {"note": "untrained"})
    return path


@pytest.fixture(scope="session")
def checkpoint(checkpoints: dict[str, str]) -> str:
    """Path of the tiny checkpoint of the default variant."""
    return checkpoints[DEFAULT_VARIANT]


@pytest.fixture
def model() -> WorldModel:
    """A tiny untrained model with the real environment's parameters."""
    return tiny_model()


@pytest.fixture(scope="session")
def make_tiny() -> Callable[..., WorldModel]:
    """:func:`tiny_model`."""
    return tiny_model


assert piwm_gym.__version__
