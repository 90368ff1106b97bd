"""Environments whose episodes have a scene and process noise: Lunar Lander."""

import pickle
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from piwm_gym.env import WorldModelEnv
from piwm_gym.slots import Slots
from piwm_gym.systems import LunarLander
from piwm_gym.vector_env import WorldModelVectorEnv
from piwm_gym.world_model import WorldModel

SYSTEM = LunarLander()
FLAT = np.full(11, -0.6, dtype=np.float32)
HOVER = [0.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0]
STILL = {"main_dispersion": 0.0, "side_dispersion": 0.0}


@pytest.fixture
def model(make_tiny: Callable[..., WorldModel]) -> WorldModel:
    return make_tiny(system="lunar_lander")


@pytest.fixture
def env(model: WorldModel) -> WorldModelEnv:
    return WorldModelEnv(model=model, obs_type="pixels_state")


@pytest.fixture(params=["by index, as on a CPU", "by mask, as on a GPU"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with both ways of writing to a subset of the slots."""
    if "mask" in request.param:
        monkeypatch.setattr(Slots, "by_index", False)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("mode", ["SameStep", "NextStep"])
def test_slot_i_is_the_single_environment_with_seed_plus_i(model: WorldModel, mode: str) -> None:
    count = 5
    randomize = {"gravity": (9.0, 11.0), "main_dispersion": (0.0, 0.3)}
    arguments: dict[str, Any] = {"model": model, "obs_type": "state", "randomize": randomize}
    envs = WorldModelVectorEnv(
        num_envs=count, max_episode_steps=150, autoreset_mode=mode, **arguments
    )
    singles = [gym.wrappers.TimeLimit(WorldModelEnv(**arguments), 150) for _ in range(count)]
    obs, info = envs.reset(seed=7)
    assert info["scene"].shape == (count, 11)
    for i, single in enumerate(singles):
        expected, single_info = single.reset(seed=7 + i)
        assert np.array_equal(obs[i], expected)
        assert np.array_equal(info["scene"][i], single_info["scene"])
    rng = np.random.default_rng(0)
    ends = np.zeros(3, dtype=int)
    over = np.zeros(count, dtype=bool)
    for _ in range(200):
        actions = rng.integers(0, 4, count)
        obs, rewards, terminated, truncated, info = envs.step(actions)
        for i, single in enumerate(singles):
            if over[i]:
                expected, single_info = single.reset()
                assert np.array_equal(info["scene"][i], single_info["scene"])
                assert info["_scene"][i]
                assert [rewards[i], terminated[i], truncated[i]] == [0.0, False, False]
                over[i] = False
            else:
                expected, *flags, single_info = single.step(int(actions[i]))
                assert flags == [rewards[i], terminated[i], truncated[i]]
                if flags[1] or flags[2]:
                    ends += [single_info["state"][9] == 1, flags[1], flags[2]]
                    over[i] = mode == "NextStep"
                    if mode == "SameStep":
                        assert np.array_equal(info["final_obs"][i], expected)
                        expected, single_info = single.reset()
                        assert np.array_equal(info["scene"][i], single_info["scene"])
            assert np.array_equal(obs[i], expected)
            assert np.array_equal(info["state"][i], single_info["state"])
    assert ends[0] > 0
    assert ends[1] > 2


def test_frames_show_the_scene_of_their_slot(model: WorldModel) -> None:
    envs = WorldModelVectorEnv(num_envs=2, model=model, render_mode="rgb_array")
    assert envs.single_observation_space.shape == (64, 96, 3)
    obs, info = envs.reset(seed=0, options={"state": HOVER})
    assert obs.shape == (2, 64, 96, 3)
    assert not np.array_equal(*obs)
    with torch.no_grad():
        states, scenes = torch.from_numpy(info["state"]), torch.from_numpy(info["scene"])
        frames = model.decode(states, scenes).movedim(1, -1).numpy() * 255
    assert np.abs(frames - obs).max() <= 0.51


def test_a_reset_takes_a_scene_and_draws_the_rest(env: WorldModelEnv) -> None:
    expected, info = env.reset(seed=0)
    assert info["scene"].dtype == np.float32
    assert info["scene"].shape == (11,)
    obs, info = env.reset(seed=0, options={"scene": FLAT.tolist()})
    assert np.array_equal(info["scene"], FLAT)
    assert np.array_equal(obs["state"], expected["state"])
    assert not np.array_equal(obs["pixels"], expected["pixels"])
    again, info = env.reset()
    assert not np.array_equal(info["scene"], FLAT)
    env.reset(seed=0)
    assert np.array_equal(env.reset()[0]["state"], again["state"])
    _, info = env.reset(options={"state": HOVER, "scene": torch.from_numpy(FLAT)})
    assert np.array_equal(info["state"], np.array(HOVER, dtype=np.float32))
    assert np.array_equal(info["scene"], FLAT)


@pytest.mark.parametrize(
    ("height", "given", "expected"),
    [
        (3.0, (1, 1, 0.48, 0), (0, 0, 0, 0)),
        (-0.01, (0, 0, 0.3, 0), (1, 1, 0.3, 0)),
        (-1.0, (0, 0, 0, 0), (1, 1, 0, 1)),
    ],
)
def test_a_start_stands_on_the_ground_where_it_touches_it(
    env: WorldModelEnv, height: float, given: Any, expected: Any
) -> None:
    """As in the real environment, where contacts follow from the place."""
    start = [0.0, height, 0.0, 0.0, 0.0, 0.0, *given]
    _, info = env.reset(options={"state": start, "scene": FLAT})
    np.testing.assert_allclose(info["state"][6:], expected, rtol=1e-6)


def test_a_state_of_an_episode_is_a_start_as_it_is(env: WorldModelEnv) -> None:
    env.set_params(**STILL)
    env.reset(seed=0, options={"state": HOVER, "scene": FLAT})
    terminated = False
    while not terminated:
        state, before = env.state.copy(), env.snapshot()
        _, info = env.reset(options={"state": state, "scene": FLAT})
        assert np.array_equal(info["state"], state)
        env.restore(before)
        terminated = env.step(2 if state[3] < -0.5 else 0)[2]
    assert state[8] > 0.4, "it came to rest"


def test_the_ground_stops_the_lander_where_it_is(env: WorldModelEnv) -> None:
    env.set_params(**STILL)
    heights = []
    for raised in (0.0, 2.0):
        env.reset(seed=0, options={"state": HOVER, "scene": FLAT + raised})
        terminated = False
        while not terminated:
            sinks_fast = env.state[3] < -0.5
            _, reward, terminated, _, info = env.step(2 if sinks_fast else 0)
        assert reward == 100
        heights.append(info["state"][1])
    np.testing.assert_allclose(heights, [0.0, 2.0], atol=0.05)


def test_slots_take_their_own_scenes_or_share_one(model: WorldModel) -> None:
    envs = WorldModelVectorEnv(num_envs=3, model=model, obs_type="state", output="torch")
    scenes = torch.arange(33.0).view(3, 11) / 33
    _, info = envs.reset(seed=0, options={"scene": scenes})
    assert torch.equal(info["scene"], scenes)
    _, info = envs.reset(options={"scene": FLAT})
    assert torch.equal(info["scene"], torch.from_numpy(FLAT).expand(3, -1))
    mask = np.array([False, True, False])
    _, info = envs.reset(options={"reset_mask": mask})
    assert (info["scene"] == FLAT[0]).all(1).tolist() == [True, False, True]
    assert info["_scene"].tolist() == mask.tolist()


@pytest.mark.filterwarnings("ignore:most of options:UserWarning")
@pytest.mark.parametrize("given", [False, True])
def test_an_episode_goes_on_from_frames_in_the_scene_they_show(
    env: WorldModelEnv, model: WorldModel, given: bool
) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (4, 64, 96, 3), np.uint8)
    options = {"frames": frames, "actions": [0, 2, 3], **({"scene": FLAT} if given else {})}
    _, info = env.reset(seed=0, options=options)
    window, actions = torch.from_numpy(frames)[None], torch.tensor([[0, 2, 3]])
    with torch.no_grad():
        scene = torch.from_numpy(FLAT) if given else model.encode_scene(window)[0]
        state = model.encode(window, actions, scene=scene)[0]
    np.testing.assert_allclose(info["scene"], scene, atol=1e-5)
    np.testing.assert_allclose(info["state"], state, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scene": FLAT[:10]}, r"options\['scene'\] has shape \(10,\); expected \(11,\).*height_0"),
        ({"scene": FLAT * np.nan}, r"options\['scene'\] .* finite"),
        ({"scene": "flat"}, "finite numbers"),
        ({"scenes": FLAT}, "did you mean 'scene'"),
    ],
)
def test_scenes_that_are_wrong(env: WorldModelEnv, options: Any, message: str) -> None:
    env.reset(seed=0)
    before = env.snapshot().scene
    with pytest.raises(ValueError, match=message):
        env.reset(options=options)
    assert torch.equal(env.snapshot().scene, before)


def test_cart_pole_has_no_scene(make_tiny: Callable[..., WorldModel]) -> None:
    env = WorldModelEnv(model=make_tiny(), obs_type="state")
    assert "scene" not in env.reset(seed=0)[1]
    with pytest.raises(ValueError, match=r"cartpole has no scene; leave options\['scene'\] out"):
        env.reset(options={"scene": FLAT})


def test_engines_are_dispersed_unless_the_dispersion_vanishes(model: WorldModel) -> None:
    spreads = []
    for params in ({}, STILL):
        envs = WorldModelVectorEnv(num_envs=8, model=model, obs_type="state", params=params)
        envs.reset(seed=0, options={"state": HOVER})
        for action in (2, 1, 3):
            info = envs.step([action] * 8)[-1]
        spreads.append(np.ptp(info["state"], axis=0)[:6])
    assert (spreads[0] > 0).all()
    assert (spreads[1] == 0).all()


def test_what_may_vanish_is_said_by_the_errors(model: WorldModel) -> None:
    env = WorldModelEnv(model=model, obs_type="state")
    env.set_params(main_dispersion=0.0)
    _, info = env.reset(options={"params": {"side_dispersion": 0.0}})
    assert info["params"]["main_dispersion"] == info["params"]["side_dispersion"] == 0.0
    with pytest.raises(ValueError, match="'main_dispersion' is -1; .* non-negative and finite"):
        env.set_params(main_dispersion=-1)
    with pytest.raises(ValueError, match=r"'gravity' is 0; .* positive and finite, in m/s\^2"):
        env.set_params(gravity=0)
    with pytest.raises(ValueError, match="'side_dispersion' is -0.1; .* non-negative"):
        WorldModelEnv(model=model, randomize={"side_dispersion": (-0.1, 0.1)})


def test_snapshots_and_pickles_continue_with_scene_and_noise(env: WorldModelEnv) -> None:
    env.reset(seed=0)
    for _ in range(10):
        env.step(2)
    snapshot, copy = env.snapshot(), pickle.loads(pickle.dumps(env))
    expected = [env.step(2)[0] for _ in range(5)]
    env.reset(seed=9)
    env.restore(snapshot)
    for other in (env, copy):
        for obs in expected:
            found = other.step(2)[0]
            assert np.array_equal(found["state"], obs["state"])
            assert np.array_equal(found["pixels"], obs["pixels"])
