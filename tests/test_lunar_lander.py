"""Lunar Lander against LunarLander-v3 (Box2D), and against what must be so."""

import math
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from piwm_gym.systems import LunarLander, LunarLanderParams, lunar_ground
from piwm_gym.systems.lunar_ground import CENTRE_OF_MASS, Pose
from piwm_gym.systems.lunar_lander import MAIN_PER_POWER, from_observation
from piwm_gym.twins import LunarLanderTwin

SYSTEM = LunarLander()
TRUTH = LunarLanderParams()
NOTHING, LEFT, MAIN, RIGHT = range(4)
FLAT = torch.full((11,), -lunar_ground.PAD_DEPTH, dtype=torch.float64)


class _Undispersed:
    """Random numbers of an environment, but for the dispersion's, which are zero."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def uniform(self, low: float, high: float, size: Any = None) -> Any:
        return (
            0.0
            if size is None and (low, high) == (-1.0, 1.0)
            else self._generator.uniform(low, high, size)
        )


@pytest.fixture(scope="module")
def real() -> Any:
    env = gym.make("LunarLander-v3").unwrapped
    yield env
    env.close()


def fly(env: Any, seed: int, steps: int, actions: Any = None) -> None:
    """Reset without dispersion and let the legs settle."""
    env.reset(seed=seed)
    env._np_random = _Undispersed(env.np_random)
    for t in range(steps):
        env.step(MAIN if t % 2 else NOTHING)


def box2d_state(env: Any) -> Tensor:
    hull = env.lander
    flags = [float(leg.ground_contact) for leg in env.legs]
    return torch.tensor(
        [
            hull.position[0] - 10,
            hull.position[1] - env.helipad_y - 0.6,
            *hull.linearVelocity,
            hull.angle,
            hull.angularVelocity,
            *flags,
            0.0,
            float(env.game_over),
        ],
        dtype=torch.float64,
    )


def state(**values: float) -> Tensor:
    return torch.tensor([values.get(name, 0.0) for name in SYSTEM.state_names], dtype=torch.float64)


def advance(start: Tensor, actions: list[int], scene: Tensor | None, **kwargs: Any) -> Tensor:
    rollout = SYSTEM.rollout(start[None], torch.tensor([actions]), TRUTH, scene=scene, **kwargs)
    return rollout[0]


def test_fifty_steps_of_free_flight_equal_box2d(real: Any) -> None:
    for seed in range(10):
        fly(real, seed, 30)
        imagined = box2d_state(real)
        for action in np.random.default_rng(seed).integers(0, 4, 50):
            imagined = SYSTEM.transition(imagined, torch.tensor(action), TRUTH)
            _, _, over, *_ = real.step(int(action))
            if over or real.legs[0].ground_contact or real.legs[1].ground_contact:
                break
            error = (imagined - box2d_state(real)).abs()[:6]
            assert error.max() < 2e-3, (seed, error)


@pytest.mark.parametrize("angle", [0.0, 0.3, -0.6])
@pytest.mark.parametrize("action", range(4))
def test_increments_equal_the_derived_ones(angle: float, action: int) -> None:
    after = SYSTEM.transition(state(theta=angle), torch.tensor(action), TRUTH)
    main, side = float(action == MAIN), float(action == RIGHT) - float(action == LEFT)
    sin, cos = math.sin(angle), math.cos(angle)
    turn = -0.099427 * side - 0.026308 * side * sin**2
    # The hull's centre of mass swings round the common one by the little it lies above it.
    assert after[3] == pytest.approx(0.349541 * main * cos + 0.049647 * side * sin - 0.2, abs=2e-4)
    assert after[2] == pytest.approx(-0.349541 * main * sin + 0.049647 * side * cos, abs=2e-4)
    assert after[5] == pytest.approx(turn, abs=1e-5)


def test_resets_equal_the_real_ones(real: Any) -> None:
    for seed in range(5):
        observation, _ = real.reset(seed=seed)
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
        scene = SYSTEM.scene(torch.from_numpy(generator.uniform(0, 1, (1, 12))))
        start = SYSTEM.initial(torch.from_numpy(generator.uniform(0, 1, (1, 2))))
        ends = [p[0][1] for p in real.sky_polys] + [real.sky_polys[-1][1][1]]
        assert np.allclose(scene[0].numpy(), np.array(ends) - real.helipad_y - 0.6, atol=1e-12)
        assert np.allclose(SYSTEM.observation(start)[0].numpy(), observation, atol=1e-5)


def test_reward_equals_the_real_one_in_dispersed_flight(real: Any) -> None:
    worst, steps = 0.0, 0
    for seed in range(10):
        real.reset(seed=seed)
        before = box2d_state(real)
        for action in np.random.default_rng(seed).integers(0, 4, 300):
            _, reward, over, *_ = real.step(int(action))
            after = box2d_state(real)
            if not real.lander.awake:
                after[8] = 0.5
            ours = SYSTEM.reward(before, torch.tensor(action), after)
            worst, steps = max(worst, abs(float(ours) - reward)), steps + 1
            assert bool(SYSTEM.terminal(after)) == over
            before = after
            if over:
                break
    assert steps > 500
    assert worst < 1e-4


def test_observation_and_its_inverse(real: Any) -> None:
    fly(real, 3, 40)
    observation = real.step(MAIN)[0]
    assert np.allclose(from_observation(observation)[:6], box2d_state(real)[:6], atol=1e-5)
    assert np.allclose(SYSTEM.observation(box2d_state(real)), observation, atol=1e-6)


def test_dispersion_has_the_real_spread() -> None:
    noise = torch.rand(200_000, 2, generator=torch.Generator().manual_seed(0)).double()
    start = state(y=5.0).expand(len(noise), -1)
    for action, spread in (
        (MAIN, {"x_dot": 0.0504, "y_dot": 0.1009, "theta_dot": 0.0243}),
        (RIGHT, {"x_dot": 0.0070, "y_dot": 0.0023, "theta_dot": 0.0143}),
    ):
        actions = torch.full((len(noise),), action)
        after = SYSTEM.transition(start, actions, TRUTH, noise=noise)
        mean = SYSTEM.transition(start, actions, TRUTH)
        for name, expected in spread.items():
            i = SYSTEM.state_names.index(name)
            assert float(after[:, i].std()) == pytest.approx(expected, rel=0.03), (action, name)
        assert torch.allclose(after.mean(0), mean[0], atol=1e-3)
    still = TRUTH.replace(main_dispersion=0.0, side_dispersion=0.0)
    after = SYSTEM.transition(start, actions, still, noise=noise)
    assert torch.equal(after, SYSTEM.transition(start, actions, still))


def test_free_fall() -> None:
    fallen = advance(state(y=9.0, x_dot=1.0), [NOTHING] * 50, None)[-1]
    assert float(fallen[3]) == pytest.approx(-10.0)
    assert float(fallen[0]) == pytest.approx(1.0)
    # Semi-implicit Euler: y falls by g dt^2 n (n + 1) / 2.
    assert float(fallen[1]) == pytest.approx(9.0 - 10 * 0.02**2 * 50 * 51 / 2)


def test_a_gentle_landing_comes_to_rest_where_the_observation_is_zero() -> None:
    states = advance(state(y=0.05, y_dot=-1.0, x_dot=0.1, theta=0.05), [NOTHING] * 150, FLAT)
    resting = SYSTEM.terminal(states)
    assert resting[-1]
    assert states[-1, 9] == 0
    assert states[-1, 1].abs() < 0.02
    assert (states[-1, 6:8] == 1).all()
    first = int(resting.int().argmax())
    reward = SYSTEM.reward(states[first - 1], torch.tensor(NOTHING), states[first])
    assert float(reward) == 100.0


def test_a_rested_lander_stays_at_rest_and_thrust_wakes_it() -> None:
    rested = advance(state(y=0.1), [NOTHING] * 150, FLAT)[-1]
    assert (advance(rested, [NOTHING] * 50, FLAT)[-1, :6] - rested[:6]).abs().max() < 1e-3
    lifted = advance(rested, [MAIN] * 25, FLAT)[-1]
    assert lifted[8] == 0
    assert lifted[1] > 0.2
    assert (lifted[6:8] == 0).all()


@pytest.mark.parametrize("speed", [-1.0, -1.5, -2.7, -3.5])
def test_legs_bear_the_impacts_that_the_real_ones_bear(real: Any, speed: float) -> None:
    fly(real, 0, 30)
    _drop(real, speed)
    over = False
    while not over:
        _, reward, over, *_ = real.step(NOTHING)
    states = advance(state(y=0.05, y_dot=speed), [NOTHING] * 150, FLAT)
    assert bool(states[:, 9].any()) == (reward == -100) == (speed < -2)


@pytest.mark.parametrize("theta", [-0.8, 0.7])
def test_a_hard_impact_on_one_leg_meets_its_stop(theta: float) -> None:
    twin = LunarLanderTwin(gym.make("LunarLander-v3").unwrapped)
    twin.reset(seed=0)
    start = state(y=0.75, y_dot=-7.0, theta=theta)
    twin.set_state(start.numpy())
    for _ in range(8):
        twin.step(NOTHING)
    ours = advance(start, [NOTHING] * 8, torch.from_numpy(twin.scene()))[-1]
    assert twin.state()[3] > -4.5
    assert ours[3] > -4.5
    assert ours[1] == pytest.approx(twin.state()[1], abs=0.2)


def _drop(env: Any, speed: float) -> None:
    """Put the level lander just above the pad, falling."""
    hull = env.lander
    offsets = [hull.GetLocalPoint(leg.position) for leg in env.legs]
    angles = [leg.angle - hull.angle for leg in env.legs]
    for body, offset, angle in zip(
        (hull, *env.legs), ((0, 0), *offsets), (0.0, *angles), strict=True
    ):
        body.position = (10 + offset[0], env.helipad_y + 0.65 + offset[1])
        body.angle = angle
        body.linearVelocity = (0, speed)
        body.angularVelocity = 0


def test_a_crash_and_leaving_the_view_cost_a_hundred() -> None:
    upside_down = advance(state(y=0.6, theta=math.pi, y_dot=-1.0), [NOTHING] * 30, FLAT)
    assert upside_down[-1, 9] == 1
    gone = SYSTEM.transition(state(x=9.99, x_dot=2.0, y=5.0), torch.tensor(NOTHING), TRUTH)
    for before, after in ((upside_down[0], upside_down[-1]), (state(x=9.99, y=5.0), gone)):
        assert SYSTEM.terminal(after)
        assert float(SYSTEM.reward(before, torch.tensor(MAIN), after)) == -100.0


def test_friction_slows_sliding_by_no_more_than_its_limit() -> None:
    states = advance(state(y=0.0, x_dot=2.0), [NOTHING] * 40, FLAT)
    lost = 2.0 - float(states[-1, 2])
    limit = float(TRUTH.leg_friction) * 10 * 0.8
    assert 0.3 * limit < lost <= limit * 1.2


def test_a_slope_pushes_sideways() -> None:
    slope = FLAT + 0.5 * torch.arange(11)
    states = advance(state(x=0.0, y=3.5), [NOTHING] * 60, slope)
    assert states[-1, 2] < -0.1


def test_without_reach_of_the_ground_a_scene_changes_nothing() -> None:
    start = state(y=6.0, x_dot=1.0, y_dot=-1.0, theta=0.3, theta_dot=0.5)
    actions = [1, 2, 3, 0] * 5
    free, above = advance(start, actions, None), advance(start, actions, FLAT)
    assert torch.allclose(free, above, atol=1e-12)


def test_two_places_give_the_state_exactly() -> None:
    start = state(y=5.0, x_dot=1.0, y_dot=-1.0, theta=0.3, theta_dot=0.8)
    for action in range(4):
        now = SYSTEM.transition(start, torch.tensor(action), TRUTH, noise=torch.rand(2).double())
        places = start[SYSTEM.visible], now[SYSTEM.visible]
        found = SYSTEM.end_state(*places, torch.tensor(action), TRUTH)
        assert torch.allclose(found[:6], now[:6], atol=1e-9)


def test_terrain_is_a_polyline() -> None:
    scene = torch.arange(11.0)[None]
    height, slope = lunar_ground.ground(scene, torch.tensor([[-10.0, -9.0, 0.0, 9.5, 10.0]]))
    assert torch.allclose(height, torch.tensor([[0.0, 0.5, 5.0, 9.75, 10.0]]))
    assert torch.allclose(slope, torch.full((1, 5), 0.5))


def test_the_hull_is_above_the_legs_by_their_length() -> None:
    level = Pose(*torch.tensor([0.0, 0.0, 0.0], dtype=torch.float64))
    hull = float(lunar_ground.hull_gap(FLAT, level))
    legs = lunar_ground.legs(FLAT, level)[2]
    assert torch.allclose(legs[0], legs[1])
    assert hull - float(legs[0]) == pytest.approx(0.6102 - 1 / 3, abs=1e-4)


def test_gradients_of_flight_and_contact() -> None:
    names = ("gravity", "main_acceleration", "side_acceleration", "side_angular_acceleration")
    contact = ("leg_strength", "leg_friction")

    def step(start: Tensor, values: Tensor, action: int, scene: Tensor | None) -> Tensor:
        params = TRUTH.replace(**dict(zip((*names, *contact), values, strict=True)))
        return SYSTEM.transition(start, torch.tensor(action), params, scene=scene)[..., :6]

    values = torch.tensor(
        [getattr(TRUTH, n) for n in (*names, *contact)], dtype=torch.float64, requires_grad=True
    )
    for action in range(4):
        flying = state(y=5.0, theta=0.3, theta_dot=0.4, x_dot=1.0).requires_grad_()
        assert torch.autograd.gradcheck(partial(step, action=action, scene=None), (flying, values))
        down = state(y=-0.1, x_dot=0.5, y_dot=-1.0, theta=0.1).requires_grad_()
        assert torch.autograd.gradcheck(partial(step, action=action, scene=FLAT), (down, values))


def test_parameters_may_differ_between_batch_elements() -> None:
    start = state(y=-0.05, y_dot=-1.0).expand(2, -1)
    params = TRUTH.replace(
        gravity=torch.tensor([10.0, 5.0]).double(), leg_strength=torch.tensor([9.0, 4.0]).double()
    )
    together = SYSTEM.transition(start, torch.tensor([0, 2]), params, scene=FLAT.expand(2, -1))
    for i, (gravity, strength) in enumerate(((10.0, 9.0), (5.0, 4.0))):
        own = TRUTH.replace(gravity=gravity, leg_strength=strength)
        alone = SYSTEM.transition(start[i], torch.tensor([0, 2][i]), own, scene=FLAT)
        assert torch.allclose(together[i], alone, atol=1e-12)


def test_powers_are_the_real_ones() -> None:
    powers = SYSTEM.parametrisations["powers"]
    main, side = powers.from_params(TRUTH)
    assert float(main) == pytest.approx(13.0, rel=1e-4)
    assert float(side) == pytest.approx(0.6, rel=1e-4)
    back = powers.to_params((main, side))
    assert float(back.main_acceleration) == pytest.approx(MAIN_PER_POWER * 13.0, rel=1e-4)
    assert float(back.side_acceleration) == pytest.approx(2.4824, rel=1e-3)
    assert powers.caveat


def test_geometry_agrees_with_box2d(real: Any) -> None:
    fly(real, 0, 40)
    bodies = (real.lander, *real.legs)
    mass = sum(body.mass for body in bodies)
    centres = [(body.mass, real.lander.GetLocalPoint(body.worldCenter)) for body in bodies]
    height = sum(m * point[1] for m, point in centres) / mass
    assert mass == pytest.approx(4.958889, abs=1e-4)
    assert height == pytest.approx(CENTRE_OF_MASS, abs=1e-3)
    pose = Pose(*box2d_state(real)[[0, 1, 4]])
    y = lunar_ground.legs(FLAT, pose)[1]
    lowest = min(
        (
            leg.GetWorldPoint(corner)
            for leg in real.legs
            for corner in leg.fixtures[0].shape.vertices
        ),
        key=lambda point: point[1],
    )
    assert float(y.min()) == pytest.approx(lowest[1] - real.lander.position[1], abs=5e-3)
