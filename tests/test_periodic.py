"""A dimension that comes round: no jump where it does, in estimation, networks and losses."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from piwm_gym import systems
from piwm_gym.models import VARIANTS, build_autoencoder
from piwm_gym.models.estimation import finite_difference, fit_start, shooting
from piwm_gym.options import read_options
from piwm_gym.systems import FrameSpec, Params, System, Variable
from piwm_gym.systems.params import Learnable, Parametrisation, parameter
from training.config import preset
from training.losses import configuration_weights
from training.pipeline import label_range


@dataclass(frozen=True)
class HandParams(Params):
    """Parameters of a clock's hand."""

    torque: Any = parameter(2.0, "rad/s^2", "of a full push")


class Hand(System):
    """A hand that turns all the way round, on a rail: place, angle, rate."""

    name = "hand"
    real_id = "none"
    variables = (
        Variable("x", "m", -1.0, 3.0, visible=True),
        Variable("theta", "rad", -math.pi, math.pi, visible=True, periodic=True),
        Variable("theta_dot", "rad/s", -4.0, 4.0, visible=False),
    )
    dt = 0.05
    frame = FrameSpec((64, 64), (0, 64), (0, 64), (64, 64), background=(0, 0, 0))
    num_initial_uniforms = 3
    parametrisations = {  # noqa: RUF012
        "identifiable": Parametrisation(
            (Learnable("torque", "rad/s^2"),),
            lambda p: (p.torque,),
            lambda v: HandParams(torque=v[0]),
        )
    }

    @property
    def reference(self) -> HandParams:
        return HandParams()

    @property
    def action_space(self) -> gym.spaces.Box:
        return gym.spaces.Box(-1, 1, (1,), np.float32)

    @property
    def observation_space(self) -> gym.spaces.Box:
        return gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)

    def initial(self, uniforms: Tensor) -> Tensor:
        return uniforms

    def transition(self, state: Tensor, action: Tensor, params: Any) -> Tensor:
        x, theta, rate = state.unbind(-1)
        moved = (x, theta + self.dt * rate, rate + self.dt * params.torque * action[..., 0])
        return self.wrap(torch.stack(moved, dim=-1))

    def reward(self, state: Tensor, action: Tensor, next_state: Tensor) -> Tensor:
        return next_state[..., 0]

    def terminal(self, state: Tensor) -> Tensor:
        return state[..., 0] > 9

    def observation(self, state: Tensor) -> Tensor:
        return state

    def from_configurations(self, start: Tensor, end: Tensor, elapsed: Any) -> Tensor:
        turned = self.difference(end, start, self.visible_variables)[..., 1:]
        return torch.cat((start, turned / elapsed), dim=-1)


SYSTEM = Hand()
PI = math.pi


def rows(*angles: float) -> Tensor:
    return torch.tensor([[0.5, angle, 1.0] for angle in angles], dtype=torch.float64)


def turning(count: int = 16, frames: int = 10) -> tuple[Tensor, Tensor]:
    """States that pass the seam, and their actions."""
    generator = torch.Generator().manual_seed(0)
    start = rows(*([PI - 0.3] * count)).float()
    start[:, 2] = 1.0 + torch.rand(count, generator=generator)
    actions = 2 * torch.rand(count, frames - 1, 1, generator=generator) - 1
    states = torch.cat((start[:, None], SYSTEM.rollout(start, actions, SYSTEM.reference)), dim=1)
    assert (states[..., 1].amin(1) < -2).all()
    return states, actions


def test_differences_take_the_shorter_way_round() -> None:
    difference = SYSTEM.difference(rows(PI - 0.1, 0.2, -3.0), rows(-PI + 0.1, 0.3, 3.0))
    assert difference[:, 1].tolist() == pytest.approx([-0.2, -0.1, 2 * PI - 6.0])
    assert difference[:, [0, 2]].abs().max() == 0
    ends = torch.tensor([[0.0, 0.95], [0.0, -0.95]])
    halves = SYSTEM.difference(ends[:1], ends[1:], SYSTEM.configuration, half_ranges=True)
    assert halves[0].tolist() == pytest.approx([0.0, -0.1])


def test_wrapping_changes_nothing_inside_the_range() -> None:
    inside = rows(-PI, -1.0, 3.0)
    assert torch.equal(SYSTEM.wrap(inside), inside)
    wrapped = SYSTEM.wrap(rows(PI, 5 * PI - 0.5, -PI - 0.25))[:, 1]
    assert wrapped.tolist() == pytest.approx([-PI, PI - 0.5, PI - 0.25])


@pytest.mark.parametrize("num_envs", [None, 3])
def test_a_start_is_wrapped_and_otherwise_taken_as_given(num_envs: int | None) -> None:
    given = {"state": [9.0, 500.0, -77.0]}
    state = read_options(given, SYSTEM, num_envs).state
    assert state is not None
    assert state.shape == (num_envs or 1, 3)
    assert state[:, 1].tolist() == pytest.approx([500.0 - 160 * PI] * len(state), abs=1e-4)
    assert (state[:, [0, 2]] == torch.tensor([9.0, -77.0])).all()
    inside = rows(-PI, 3.0).float()[:1, :].numpy()
    again = read_options({"state": inside[0]}, SYSTEM).state
    assert again is not None
    assert torch.equal(again, torch.from_numpy(inside))


def test_both_estimators_find_the_state_across_the_seam() -> None:
    states, actions = turning()
    seen = states[..., SYSTEM.visible]
    for estimator in (shooting, finite_difference):
        found = estimator(SYSTEM, seen, actions, SYSTEM.reference)
        assert SYSTEM.difference(found, states[:, -1]).abs().max() < 2e-3
    start = fit_start(SYSTEM, seen, actions, SYSTEM.reference)
    assert SYSTEM.difference(start, states[:, 0]).abs().max() < 2e-3
    assert (start[:, 1] < PI).all()


def test_a_whole_turn_added_to_what_was_seen_changes_no_estimate() -> None:
    states, actions = turning()
    seen = states[..., SYSTEM.visible].double()
    moved = seen + torch.tensor([0.0, 2 * PI], dtype=torch.float64)
    first, second = (shooting(SYSTEM, s, actions.double(), SYSTEM.reference) for s in (seen, moved))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_networks_see_cosine_and_sine(variant: str) -> None:
    autoencoder = build_autoencoder(
        preset("debug", variant, SYSTEM.name).autoencoder, SYSTEM
    ).eval()
    configurations = torch.tensor([[1.0, PI - 1e-4], [1.0, -PI + 1e-4], [3.0, PI / 2]])
    features = autoencoder.normalize(configurations)
    assert autoencoder.num_features == 3
    torch.testing.assert_close(features[2], torch.tensor([1.0, 0.0, 1.0]), atol=1e-6, rtol=0)
    assert (features[0] - features[1]).abs().max() < 1e-3
    before, after, _ = autoencoder.decode(configurations)
    assert (before - after).abs().max() < 1e-2
    torch.testing.assert_close(autoencoder.denormalize(features), configurations)
    torch.testing.assert_close(autoencoder.denormalize(3 * features)[:, 1], configurations[:, 1])
    frames = torch.rand(2, 3, *SYSTEM.frame.size)
    assert autoencoder.encode(frames).shape == (2, 2)


def test_an_angle_counts_like_any_dimension() -> None:
    """A label of 5 % noise costs as much in the angle as in the place."""
    autoencoder = build_autoencoder(preset("debug", VARIANTS[0], SYSTEM.name).autoencoder, SYSTEM)
    weights = configuration_weights(SYSTEM)
    truth, off = torch.zeros(1, 2), 0.02 * torch.tensor([4.0, 2 * PI])
    features = autoencoder.normalize(off * torch.eye(2))
    cost = (weights * (features - autoencoder.normalize(truth)) ** 2).sum(-1)
    assert float(cost[1]) == pytest.approx(float(cost[0]), rel=0.01)
    std = autoencoder.normalize_std(off[None])[0]
    assert std.tolist() == pytest.approx([0.04, 0.04 * PI, 0.04 * PI])


@pytest.mark.parametrize(
    ("angles", "inside", "outside"),
    [
        ((3.0, -3.0, PI), (3.1, -3.1), (2.5, 0.0, -2.5)),
        ((-0.5, 0.5), (0.0, 0.4), (1.0, -1.0, PI)),
    ],
)
def test_the_range_of_labels_is_an_arc(
    angles: Sequence[float],
    inside: Sequence[float],
    outside: Sequence[float],
    monkeypatch: pytest.MonkeyPatch,
    make_tiny: Any,
) -> None:
    monkeypatch.setitem(systems.SYSTEMS, "hand", SYSTEM)
    model = make_tiny(system="hand")
    assert model.in_distribution(rows(0.0, PI, -PI).float()).all()
    low, high = label_range(SYSTEM, rows(*angles).float())
    assert low[[0, 2]].tolist() == high[[0, 2]].tolist() == [0.5, 1.0]
    model.state_low.copy_(low)
    model.state_high.copy_(high)
    assert model.in_distribution(rows(*inside).float()).all()
    assert not model.in_distribution(rows(*outside).float()).any()
