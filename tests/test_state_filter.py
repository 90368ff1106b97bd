"""States of running systems from frames, and whether what was read is to be seen."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

import piwm_gym
from piwm_gym import StateFilter
from piwm_gym.world_model import WorldModel

FRAME = torch.zeros(1, 64, 64, 3, dtype=torch.uint8)


class Told:
    """A model that reads of frames what it is told, and sees the system where it is told."""

    def __init__(self, model: WorldModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reading = torch.zeros(1, len(model.system.configuration))
        self.seen = torch.ones(1, dtype=torch.bool)
        monkeypatch.setattr(model, "encode_frames", lambda frames: self.reading)
        monkeypatch.setattr(model, "recognize", lambda frames, read: self.seen)


def test_states_are_followed_through_an_episode(
    model: WorldModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.reading_std.fill_(1e-3)
    told, states = Told(model, monkeypatch), StateFilter(model)
    system = model.system
    state = system.initial(torch.rand(3, 4))
    told.reading, told.seen = state[:, system.visible], torch.ones(3, dtype=torch.bool)
    first = states.reset(FRAME.expand(3, -1, -1, -1))
    assert first.shape == (3, 4)
    uncertain = states.std
    for t in range(40):
        action = torch.tensor([t % 2, (t + 1) % 2, 1])
        state = system.transition(state, action, model.params)
        told.reading = state[:, system.visible]
        found = states.update(FRAME.expand(3, -1, -1, -1), action)
    torch.testing.assert_close(found, state, rtol=0, atol=5e-3)
    assert (states.std[:, [1, 3]] < uncertain[:, [1, 3]] + 0.05).all()
    assert states.scene is None


def test_scenes_are_averaged_and_used(
    make_tiny: Callable[..., WorldModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_tiny(system="lunar_lander")
    told, states = Told(model, monkeypatch), StateFilter(model)
    told.reading = torch.tensor([[0.0, 5.0, 0.0, *[-0.5] * 11]])
    frame = torch.zeros(1, 64, 96, 3, dtype=torch.uint8)
    states.reset(frame)
    told.reading = torch.tensor([[0.0, 5.0, 0.0, *[-0.7] * 11]])
    states.update(frame, torch.tensor([0]))
    torch.testing.assert_close(states.scene, torch.full((1, 11), -0.6))
    assert (states.std[:, 6:] == 0).all()  # flags and timers are not estimated


def test_what_is_not_seen_changes_nothing(
    model: WorldModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, states = Told(model, monkeypatch), StateFilter(model)
    start = states.reset(FRAME)
    told.reading, told.seen = torch.tensor([[2.0, 0.2]]), torch.zeros(1, dtype=torch.bool)
    found = states.update(FRAME, torch.tensor([1]))
    expected = model.system.transition(start, torch.tensor([1]), model.params)
    torch.testing.assert_close(found, expected)


def test_masked_systems_begin_anew(model: WorldModel, monkeypatch: pytest.MonkeyPatch) -> None:
    told, states = Told(model, monkeypatch), StateFilter(model)
    frames = FRAME.expand(2, -1, -1, -1)
    told.reading, told.seen = torch.zeros(2, 2), torch.ones(2, dtype=torch.bool)
    states.reset(frames)
    for _ in range(5):
        states.update(frames, torch.tensor([0, 0]))
    before, spread = states.state, states.std
    after = states.reset(frames, mask=torch.tensor([True, False]))
    assert torch.equal(after[1], before[1])
    assert torch.equal(states.std[1], spread[1])
    fresh = StateFilter(model)
    torch.testing.assert_close(after[0], fresh.reset(frames)[0])


def test_anywhere_takes_the_reading_at_its_word(
    model: WorldModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, states = Told(model, monkeypatch), StateFilter(model)
    told.reading = torch.tensor([[1.5, -0.15]])
    found = states.reset(FRAME, start="anywhere")
    torch.testing.assert_close(found, torch.tensor([[1.5, 0.0, -0.15, 0.0]]))
    assert abs(float(states.reset(FRAME)[0, 0])) < 0.5  # no episode begins there


BAD = {
    "call reset": lambda s: StateFilter(s.model).update(FRAME, [0]),
    "call reset with": lambda s: StateFilter(s.model).reset(FRAME, mask=[True]),
    "did you mean 'anywhere'": lambda s: s.reset(FRAME, start="anywere"),
    r"frames has shape \(64, 64, 3\)": lambda s: s.reset(FRAME[0]),
    r"frames has shape \(0, 64, 64, 3\).*at least one": lambda s: s.reset(FRAME[:0]),
    r"frames has shape \(2, 64, 64, 3\).*1 frames": lambda s: s.update(
        FRAME.expand(2, -1, -1, -1), [0]
    ),
    "frames has numbers from nan to nan; expected finite": lambda s: s.update(
        torch.full((1, 3, 64, 64), torch.nan), [0]
    ),
    r"action has shape \(2,\)": lambda s: s.update(FRAME, torch.tensor([0, 1])),
    "action of environment 0 is 7": lambda s: s.update(FRAME, np.array([7])),
    "action of environment 0 is nan": lambda s: s.update(FRAME, torch.tensor([torch.nan])),
    r"mask has shape \(1, 1\)": lambda s: s.reset(FRAME, mask=torch.tensor([[True]])),
    r"mask has shape \(1,\) and dtype torch.int64": lambda s: s.reset(FRAME, mask=[1]),
    "did you mean 'length'": lambda s: StateFilter(s.model, {"lenght": 1.0}),
}
"""Misuse of a filter of one Cart Pole, by what the message says of it."""


@pytest.mark.parametrize("message", BAD)
def test_misuse_is_refused_and_changes_nothing(message: str, model: WorldModel) -> None:
    states = StateFilter(model)
    before = states.reset(FRAME)
    with pytest.raises(ValueError, match=message):
        BAD[message](states)
    assert torch.equal(states.state, before)
    assert states.update(FRAME.numpy(), np.array([0])).shape == (1, 4)


def test_what_is_returned_is_the_callers_own(model: WorldModel) -> None:
    states = StateFilter(model)
    states.reset(FRAME).fill_(7.0)
    states.state.add_(1.0)
    assert (states.state < 1.0).all()


def test_other_parameters_move_it_otherwise(
    model: WorldModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told(model, monkeypatch)
    found = []
    for states in (StateFilter(model), StateFilter(model, {"force_mag": 30.0})):
        told.seen = torch.ones(1, dtype=torch.bool)
        states.reset(FRAME)
        told.seen = torch.zeros(1, dtype=torch.bool)
        found.append(float(states.update(FRAME, [1])[0, 1]))
    assert found[1] == pytest.approx(3 * found[0], rel=0.05)


def test_landers_that_are_not_there_are_not_recognized() -> None:
    model = piwm_gym.load("PIWM-LunarLander-v0", device="cpu")
    system = model.system
    generator = torch.Generator().manual_seed(0)
    scene = system.scene(torch.rand(32, 12, generator=generator))
    states = torch.zeros(32, 10)
    states[:, :2] = torch.rand(32, 2, generator=generator) * torch.tensor([12.0, 4.0])
    states[:, :2] += torch.tensor([-6.0, 4.0])
    frames = model.draw(states, scene)
    read = torch.cat((states[:, system.visible], scene), dim=1)
    assert model.recognize(frames, read).all()
    away = read.clone()
    away[:, 0] += 3.0
    assert not model.recognize(frames, away).any()
    gone = states.clone()
    gone[:, 1] = 12.0  # above the picture
    assert not model.recognize(model.draw(gone, scene), read).any()


def test_a_camera_that_moves_along_shows_something_everywhere(
    make_tiny: Callable[..., WorldModel],
) -> None:
    model = make_tiny(system="donkey_car")
    frames = torch.zeros(2, 3, 48, 80, 3, dtype=torch.uint8)
    seen = model.recognize(frames, torch.zeros(2, 3, 3))
    assert seen.shape == (2, 3)
    assert np.asarray(seen).all()
