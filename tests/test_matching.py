"""Readings matched to frames: pictures of known places bring them there, and nothing gets worse."""

import math

import pytest
import torch
from torch import Tensor

import piwm_gym
from piwm_gym.models import AutoencoderConfig, build_autoencoder
from piwm_gym.models.direct import DirectConfig
from piwm_gym.models.matching import AROUND, EVERY, around, matched
from piwm_gym.systems import CartPole, DonkeyCar
from piwm_gym.world_model import WorldModel

NEAR = torch.tensor([0.05, 0.05, 0.02])
"""About as far as an encoder's readings are off, m and rad."""


@pytest.fixture(scope="module")
def model() -> WorldModel:
    return piwm_gym.load("PIWM-DonkeyCar-v0", device="cpu")


def poses(model: WorldModel, count: int, seed: int = 0) -> Tensor:
    """(n, 3) x, y and heading of cars all over the course."""
    generator = torch.Generator().manual_seed(seed)
    uniforms = torch.rand(count, model.system.num_anywhere_uniforms, generator=generator)
    return model.system.anywhere(uniforms)[:, model.system.visible]


def off(poses: Tensor, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return poses + NEAR * torch.randn(poses.shape, generator=generator)


def distance(model: WorldModel, a: Tensor, b: Tensor) -> Tensor:
    """(n, 3) absolute differences, m and rad."""
    return model.system.difference(a, b, model.system.visible_variables).abs()


@torch.no_grad()
def test_pictures_bring_readings_to_where_they_were_drawn(model: WorldModel) -> None:
    truth = poses(model, 64)
    frames = model.autoencoder.decode(truth).clamp(0, 1)
    before = distance(model, off(truth), truth)
    after = distance(model, matched(model.autoencoder, frames, off(truth), steps=6), truth)
    assert before.median() > 0.02
    assert after.median() < 1e-4
    assert (after < NEAR / 5).all(1).float().mean() > 0.6
    assert torch.equal(matched(model.autoencoder, frames, truth, steps=3), truth), "already there"


@torch.no_grad()
def test_readings_too_far_off_to_be_moved_are_searched_for(
    model: WorldModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By several of the steps' longest moves."""
    truth = poses(model, 64)
    frames = model.autoencoder.decode(truth).clamp(0, 1)
    readings = truth + torch.tensor([0.15, -0.1, 0.05])

    def found() -> float:
        off = distance(model, matched(model.autoencoder, frames, readings, steps=3), truth)
        return float((off < 0.05).all(1).float().mean())

    assert found() > 0.8
    monkeypatch.setattr("piwm_gym.models.matching.CANDIDATES", 1)
    assert found() < 0.1


def test_places_around_a_reading_are_always_the_same() -> None:
    """And leave the generators of those who read alone."""
    before = torch.get_rng_state()
    places = around(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(places, around(3))
    assert torch.equal(places[0], torch.zeros(3)), "the reading itself is tried, and first"
    spread = places[1:].square().mean(1).sqrt()
    assert spread.min() < AROUND[0] < AROUND[1] < spread.max() < 3 * AROUND[1]


@torch.no_grad()
def test_no_reading_gets_worse(model: WorldModel) -> None:
    """Also where a frame is of some other place, or of none."""
    readings = poses(model, 32)
    drawn = model.autoencoder.decode(poses(model, 32, seed=5)).clamp(0, 1)
    for frames in (drawn, torch.rand_like(drawn), torch.zeros_like(drawn)):
        found = matched(model.autoencoder, frames, readings, steps=3)
        assert found.isfinite().all()
        direct = model.autoencoder.direct
        assert direct is not None
        here, there, seen = (
            direct.sample(model.autoencoder.normalize(readings), EVERY),
            direct.sample(model.autoencoder.normalize(found), EVERY),
            direct.sampled(frames, EVERY),
        )
        cost, before = ((x - seen).square().sum((1, 2)) for x in (there, here))
        assert (cost <= before + 1e-4).all()


@torch.no_grad()
def test_headings_come_round(model: WorldModel) -> None:
    truth = poses(model, 16)
    truth[:, 2] = math.pi - 0.005
    frames = model.autoencoder.decode(truth).clamp(0, 1)
    beyond = truth + torch.tensor([0.0, 0.0, 0.02])
    found = matched(model.autoencoder, frames, beyond, steps=4)
    assert (found[:, 2].abs() <= math.pi + 1e-5).all()
    assert distance(model, found, truth).median() < 1e-3


def test_matched_readings_move_with_the_frames(model: WorldModel) -> None:
    """The derivative by the pose, through drawing and matching, is about one: within a step of the
    numerical derivatives drawings bend."""
    truth = poses(model, 8).requires_grad_()
    frames = model.autoencoder.decode(truth)
    found = matched(model.autoencoder, frames, truth.detach(), steps=1)
    for i in range(3):
        (slope,) = torch.autograd.grad(found[:, i].sum(), truth, retain_graph=True)
        expected = torch.zeros(3)
        expected[i] = 1.0
        assert torch.allclose(slope.median(0).values, expected, atol=0.2)


@torch.no_grad()
def test_a_frame_reads_alike_alone_and_among_others(model: WorldModel) -> None:
    frames = model.autoencoder.decode(off(poses(model, 70))).clamp(0, 1)
    together = model.encode_frames(frames)
    for i in (0, 69):
        assert torch.allclose(model.encode_frames(frames[i]), together[i], atol=1e-4)


@torch.no_grad()
def test_samples_are_patches_of_the_whole(model: WorldModel) -> None:
    direct = model.autoencoder.direct
    assert direct is not None
    normalized = model.autoencoder.normalize(poses(model, 3))
    whole = direct(normalized).clamp(0, 1)
    for every in (1, 2, 7):
        sample = direct.sample(normalized, every)
        assert torch.allclose(direct.sampled(whole, every), sample, atol=1e-5)
    first = direct.sampled(whole, 1)[:, 0].unflatten(1, (direct.patch, direct.patch, 3))
    assert torch.equal(first, whole[:, :, : direct.patch, : direct.patch].movedim(1, -1))


def test_matching_needs_something_to_match_with() -> None:
    with pytest.raises(ValueError, match=r"matching is 2.*expected 0 for cartpole"):
        build_autoencoder(AutoencoderConfig(matching=2, direct=DirectConfig(8)), CartPole())
    with pytest.raises(ValueError, match=r"matching is 2.*direct decoder"):
        build_autoencoder(AutoencoderConfig(matching=2), DonkeyCar())
