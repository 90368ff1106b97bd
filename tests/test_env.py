"""The single environment: API, physics, seeding, options, parameters, snapshots."""

import multiprocessing
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

from piwm_gym import shell
from piwm_gym.checkpoint import CheckpointError, load
from piwm_gym.env import WorldModelEnv
from piwm_gym.models import VARIANTS
from piwm_gym.observations import OBS_TYPES
from piwm_gym.registration import ENTRIES, Entry
from piwm_gym.systems import CartPole, CartPoleParams
from piwm_gym.vector_env import WorldModelVectorEnv
from piwm_gym.world_model import WorldModel

ENV_ID = "PIWM-CartPole-v0"
# The real environment's own space has unbounded velocities, of which Gymnasium warns.
UNBOUNDED = "ignore:.*A Box observation space m.*imum value is -?infinity.*:UserWarning"


@pytest.fixture
def env(model: WorldModel) -> WorldModelEnv:
    return WorldModelEnv(model=model, obs_type="state", render_mode="rgb_array")


def equal(a: Any, b: Any) -> bool:
    """Whether two observations are the same, bit for bit."""
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    return bool(np.array_equal(a, b)) and a.dtype == b.dtype


# ---- API ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings(UNBOUNDED)
@pytest.mark.parametrize("obs_type", OBS_TYPES)
def test_both_checkers_are_content(checkpoint: str, obs_type: str) -> None:
    env = gym.make(ENV_ID, checkpoint=checkpoint, obs_type=obs_type, render_mode="rgb_array")
    check_env(env.unwrapped)
    sb3_check_env(env.unwrapped)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_variant_loads_and_steps(checkpoints: dict[str, str], variant: str) -> None:
    env = gym.make(ENV_ID, variant=variant, checkpoint=checkpoints[variant])
    obs, _ = env.reset(seed=0)
    assert obs.shape == (64, 64, 3)
    assert obs.dtype == np.uint8
    assert env.step(1)[0] in env.observation_space


def test_types_of_what_comes_back(checkpoint: str) -> None:
    env = gym.make(ENV_ID, checkpoint=checkpoint, obs_type="pixels_state")
    obs, info = env.reset(seed=0)
    assert set(obs) == {"pixels", "state"}
    assert set(info) == {"state", "in_distribution", "params"}
    assert set(info["params"]) == set(CartPoleParams.names())
    assert all(type(v) is float for v in info["params"].values())
    obs, reward, terminated, truncated, info = env.step(np.int64(1))
    assert type(reward) is float
    assert type(terminated) is type(truncated) is type(info["in_distribution"]) is bool
    assert info["state"].shape == (4,)
    assert info["state"].dtype == obs["state"].dtype == np.float32
    assert set(info) == {"state", "in_distribution"}


@pytest.mark.parametrize("obs_type", OBS_TYPES)
def test_nothing_returned_shares_memory(model: WorldModel, obs_type: str) -> None:
    env = WorldModelEnv(model=model, obs_type=obs_type, render_mode="rgb_array")
    kept: list[tuple[np.ndarray, np.ndarray]] = []

    def keep(obs: Any, info: dict[str, Any]) -> None:
        arrays = list(obs.values()) if isinstance(obs, dict) else [obs]
        arrays += [info["state"], env.state, env.render()]
        for array in arrays:
            assert not any(np.shares_memory(array, other) for other, _ in kept)
            kept.append((array, array.copy()))

    keep(*env.reset(seed=0))
    for _ in range(3):
        obs, *_, info = env.step(1)
        keep(obs, info)
    assert all(np.array_equal(array, copy) for array, copy in kept)
    kept[-1][0][:] = 7  # a user who scribbles on a frame does not change the next
    assert not np.array_equal(env.render(), kept[-1][0])


def test_render_is_the_current_imagined_frame(model: WorldModel) -> None:
    env = WorldModelEnv(model=model, render_mode="rgb_array")
    obs, _ = env.reset(seed=0)
    assert np.array_equal(env.render(), obs)
    obs = env.step(0)[0]
    assert np.array_equal(env.render(), obs)
    state = torch.from_numpy(env.state)
    assert np.abs(model.decode(state).mul(255).movedim(0, -1).detach().numpy() - obs).max() <= 0.51


def test_frames_are_decoded_only_when_asked_for(
    model: WorldModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    draw = model.draw
    monkeypatch.setattr(model, "draw", lambda *args: calls.append(1) or draw(*args))
    env = WorldModelEnv(model=model, obs_type="state", render_mode="rgb_array")
    env.reset(seed=0)
    env.step(0)
    assert calls == []
    env.render()
    env.render()
    assert len(calls) == 1


def test_render_without_a_mode_warns(model: WorldModel) -> None:
    env = WorldModelEnv(model=model)
    env.reset()
    with pytest.warns(UserWarning, match="without specifying any render mode"):
        assert env.render() is None


def test_playing_by_hand_has_keys(env: WorldModelEnv) -> None:
    import pygame

    assert env.get_keys_to_action() == {(pygame.K_LEFT,): 0, (pygame.K_RIGHT,): 1}


@pytest.mark.parametrize("call", ["step", "render", "state", "snapshot"])
def test_nothing_works_before_reset(env: WorldModelEnv, call: str) -> None:
    with pytest.raises(gym.error.ResetNeeded, match=f"{call} before reset"):
        env.step(0) if call == "step" else getattr(env, call)()


def test_stepping_on_warns_and_pays_nothing(env: WorldModelEnv) -> None:
    env.reset(options={"state": [0, 0, 0.3, 0]})
    assert env.step(0)[1:3] == (1.0, True)
    with pytest.warns(UserWarning, match="already returned"):
        assert env.step(0)[1:3] == (0.0, True)


# ---- actions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "action",
    [1, True, np.int8(1), np.float64(1), 1.0, np.array(1), np.array([1]), [1], torch.tensor(1)],
)
def test_actions_of_many_types(env: WorldModelEnv, action: Any) -> None:
    env.reset(options={"state": [0, 0, 0, 0]})
    assert env.step(action)[4]["state"][1] > 0


@pytest.mark.parametrize(
    "action",
    [2, -1, 0.5, np.nan, np.inf, 10**30, 1j, "left", "1", None, [0, 1], [[0], [0, 1]], [], {}],
)
def test_actions_that_are_none(env: WorldModelEnv, action: Any) -> None:
    env.reset(seed=0)
    before = env.state
    with pytest.raises(ValueError, match=r"action .*expected an integer from 0 to 1"):
        env.step(action)
    assert np.array_equal(env.state, before)


# ---- physics -----------------------------------------------------------------------------------


def test_steps_as_the_real_environment(checkpoint: str) -> None:
    real = gym.make("CartPole-v1")
    env = gym.make(ENV_ID, checkpoint=checkpoint, obs_type="state")
    rng = np.random.default_rng(0)
    for episode in range(20):
        expected, _ = real.reset(seed=episode)
        obs, _ = env.reset(options={"state": expected})
        np.testing.assert_allclose(obs, expected, atol=1e-7)
        while True:
            action = int(rng.integers(2))
            expected, *expected_rest, _ = real.step(action)
            obs, *rest, info = env.step(action)
            np.testing.assert_allclose(obs, expected, atol=2e-5)
            np.testing.assert_array_equal(info["state"], obs)
            assert rest == expected_rest
            if rest[1] or rest[2]:
                break


def test_truncates_where_the_real_environment_does(checkpoint: str) -> None:
    env = gym.make(ENV_ID, checkpoint=checkpoint, obs_type="state")
    obs, _ = env.reset(seed=0)
    balance = np.array([0.1, 0.3, 3.0, 1.0])
    for step in range(1, 501):
        obs, reward, terminated, truncated, _ = env.step(int(obs @ balance > 0))
        assert (reward, terminated, truncated) == (1.0, False, step == 500)


def test_terminal_agrees_on_many_real_states() -> None:
    rng = np.random.default_rng(0)
    states = rng.uniform(-1, 1, (10_000, 4)) * [3, 2, 0.3, 2]
    real = (np.abs(states[:, 0]) > 2.4) | (np.abs(states[:, 2]) > 12 * 2 * np.pi / 360)
    ours = CartPole().terminal(torch.from_numpy(states.astype(np.float32)))
    assert np.array_equal(ours.numpy(), real)


def test_a_falling_pole_ends_the_dream(env: WorldModelEnv) -> None:
    env.reset(seed=0)
    steps = 1
    while not env.step(0)[2]:
        steps += 1
    assert steps < 30
    assert abs(env.state[2]) > 12 * np.pi / 180


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.system)
def test_observations_stay_in_the_space(entry: Entry, make_tiny: Callable[..., WorldModel]) -> None:
    model = make_tiny(system=entry.system)
    for obs_type, steps in (("state", 200), ("pixels", 10)):  # of 50 slots: 10,000 and 500
        envs = WorldModelVectorEnv(entry.env_id, 50, model=model, obs_type=obs_type)
        envs.action_space.seed(0)
        obs, _ = envs.reset(seed=0)
        for _ in range(steps):
            assert obs in envs.observation_space
            obs, *_ = envs.step(envs.action_space.sample())
        assert obs in envs.observation_space


def test_observations_beyond_the_end_stay_in_the_space(model: WorldModel) -> None:
    env = WorldModelEnv(model=model, obs_type="state")
    env.action_space.seed(0)
    env.reset(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(1000):  # goes far beyond the end of the episode
            obs, *_, info = env.step(1)
            assert obs in env.observation_space
    assert abs(info["state"][0]) > 4.8  # the simulation itself is not clipped
    assert not info["in_distribution"]


def test_in_distribution_follows_the_training_range(env: WorldModelEnv) -> None:
    assert env.reset(options={"state": [0, 0, 0, 0]})[1]["in_distribution"]
    assert not env.reset(options={"state": [0, 1.6, 0, 0]})[1]["in_distribution"]


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=lambda entry: entry.system)
@pytest.mark.parametrize("vectorized", [False, True])
def test_parameters_are_no_attributes_whose_change_would_change_nothing(
    entry: Entry, vectorized: bool, make_tiny: Callable[..., WorldModel]
) -> None:
    model = make_tiny(system=entry.system)
    kind = WorldModelVectorEnv if vectorized else WorldModelEnv
    env: Any = kind(entry.env_id, model=model, obs_type="state")
    before = env.params
    for name in before.names():
        with pytest.raises(AttributeError, match=rf"set_params\({name}=...\)"):
            setattr(env, name, 5.0)
        with pytest.raises(AttributeError, match=rf"params.{name}"):
            getattr(env, name)
        assert not hasattr(env, name)
        assert not hasattr(kind, name)
        if not vectorized:
            with pytest.raises(AttributeError, match="set_params"):
                gym.wrappers.TimeLimit(env, 9).set_wrapper_attr(name, 5.0)
    assert env.params == before
    env.note = "others are as in any object"


# ---- seeding -----------------------------------------------------------------------------------


def test_seeded_sequences_repeat(env: WorldModelEnv) -> None:
    runs = []
    for _ in range(2):
        runs.append([env.reset(seed=1)[0], env.reset()[0], env.reset()[0]])
    assert all(equal(a, b) for a, b in zip(*runs, strict=True))
    assert not equal(runs[0][0], runs[0][1])
    assert not equal(runs[0][1], runs[0][2])


def test_unseeded_environments_differ(model: WorldModel) -> None:
    a, b = (WorldModelEnv(model=model, obs_type="state").reset()[0] for _ in range(2))
    assert not equal(a, b)


def test_starts_like_the_real_environment(env: WorldModelEnv) -> None:
    starts = np.array([env.reset(seed=i)[0] for i in range(200)])
    assert np.abs(starts).max() < 0.05
    np.testing.assert_allclose(starts.std(0), 0.05 / np.sqrt(3), rtol=0.15)


def test_no_state_survives_a_reset(model: WorldModel) -> None:
    used, fresh = (WorldModelEnv(model=model, obs_type="pixels_state") for _ in range(2))
    used.reset(seed=3)
    for _ in range(20):
        used.step(int(used.state[2] > 0))
    assert equal(used.reset(seed=0)[0], fresh.reset(seed=0)[0])
    assert equal(used.step(1)[0], fresh.step(1)[0])


def test_global_generators_are_left_alone(checkpoint: str) -> None:
    # Python's own generator is not looked at: beartype, active in tests, draws from it.
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    env = gym.make(ENV_ID, checkpoint=checkpoint)
    env.reset(seed=0)
    env.step(0)
    env.reset()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


# ---- options -----------------------------------------------------------------------------------


def test_start_from_a_state(env: WorldModelEnv) -> None:
    start = [0.1, -0.2, 0.03, 0.4]
    for value in (start, np.array(start), torch.tensor(start)):
        _, info = env.reset(options={"state": value})
        np.testing.assert_allclose(info["state"], start, rtol=1e-6)


def test_options_do_not_change_later_random_numbers(env: WorldModelEnv) -> None:
    env.reset(seed=0)
    expected = env.reset()[0], env.reset()[0]
    env.reset(seed=0, options={"state": [0, 0, 0, 0], "params": {"length": 1.0}})
    assert equal(env.reset()[0], expected[0])
    assert equal(env.reset()[0], expected[1])


@pytest.mark.filterwarnings("ignore:most of options:UserWarning")
def test_start_from_frames(model: WorldModel) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (5, 64, 64, 3), np.uint8)
    actions = [0, 1, 1, 0]
    expected = model.encode(torch.from_numpy(frames)[None], torch.tensor([actions]))[0]
    env = WorldModelEnv(model=model, obs_type="state")
    _, info = env.reset(options={"frames": frames, "actions": actions})
    np.testing.assert_allclose(info["state"], expected.detach().numpy(), rtol=1e-4, atol=1e-5)


def strange_frames(model: WorldModel) -> dict[str, np.ndarray]:
    """(3, H, W, 3) uint8 windows that show nothing of a system, by what they are."""
    shape = (3, *model.system.frame.size, 3)
    noise = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    return {
        "white": np.full(shape, 255, np.uint8),
        "black": np.zeros(shape, np.uint8),
        "noise": noise,
    }


@pytest.mark.parametrize("env_id", ["PIWM-CartPole-v0", "PIWM-LunarLander-v0"])
def test_frames_that_do_not_show_the_system_are_told(env_id: str) -> None:
    model = load(env_id, device="cpu")
    env = WorldModelEnv(env_id, model=model, obs_type="state")
    state = torch.zeros(3, len(model.system.variables))
    options = {"frames": model.draw(state).numpy(), "actions": [0, 0]}
    env.reset(options=options)  # warnings are errors here
    for name, frames in strange_frames(model).items():
        with pytest.warns(UserWarning, match="most of .*frames.*are guesses"):
            env.reset(options={"frames": frames, "actions": [0, 0]})
        assert env.state.shape == state[0].shape, name


FRAMES = np.zeros((3, 64, 64, 3), np.uint8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sate": [0, 0, 0, 0]}, "did you mean 'state'"),
        ({"reset_mask": [True]}, "unknown option 'reset_mask'"),
        ({"low": -0.1}, "unknown option 'low'"),
        ([("state", 0)], "options is a list"),
        ({"state": [0, 0, 0]}, r"shape \(3,\); expected \(4,\).*x, x_dot, theta, theta_dot"),
        ({"state": [[0, 0, 0, 0]]}, r"shape \(1, 4\)"),
        ({"state": [0, 0, np.nan, 0]}, "finite"),
        ({"state": "upright"}, "finite numbers"),
        ({"state": [0, 0, 0, 0], "frames": FRAMES, "actions": [0, 0]}, "both 'state' and"),
        ({"frames": FRAMES}, "go together"),
        ({"actions": [0, 0]}, "go together"),
        ({"frames": FRAMES, "actions": [0]}, r"shape \(2,\)"),
        ({"frames": FRAMES, "actions": [0, 2]}, "expected an integer from 0 to 1"),
        ({"frames": FRAMES[:1], "actions": []}, "one frame"),
        ({"frames": FRAMES.astype(float), "actions": [0, 0]}, "uint8"),
        ({"frames": FRAMES[:, :32], "actions": [0, 0]}, r"expected \(T, 64, 64, 3\)"),
        ({"params": {"lenght": 1.0}}, "did you mean 'length'"),
        ({"params": 0.8}, "params is a float"),
    ],
)
def test_options_that_are_wrong(env: WorldModelEnv, options: Any, message: str) -> None:
    env.reset(seed=0)
    before = env.state
    with pytest.raises(ValueError, match=message):
        env.reset(options=options)
    assert np.array_equal(env.state, before)


# ---- parameters --------------------------------------------------------------------------------


def test_parameters_at_construction(model: WorldModel) -> None:
    env = WorldModelEnv(model=model, obs_type="state", params={"length": 0.8, "masspole": 0.3})
    _, info = env.reset(seed=0)
    assert env.params.length == info["params"]["length"] == 0.8
    assert env.params.total_mass == pytest.approx(1.3)
    assert float(model.params.length) == pytest.approx(0.5)  # the model itself is not touched


def test_parameters_change_the_motion_at_once(env: WorldModelEnv) -> None:
    env.reset(options={"state": [0, 0, 0, 0]})
    slow = env.step(1)[4]["state"][1]
    env.reset(options={"state": [0, 0, 0, 0]})
    env.set_params(force_mag=20.0)
    assert env.step(1)[4]["state"][1] == pytest.approx(2 * slow, rel=1e-5)
    env.reset()
    assert env.params.force_mag == 20.0


def test_derived_quantities_follow(env: WorldModelEnv) -> None:
    real: Any = gym.make("CartPole-v1").unwrapped
    real.reset(seed=0)
    real.masspole, real.total_mass, real.polemass_length = 0.3, 1.3, 0.15
    real.state = np.array([0.1, 0.2, 0.05, 0.3])
    env.set_params(masspole=0.3)
    env.reset(options={"state": [0.1, 0.2, 0.05, 0.3]})
    np.testing.assert_allclose(env.step(1)[0], real.step(1)[0], rtol=1e-5)


def test_parameters_of_one_episode(env: WorldModelEnv) -> None:
    env.set_params(length=0.7)
    _, info = env.reset(options={"params": {"length": 0.9, "gravity": 5.0}})
    assert (info["params"]["length"], info["params"]["gravity"]) == (0.9, 5.0)
    assert env.params.length == 0.9
    _, info = env.reset()
    assert (info["params"]["length"], info["params"]["gravity"]) == (0.7, 9.8)


def test_random_parameters(model: WorldModel) -> None:
    env = WorldModelEnv(model=model, obs_type="state", randomize={"length": (0.4, 0.6)})
    lengths = [env.reset(seed=i)[1]["params"]["length"] for i in range(50)]
    assert 0.4 <= min(lengths) < 0.43
    assert 0.57 < max(lengths) <= 0.6
    assert env.reset(seed=3)[1]["params"]["length"] == lengths[3]
    assert env.reset(options={"params": {"length": 2.0}})[1]["params"]["length"] == 2.0
    assert env.reset()[1]["params"]["length"] < 0.6
    with pytest.raises(ValueError, match="drawn anew"):
        env.set_params(length=1.0)


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        np.nan,
        np.inf,
        "long",
        None,
        [0.1, 0.2],
        True,
        np.True_,
        torch.tensor(True),
        1j,
        1e-60,
    ],
)
def test_parameters_that_are_wrong(env: WorldModelEnv, value: Any) -> None:
    env.reset(seed=0)
    before = env.params
    with pytest.raises(ValueError, match=r"'length'.*expected one number, positive and finite, in"):
        env.set_params(length=value)
    with pytest.raises(ValueError, match="'length'"):
        env.reset(options={"params": {"length": value}})
    assert env.params == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"obs_type": "pixel"}, "did you mean 'pixels'"),
        ({"render_mode": "rgb"}, "unknown render_mode 'rgb'"),
        ({"params": {"total_mass": 2.0}}, "unknown parameter 'total_mass'"),
        ({"params": {"mass_pole": 2.0}}, "did you mean 'masspole'"),
        ({"randomize": {"length": 0.5}}, r"expected \(low, high\)"),
        ({"randomize": [("length", 0.5)]}, r"randomize is .*expected name to \(low, high\)"),
        ({"randomize": {"length": np.array(0.5)}}, r"expected \(low, high\)"),
        ({"randomize": {"length": (0.6, 0.5)}}, "low <= high"),
        ({"randomize": {"length": (0.0, 0.5)}}, "positive"),
        ({"randomize": {"length": (0.4, 0.5)}, "params": {"length": 0.5}}, "keep one"),
    ],
)
def test_arguments_that_are_wrong(
    model: WorldModel, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        WorldModelEnv(model=model, **arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"variant": "extrinsic-discreet"}, ValueError, "did you mean 'extrinsic-discrete'"),
        ({"env_id": "PIWM-Cartpole-v0"}, ValueError, "did you mean 'PIWM-CartPole-v0'"),
        ({"checkpoint": "no/such/file.safetensors"}, CheckpointError, "does not exist"),
    ],
)
def test_models_that_do_not_exist(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        WorldModelEnv(**arguments)


def test_devices_that_do_not_exist(checkpoint: str) -> None:
    with pytest.raises(ValueError, match="expected 'auto', 'cpu' or 'cuda'"):
        WorldModelEnv(checkpoint=checkpoint, device="tpu")


# ---- snapshots and pickles ---------------------------------------------------------------------


def play(env: WorldModelEnv) -> list[Any]:
    """Everything that five steps, a reset and two more steps return."""
    trace = [env.step(i % 2)[0] for i in range(5)]
    trace.append(env.reset()[0])
    trace += [env.step(1)[0] for _ in range(2)]
    return [*trace, np.array(list(vars(env.params).values()))]


def same(a: list[Any], b: list[Any]) -> bool:
    return all(equal(x, y) for x, y in zip(a, b, strict=True))


def test_snapshots_branch_an_episode(model: WorldModel) -> None:
    env = WorldModelEnv(model=model, obs_type="pixels_state", randomize={"length": (0.4, 0.6)})
    env.reset(seed=0, options={"params": {"gravity": 3.0}})
    env.step(0)
    snapshot = env.snapshot()
    first = play(env)
    env.set_params(masspole=0.5)
    env.reset(seed=9)
    for _ in range(2):
        env.restore(snapshot)
        assert same(play(env), first)
    assert len(pickle.dumps(snapshot)) < 20_000
    other = WorldModelEnv(model=model, obs_type="pixels_state", randomize={"length": (0.4, 0.6)})
    other.restore(pickle.loads(pickle.dumps(snapshot)))
    assert same(play(other), first)


def test_snapshots_of_something_else(env: WorldModelEnv) -> None:
    with pytest.raises(ValueError, match="not a snapshot of 1 slots"):
        env.restore({"state": 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("pickler", [pickle, cloudpickle])
def test_environments_pickle(checkpoint: str, pickler: Any) -> None:
    env = gym.make(ENV_ID, checkpoint=checkpoint, obs_type="state")
    env.unwrapped.set_params(length=0.8)
    sent = pickler.dumps(env)
    assert len(sent) < 20_000  # the path of the checkpoint, not its weights
    again = pickle.loads(sent)
    assert again.unwrapped.params.length == 0.8
    env.reset(seed=0)
    env.step(1)
    again = pickle.loads(pickler.dumps(env))
    assert same(play(again.unwrapped), play(env.unwrapped))
    assert again.spec == env.spec


def test_environments_around_a_model_pickle(env: WorldModelEnv) -> None:
    env.reset(seed=0)
    again = pickle.loads(pickle.dumps(env))
    assert same(play(again), play(env))


# ---- processes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_async_after_threaded_torch(checkpoint: str, context: str) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x = torch.rand(512, 512)
        _ = x @ x
        envs = gym.make_vec(
            "piwm_gym:" + ENV_ID,
            num_envs=2,
            vectorization_mode="async",
            checkpoint=checkpoint,
            obs_type="state",
            device="cpu",
            vector_kwargs={"context": context},
        )
        envs.reset(seed=0)
        for _ in range(3):
            envs.step(np.array([0, 1]))
        envs.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def _threads_in_worker(checkpoint: str, queue: Any) -> None:
    WorldModelEnv(checkpoint=checkpoint, device="cpu")
    queue.put(torch.get_num_threads())


def test_workers_use_one_thread(checkpoint: str) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        worker = context.Process(target=_threads_in_worker, args=(checkpoint, queue))
        worker.start()
        assert queue.get(timeout=60) == 1
        worker.join(timeout=60)
        WorldModelEnv(checkpoint=checkpoint, device="cpu")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


def test_cuda_in_a_forked_process_explains_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any) -> None:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with ...")

    monkeypatch.setattr(shell, "load", load)
    with pytest.raises(RuntimeError, match=r"gymnasium\.make_vec\('PIWM-CartPole-v0'"):
        WorldModelEnv()


def test_documentation_has_gymnasiums_sections() -> None:
    lines = (WorldModelEnv.__doc__ or "").splitlines()
    titles = [line.strip() for line in lines if line.strip().startswith("## ")]
    assert titles == [
        "## Description",
        "## Action Space",
        "## Observation Space",
        "## Rewards",
        "## Starting State",
        "## Episode End",
        "## Arguments",
        "## Vectorized environment",
        "## Version History",
    ]


def test_the_example_in_the_documentation_runs(checkpoint: str, tmp_path: Path) -> None:
    env = gym.make("piwm_gym:PIWM-CartPole-v0", obs_type="state", checkpoint=Path(checkpoint))
    env.reset(seed=0)
    assert len(env.step(1)) == 5


@pytest.mark.parametrize("make", [gym.make, partial(gym.make_vec, num_envs=2)])
@pytest.mark.parametrize(
    ("env_id", "changes", "message"),
    [
        (ENV_ID, {"decoder": "latent"}, "decoder is 'latent', and model is given"),
        (ENV_ID, {"variant": "extrinsic-discrete"}, "variant is 'extrinsic-discrete', and model"),
        (ENV_ID, {"checkpoint": "x"}, "checkpoint is 'x', and model is given"),
        (ENV_ID, {"device": "cpu"}, "device is 'cpu', and model is given"),
        (ENV_ID, {"model": 1}, "model is 1; expected a WorldModel"),
        ("PIWM-LunarLander-v0", {}, "model is one of cartpole in what was made as 'PIWM-LunarLan"),
    ],
)
def test_a_given_model_is_not_silently_another(
    model: WorldModel, make: Any, env_id: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(env_id, **({"model": model} | changes))


def test_models_of_other_precision_are_refused(model: WorldModel) -> None:
    with pytest.raises(ValueError, match=r"model is in bfloat16; expected float32: model.float"):
        WorldModelEnv(model=model.bfloat16())
