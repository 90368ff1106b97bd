"""Reading and writing the state of LunarLander-v3, against the equations of motion."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from piwm_gym.preprocess import preprocess_frame
from piwm_gym.systems import LunarLander, LunarLanderParams
from piwm_gym.twins import LunarLanderTwin
from training.controllers import Pilot, RandomHold

SYSTEM = LunarLander()
CALM = {"main_dispersion": 0.0, "side_dispersion": 0.0}
FLAT = np.full(11, -0.6)


def make(render_mode: str | None = None, **params: float) -> LunarLanderTwin:
    twin = LunarLanderTwin(gym.make("LunarLander-v3", render_mode=render_mode))
    twin.set_params({**twin.params(), **params})
    twin.reset(seed=0)
    return twin


def flight(rng: np.random.Generator) -> np.ndarray:
    """A state high enough to fly for 30 steps."""
    moving = rng.uniform([-6, 5, -3, -3, -1, -1.5], [6, 9, 3, 3, 1, 1.5])
    return np.concatenate([moving, np.zeros(4)])


def put(twin: LunarLanderTwin, state: np.ndarray, scene: np.ndarray) -> None:
    twin.set_scene(scene)
    twin.set_state(state)


def test_reads_what_the_real_environment_observes() -> None:
    twin, rng = make(), np.random.default_rng(0)
    for _ in range(120):
        observed, _, terminated, _, _ = twin.step(int(rng.integers(4)))
        ours = SYSTEM.observation(torch.from_numpy(twin.state()))
        np.testing.assert_allclose(ours, observed, atol=1e-6)
        assert bool(SYSTEM.terminal(torch.from_numpy(twin.state()))) == terminated
        if terminated:
            break


def test_reads_the_terrain_under_the_lander() -> None:
    twin = make()
    scene = twin.scene()
    assert scene.shape == (len(SYSTEM.scene_variables),)
    np.testing.assert_allclose(scene[4:7], scene[5])
    heights = scene + twin.env.helipad_y + 0.6
    edges = [fixture.shape.vertices for fixture in twin.env.moon.fixtures[1:]]
    np.testing.assert_allclose([edge[0][1] for edge in edges], heights[:-1], atol=1e-6)


def test_what_is_written_is_read() -> None:
    """Also in the middle of an episode, whatever happened before."""
    twin, rng = make("rgb_array"), np.random.default_rng(0)
    for _ in range(10):
        for _ in range(20):
            twin.step(int(rng.integers(4)))
        state, scene = flight(rng), rng.uniform(-3, 1, 11)
        put(twin, state, scene)
        np.testing.assert_allclose(twin.state(), state, atol=2e-6)
        np.testing.assert_allclose(twin.scene(), scene, atol=1e-9)
        assert twin.env.particles == []


def test_a_written_state_flies_by_the_equations() -> None:
    twin, rng = make(**CALM), np.random.default_rng(1)
    params = LunarLanderParams(**CALM)
    for seed in range(20):
        twin.reset(seed)
        put(twin, flight(rng), FLAT)
        expected = torch.from_numpy(twin.state())
        for _ in range(30):
            action = int(rng.integers(4))
            twin.step(action)
            expected = SYSTEM.transition(expected, torch.tensor(action), params)
        error = np.abs(expected.numpy() - twin.state())
        assert (error[:2] < 1e-3).all(), error
        assert (error[2:6] < 0.01).all(), error


def test_engines_and_gravity_can_be_replaced() -> None:
    """The real draws, bent, are the equations with these parameters and the same draws."""
    power = 1.5
    reference = SYSTEM.reference
    changes = {
        "gravity": 4.0,
        "main_acceleration": 12.0,
        "main_dispersion": 0.1,
        "side_dispersion": 0.3,
        **{
            name: power * getattr(reference, name)
            for name in ("side_acceleration", "side_angular_acceleration", "side_attitude")
        },
    }
    twin, rng = make(**changes), np.random.default_rng(2)
    twin.set_state(flight(rng))
    draws = copy.deepcopy(twin.env.np_random)
    expected, params = torch.from_numpy(twin.state()), reference.replace(**changes)
    for t in range(30):
        action = t % 4
        noise = torch.tensor([draws.random(), draws.random()], dtype=torch.float64)
        twin.step(action)
        expected = SYSTEM.transition(expected, torch.tensor(action), params, noise=noise)
    np.testing.assert_allclose(twin.state()[:6], expected[:6], atol=5e-3)
    assert twin.env.np_random.random() == draws.random()
    assert twin.params()["gravity"] == 4.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"leg_strength": 5.0}, r"'leg_strength' is 5; expected .*legs, which cannot be set"),
        ({"leg_friction": 0.5}, r"'leg_friction' is 0.5"),
        (
            {"side_acceleration": 5.0},
            r"side_acceleration = 5, .*expected the proportion 2.4824 : 4.9713 : 1.3154.*together",
        ),
    ],
)
def test_what_cannot_be_replaced_says_so(changes: dict[str, float], message: str) -> None:
    twin = make()
    before = twin.params()
    with pytest.raises(ValueError, match=message):
        twin.set_params({**before, **changes})
    assert twin.params() == before


def test_rewards_are_those_of_the_equations_from_the_first_step() -> None:
    twin, rng = make(), np.random.default_rng(3)
    for seed in range(5):
        twin.reset(seed)
        put(twin, flight(rng), FLAT)
        for _ in range(30):
            before, action = torch.from_numpy(twin.state()), int(rng.integers(4))
            reward = twin.step(action)[1]
            after = torch.from_numpy(twin.state())
            expected = SYSTEM.reward(before, torch.tensor(action), after)
            assert reward == pytest.approx(float(expected), abs=1e-4)


def test_landings_come_to_rest_and_falls_crash_as_the_equations_say() -> None:
    """Rest time, contacts and crash are read so that reward and termination follow from them."""
    ends = []
    for seed in range(6):
        twin, rng = make(), np.random.default_rng(seed)
        twin.reset(seed)
        controller: Any = RandomHold(4)
        if seed < 3:
            controller = Pilot((0, -0.7, 0), (0, -0.7, 0), max_hold=1000, epsilon=0.0)
        terminated = False
        while not terminated:
            before = torch.from_numpy(twin.state())
            action = controller(before.numpy(), rng)
            _, reward, terminated, _, _ = twin.step(action)
            state = torch.from_numpy(twin.state())
            assert bool(SYSTEM.terminal(state)) == terminated
            expected = SYSTEM.reward(before, torch.tensor(action), state)
            assert reward == pytest.approx(float(expected), abs=1e-4)
        ends.append(tuple(state[[8, 9]].tolist()))
    assert ends[:3] == [(pytest.approx(0.5), 0)] * 3
    assert ends[3:] == [(0, 1)] * 3


def test_contacts_follow_from_the_place() -> None:
    twin = make()
    resting = np.zeros(10)
    put(twin, resting, FLAT)
    assert twin.state()[6:].tolist() == [1, 1, 0, 0]
    twin.set_state(np.array([0, 5.0, *np.zeros(8)]))
    assert twin.state()[6:].tolist() == [0, 0, 0, 0]
    assert not twin.step(0)[2]
    twin.set_state(np.array([0, -0.5, *np.zeros(8)]))
    assert twin.state()[9] == 1
    assert twin.step(0)[1:3] == (-100, True)


def test_a_written_terrain_holds() -> None:
    twin = make(**CALM)
    hill = np.full(11, 2.0)
    put(twin, np.array([0, 3.0, *np.zeros(8)]), hill)
    for _ in range(100):
        twin.step(0)
    assert twin.state()[1] == pytest.approx(2.6, abs=0.1)
    assert twin.state()[6:8].tolist() == [1, 1]


def test_frames_of_a_written_state_are_those_of_the_real_one() -> None:
    """But for the exhaust, and for legs that hang a few thousandths of a radian differently."""
    real, copied = make("rgb_array"), make("rgb_array")
    for seed in range(8):
        rng = np.random.default_rng(seed)
        real.reset(seed)
        for _ in range(30 + seed):
            real.step(int(rng.integers(4)))
        real.env._clean_particles(True)
        copied.reset(100 + seed)
        put(copied, real.state(), real.scene())
        ours, theirs = (
            preprocess_frame(twin.env.render(), SYSTEM.frame).astype(int) for twin in (copied, real)
        )
        different = np.abs(ours - theirs)
        assert different.max() <= 40
        assert (different.max(axis=2) > 8).sum() <= 6
