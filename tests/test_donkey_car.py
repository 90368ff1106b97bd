"""Donkey Car against closed forms: circles, lags, laps, and where it is beside the track."""

import math
import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from piwm_gym.checkpoint import CheckpointError, load_checkpoint, save
from piwm_gym.courses import get_course
from piwm_gym.models import Dynamics
from piwm_gym.models.estimation import fit_start, shooting
from piwm_gym.real import same_place
from piwm_gym.systems import CartPole, DonkeyCar, DonkeyCarParams, Track
from piwm_gym.systems.donkey_car import FULL_STEERING, LOOKAHEAD
from piwm_gym.world_model import WorldModel, WorldModelConfig
from training.training_data import check_place, system_of

RADIUS, POINTS = 2.0, 126
ANGLES = 2 * math.pi * torch.arange(POINTS, dtype=torch.float64) / POINTS
RING = RADIUS * torch.stack((ANGLES.cos(), ANGLES.sin()), dim=1)
"""A course that turns left for ever; right of it is outside."""

SYSTEM, ROUND = DonkeyCar(), DonkeyCar(RING)
FITTED = DonkeyCarParams()
PLAIN = DonkeyCarParams(
    verge_drag=0.0, turning_loss=0.0, rolling=0.0, understeer=0.0, steering_lag=0.0
)
"""The paper's bicycle."""


def state(**values: float) -> Tensor:
    return torch.tensor([values.get(name, 0.0) for name in SYSTEM.state_names], dtype=torch.float64)


def steady(params: DonkeyCarParams, v: float, steer: float, steps: int) -> Tensor:
    """(1, T, 2) actions that keep the speed of a car without losses but drag."""
    throttle = float(params.drag) * v / float(params.throttle_gain)
    return torch.tensor([steer, throttle], dtype=torch.float64).expand(1, steps, 2)


def drive(start: Tensor, actions: Tensor, params: DonkeyCarParams) -> Tensor:
    return ROUND.rollout(start[None], actions, params)[0]


def closing_steer(params: DonkeyCarParams, v: float, steps: int) -> float:
    """Command whose polygon closes after so many steps, to the right."""
    turn = 2 * math.pi / steps
    wide = float(params.wheelbase) * (1 + float(params.understeer) * v**2)
    return math.atan(wide * turn / (SYSTEM.dt * v)) / float(params.steering_gain)


# ---- motion ------------------------------------------------------------------------------------


@pytest.mark.parametrize("understeer", [0.0, 0.5])
def test_a_circle_closes_and_has_the_radius_of_the_wheelbase(understeer: float) -> None:
    params, v, steps = PLAIN.replace(understeer=understeer), 1.2, 180
    steer = closing_steer(params, v, steps)
    start = state(x=0.3, theta=0.4, v=v)
    states = drive(start, steady(params, v, steer, steps), params)
    torch.testing.assert_close(states[-1, :4], start[:4], rtol=0, atol=1e-9)
    points = states[:, :2]
    radius = (points - points.mean(0)).norm(dim=1)
    expected = v * SYSTEM.dt / (2 * math.sin(math.pi / steps))
    torch.testing.assert_close(radius, torch.full_like(radius, expected), rtol=1e-9, atol=0)
    ideal = 0.2 * (1 + understeer * v**2) / math.tan(FULL_STEERING * steer)
    assert expected == pytest.approx(ideal, rel=1e-3)
    turned = SYSTEM.difference(states[1:2], states[:1])[0, 2]
    assert float(turned) == pytest.approx(-2 * math.pi / steps)


def test_a_straight_line() -> None:
    actions = steady(PLAIN, 1.5, 0.0, 40)
    states = drive(state(theta=2.5, v=1.5), actions, PLAIN)
    way = 1.5 * 2.0 * torch.tensor([math.cos(2.5), math.sin(2.5)], dtype=torch.float64)
    torch.testing.assert_close(states[-1, :2], way)
    torch.testing.assert_close(states[:, 2], torch.full((40,), 2.5, dtype=torch.float64))


def test_without_its_extras_it_is_the_paper_s_bicycle() -> None:
    x, y, theta, v = before = torch.tensor([0.4, -0.2, 3.1, 1.3], dtype=torch.float64)
    action = torch.tensor([-0.7, 0.5], dtype=torch.float64)
    start = torch.cat((before, torch.tensor([0.1, 0.0], dtype=torch.float64)))
    after = ROUND.transition(start, action, PLAIN)
    delta = 0.7 * FULL_STEERING
    expected = [
        x + 0.05 * v * math.cos(theta),
        y + 0.05 * v * math.sin(theta),
        theta + 0.05 * v * math.tan(delta) / 0.2 - 2 * math.pi,
        v + 0.05 * (2.4 * 0.5 - 0.22 * v),
    ]
    assert after[:4].tolist() == pytest.approx([float(e) for e in expected])


@pytest.mark.parametrize("as_tensor", [False, True])
def test_the_wheels_lag_behind_the_command(as_tensor: bool) -> None:
    lag: Any = torch.tensor(0.2, dtype=torch.float64) if as_tensor else 0.2
    params = PLAIN.replace(steering_lag=lag)
    states = drive(state(v=1.0), steady(PLAIN, 1.0, 0.5, 20), params)
    times = SYSTEM.dt * torch.arange(1, 21, dtype=torch.float64)
    expected = 0.5 * FULL_STEERING * (1 - torch.exp(-times / 0.2))
    torch.testing.assert_close(states[:, 4], expected)
    none: Any = torch.tensor(0.0, dtype=torch.float64) if as_tensor else 0.0
    at_once = drive(state(v=1.0), steady(PLAIN, 1.0, 0.5, 1), PLAIN.replace(steering_lag=none))
    assert float(at_once[0, 4]) == pytest.approx(0.5 * FULL_STEERING, abs=1e-12)


def test_losses_stop_the_car_and_do_not_reverse_it() -> None:
    params = PLAIN.replace(rolling=0.5)
    states = drive(state(v=0.4), torch.zeros(1, 40, 2, dtype=torch.float64), params)
    assert (states[:, 3] >= 0).all()
    assert (states[-10:, 3] == 0).all()
    assert torch.equal(states[-1, :2], states[-10, :2])


def test_grass_and_turns_cost_speed() -> None:
    action = torch.tensor([0.8, 0.3], dtype=torch.float64)
    params = FITTED.replace(steering_lag=0.0)
    for r, beside in ((RADIUS, 0.0), (RADIUS + 0.7, 1.0), (RADIUS - 0.6, 0.0)):
        after = ROUND.transition(state(x=r, theta=math.pi / 2, v=1.5), action, params)
        loss = (0.22 + 0.8 * beside) * 1.5 + 0.32 * math.tan(0.8 * FULL_STEERING) * 1.5**2
        assert float(after[3]) == pytest.approx(1.5 + 0.05 * (2.4 * 0.3 - loss), abs=1e-6)


def test_gradients() -> None:
    names = ("wheelbase", "throttle_gain", "drag", "turning_loss", "understeer", "steering_lag")

    def step(start: Tensor, action: Tensor, values: Tensor) -> Tensor:
        params = FITTED.replace(**dict(zip(names, values, strict=True)))
        return ROUND.transition(start, action, params)[..., :5]

    # In the middle of the road: where the grass begins depends on the place without gradient.
    start = state(x=RADIUS - 0.25, theta=1.6, v=1.2, steering=0.1).requires_grad_()
    action = torch.tensor([0.4, 0.5], dtype=torch.float64, requires_grad=True)
    values = torch.tensor(
        [getattr(FITTED, n) for n in names], dtype=torch.float64, requires_grad=True
    )
    assert torch.autograd.gradcheck(step, (start, action, values))
    beside = state(x=RADIUS + 0.3, y=0.1, theta=1.6, v=1.2).requires_grad_()
    for function in (partial(ROUND.reward, beside, action), ROUND.observation):
        assert torch.autograd.gradcheck(function, (beside,))


def test_parameters_may_differ_between_batch_elements() -> None:
    start = state(v=1.0).expand(2, -1)
    params = PLAIN.replace(
        wheelbase=torch.tensor([0.2, 0.4]), steering_lag=torch.tensor([0.0, 0.2])
    )
    together = ROUND.transition(start, steady(PLAIN, 1.0, 0.5, 2)[0], params)
    for i, (wheelbase, lag) in enumerate(((0.2, 0.0), (0.4, 0.2))):
        own = PLAIN.replace(wheelbase=wheelbase, steering_lag=lag)
        alone = ROUND.transition(start[i], steady(PLAIN, 1.0, 0.5, 1)[0, 0], own)
        torch.testing.assert_close(together[i], alone, rtol=1e-6, atol=1e-9)


# ---- place beside the track --------------------------------------------------------------------


def brute_force(path: Tensor, points: Tensor) -> Tensor:
    """Distance of points from a closed polyline, all segments tried."""
    edges = path.roll(-1, 0) - path
    away = points[:, None] - path
    share = ((away * edges).sum(2) / edges.square().sum(1)).clamp(0, 1)
    return (away - share[..., None] * edges).norm(dim=2).amin(1)


@pytest.mark.parametrize("name", ["meadow", "hall"])
def test_projection_equals_brute_force(name: str) -> None:
    course = get_course(name)
    path = torch.from_numpy(course.path)
    generator = torch.Generator().manual_seed(0)
    points = (torch.rand(4000, 2, generator=generator, dtype=torch.float64) - 0.5) * 12
    expected = brute_force(path, points)
    place = Track(path).project(points)
    near = expected < 0.75  # four fifths of the tightest turn's radius
    assert near.sum() > 500
    error = (place.cte.abs() - expected).abs()
    assert error[near].max() < 1e-6
    assert error[expected < 1.5].max() < 0.02
    arc, offset = course.project(points[near].numpy())
    assert np.quantile(np.abs(offset - place.cte[near].numpy()), 0.99) < 1e-6
    assert np.quantile(np.abs(arc - place.arc[near].numpy()), 0.99) < 1e-6


def test_beside_a_circle() -> None:
    angle = torch.linspace(-3, 3, 50, dtype=torch.float64)
    out = torch.stack((angle.cos(), angle.sin()), dim=1)
    for r in (1.3, 1.9, 2.0, 2.4, 3.5):
        place = ROUND.place(torch.cat((r * out, torch.zeros(50, 4)), dim=1))
        torch.testing.assert_close(place.cte, torch.full_like(angle, r - RADIUS), rtol=0, atol=2e-3)
        arc = torch.remainder(angle, 2 * math.pi) * RADIUS
        torch.testing.assert_close(place.arc, arc, rtol=0, atol=0.03)
        off = (place.heading - angle - math.pi / 2 + math.pi) % (2 * math.pi) - math.pi
        assert off.abs().max() < 0.015  # the polyline has corners
        torch.testing.assert_close(place.curvature, torch.full_like(angle, 0.5), rtol=0, atol=2e-3)


def test_the_seam_of_the_track() -> None:
    track = ROUND.track(torch.zeros(0, dtype=torch.float64))
    points = torch.tensor([[2.0, -0.04], [2.0, 0.04]], dtype=torch.float64)
    place = track.project(points)
    assert place.arc.tolist() == pytest.approx([track.length - 0.04, 0.04], abs=1e-3)
    arc, cte = track.glance(points)
    assert float(track.driven(arc[0], arc[1])) == pytest.approx(0.08, abs=5e-3)
    assert float(track.driven(arc[1], arc[0])) == pytest.approx(-0.08, abs=5e-3)
    assert cte.tolist() == pytest.approx(place.cte.tolist(), abs=2e-3)
    ahead = track.ahead(torch.tensor([track.length - 0.1, 5 * track.length]), LOOKAHEAD)
    torch.testing.assert_close(ahead, torch.full_like(ahead, 0.5), rtol=0, atol=2e-3)


def test_a_glance_is_nearly_a_look() -> None:
    generator = torch.Generator().manual_seed(0)
    points = (torch.rand(4000, 2, generator=generator) - 0.5) * torch.tensor([10.0, 7.0])
    track = SYSTEM.track(points)
    place, (arc, cte) = track.project(points), track.glance(points)
    near = place.cte.abs() < 0.6
    assert (cte - place.cte)[near].abs().max() < 5e-3
    assert track.driven(place.arc, arc)[near].abs().max() < 0.07


def test_places_without_bounds() -> None:
    far = torch.tensor([[1e9, 0.0], [-50.0, 30.0], [math.nan, 0.0], [math.inf, 1.0]])
    track = SYSTEM.track(far)
    assert (track.project(far[:2]).cte.abs() > 10).all()
    assert track.project(far).cte.shape == (4,)
    assert track.glance(far)[0].shape == (4,)
    assert track.project(torch.zeros(0, 2)).cte.shape == (0,)


def test_the_path_on_a_straight_and_in_a_turn_ahead() -> None:
    course = get_course("meadow")
    ahead = SYSTEM.track(torch.zeros(0)).ahead(torch.tensor(0.0), (0.0, *LOOKAHEAD))
    arcs = (np.array((0.0, *LOOKAHEAD)) / course.spacing).round().astype(int)
    expected = torch.from_numpy(course.curvature[arcs]).float()
    torch.testing.assert_close(ahead, expected, rtol=0, atol=0.25)
    assert ahead[:3].abs().max() < 1e-3


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (RING[:, :1], r"shape \(126, 1\); expected \(M, 2\)"),
        (RING[:5], r"shape \(5, 2\)"),
        (RING[:100], "equally spaced points: resample it"),
        (torch.cat((RING, RING[:1])), "leave out a repeated first point"),
        (RING * torch.nan, "finite"),
    ],
)
def test_what_is_not_a_closed_path_is_refused(path: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SYSTEM.with_asset(path)


# ---- episodes ----------------------------------------------------------------------------------


def test_a_lap_is_counted_once_round() -> None:
    params, v, steps = PLAIN.replace(wheelbase=0.2), 1.5, 168
    steer = -closing_steer(params, v, steps)
    start = state(x=RADIUS, theta=math.pi / 2 + math.pi / steps, v=v)
    states = drive(start, steady(params, v, steer, 2 * steps), params)
    assert ROUND.place(states).cte.abs().max() < 0.02
    laps = ROUND.laps(states)
    assert float(laps[steps - 1]) == pytest.approx(1.0, abs=1e-3)
    assert float(laps[-1]) == pytest.approx(2.0, abs=1e-3)
    assert (laps.diff() > 0).all()
    # Backwards, facing the other way, laps go down.
    back = drive(start + state(theta=math.pi), steady(params, v, -steer, steps), params)
    assert float(ROUND.laps(back)[-1]) < -0.5


def test_reward_and_ending() -> None:
    action = torch.zeros(2)
    for r, expected, over in ((2.0, 1.2, False), (2.5, 0.6, False), (1.7, 0.84, False)):
        after = state(x=r, v=1.2)
        reward = ROUND.reward(after, action, after)
        assert float(reward) == pytest.approx(expected, abs=2e-3)
        assert bool(ROUND.terminal(after)) == over
    for r in (3.01, 0.98, 9.0):
        assert float(ROUND.reward(state(), action, state(x=r, v=1.2))) == -1.0
        assert bool(ROUND.terminal(state(x=r)))


def test_the_observation_tells_place_and_way_ahead() -> None:
    seen = ROUND.observation(state(x=2.3, theta=math.pi / 2 - 0.2, v=1.1, progress=3.0))
    expected = [2.3, 0.0, math.pi / 2 - 0.2, 1.1, 0.3, -0.2, *[0.5] * 5]
    assert seen.tolist() == pytest.approx(expected, abs=3e-3)
    space = SYSTEM.observation_space
    start = SYSTEM.initial(torch.rand(100, 3))
    assert all(o in space for o in SYSTEM.observation(start).numpy())


def test_episodes_start_near_the_spawn_pose() -> None:
    exact = SYSTEM.initial(torch.full((1, 3), 0.5))[0]
    assert exact[:3].tolist() == pytest.approx(get_course("meadow").spawn, abs=1e-5)
    assert (exact[3:] == 0).all()
    starts = SYSTEM.initial(torch.rand(500, 3, generator=torch.Generator().manual_seed(0)))
    off = SYSTEM.difference(starts, exact).abs().amax(0)
    assert off.tolist() == pytest.approx([0.02, 0.02, 0.02, 0, 0, 0], abs=1e-3)
    assert not SYSTEM.terminal(starts).any()


def test_actions_are_steering_and_throttle() -> None:
    space = SYSTEM.action_space
    assert (space.low.tolist(), space.high.tolist()) == ([-1, 0], [1, 1])
    for action in SYSTEM.keyboard.values():
        assert np.array(action, dtype=np.float32) in space


# ---- estimation and learning -------------------------------------------------------------------


def across_the_seam(frames: int) -> tuple[Tensor, Tensor]:
    """Drives past theta = pi under slowly changing commands."""
    generator = torch.Generator().manual_seed(0)
    start = torch.zeros(16, 6)
    start[:, :2] = torch.rand(16, 2, generator=generator)
    start[:, 2] = math.pi - 0.2
    start[:, 3] = 0.5 + torch.rand(16, generator=generator)
    first = torch.rand(16, 1, 2, generator=generator) * torch.tensor([-0.8, 0.5])
    actions = first * torch.linspace(1, 0.7, frames - 1)[:, None]
    start = SYSTEM.settled(start, actions[:, 0], FITTED)
    states = torch.cat((start[:, None], SYSTEM.rollout(start, actions, FITTED)), dim=1)
    assert (states[..., 2].amin(1) < -2).any()
    return states, actions


def test_shooting_finds_the_state_across_the_seam() -> None:
    states, actions = across_the_seam(12)
    found = shooting(SYSTEM, states[..., SYSTEM.visible], actions, FITTED)
    error = SYSTEM.difference(found, states[:, -1]).abs().amax(0)
    assert (error[:5] < torch.tensor([2e-3, 2e-3, 2e-3, 0.01, 2e-3])).all(), error
    start = fit_start(SYSTEM, states[..., SYSTEM.visible], actions, FITTED)
    assert SYSTEM.difference(start, states[:, 0])[:, :5].abs().max() < 0.01


def test_two_poses_give_the_state() -> None:
    states, actions = across_the_seam(8)
    for t in range(7):
        poses = states[:, t, SYSTEM.visible], states[:, t + 1, SYSTEM.visible]
        found = SYSTEM.end_state(*poses, actions[:, t], FITTED)
        error = SYSTEM.difference(found, states[:, t + 1]).abs().amax(0)
        assert (error[:3] == 0).all()
        assert error[3] < 2e-3
        assert error[4] < 0.05


def test_parametrisations_round_trip() -> None:
    for name, choice in SYSTEM.parametrisations.items():
        values = choice.from_params(FITTED)
        assert choice.from_params(choice.to_params(values)) == pytest.approx(values), name
        assert all(value > 0 for value in values)
    plain = SYSTEM.parametrisations["paper"].to_params((0.2, 2.4, 0.22))
    assert plain == PLAIN
    with pytest.warns(UserWarning, match="only by their ratio"):
        Dynamics(SYSTEM, "free")


# ---- the track as an asset ---------------------------------------------------------------------


def test_a_checkpoint_holds_its_track(make_tiny: Any, tmp_path: Path) -> None:
    config = make_tiny(system="donkey_car").config
    model = WorldModel(config, RING)
    save(model, tmp_path / "car.safetensors", {})
    loaded = load_checkpoint(tmp_path / "car.safetensors", "cpu")
    assert torch.equal(loaded.asset, RING.float())
    outside = state(x=2.5, v=1.0).float()
    assert torch.equal(loaded.system.observation(outside), model.system.observation(outside))
    assert not torch.equal(loaded.system.observation(outside), SYSTEM.observation(outside))
    default = WorldModel(config)
    assert torch.equal(default.asset, torch.from_numpy(get_course("meadow").path).float())


def test_systems_without_an_asset_have_none(model: WorldModel, tmp_path: Path) -> None:
    assert model.system.asset is None
    assert "asset" not in model.state_dict()
    with pytest.raises(ValueError, match="cartpole has no asset"):
        CartPole().with_asset(RING)
    model.register_buffer("asset", RING)
    save(model, tmp_path / "odd.safetensors", {})
    with pytest.raises(CheckpointError, match="cartpole has no asset"):
        load_checkpoint(tmp_path / "odd.safetensors")
    with pytest.raises(ValueError, match="cartpole has no asset"):
        WorldModel(WorldModelConfig("cartpole"), RING)


def test_training_takes_the_track_from_the_data() -> None:
    manifest = {"system": "donkey_car", "asset": RING.tolist()}
    system = system_of(manifest)
    assert torch.equal(system.asset, RING.float())
    del manifest["asset"]
    assert system_of(manifest).asset is not None


def test_a_checkpoint_is_measured_on_its_own_course_only(make_tiny: Any) -> None:
    manifest = {"system": "donkey_car", "asset": RING.tolist(), "course": "ring.csv"}
    config = make_tiny(system="donkey_car").config
    check_place(WorldModel(config, RING), manifest)
    check_place(make_tiny(), {"system": "cartpole"})
    with pytest.raises(ValueError, match="course is 'ring.csv', and its path not that of 'meadow'"):
        check_place(WorldModel(config), manifest)


def test_the_real_twin_is_found_on_the_models_course(make_tiny: Any) -> None:
    model = make_tiny(system="donkey_car")
    assert same_place(model) == {}
    model.metadata = {"data": {"course": "random-3"}}
    assert same_place(model) == {"course": "random-3"}
    model.metadata = {"data": {"course": "office.csv"}}
    with pytest.raises(ValueError, match=r"file 'office\.csv', which the embedded simulator"):
        same_place(model)


def test_it_pickles() -> None:
    again = pickle.loads(pickle.dumps(ROUND))
    assert torch.equal(again.observation(state(v=1.0)), ROUND.observation(state(v=1.0)))
