"""The vector environment: equality with the single one, autoreset, outputs, parameters."""

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from machine_code import leave_uncompiled

from piwm_gym.actions import ActionReader
from piwm_gym.checkpoint import load
from piwm_gym.env import WorldModelEnv
from piwm_gym.observations import OBS_TYPES
from piwm_gym.slots import Slots
from piwm_gym.vector_env import WorldModelVectorEnv
from piwm_gym.world_model import WorldModel

ENV_ID = "PIWM-CartPole-v0"
MODES = ["SameStep", "NextStep", "Disabled"]
ABOUT_TO_FALL = [0.0, 0.0, 0.209, 1.0]
UPRIGHT = [0.0, 0.0, 0.0, 0.0]


def make(model: WorldModel, num_envs: int = 3, **arguments: Any) -> WorldModelVectorEnv:
    arguments.setdefault("obs_type", "state")
    return WorldModelVectorEnv(num_envs=num_envs, model=model, **arguments)


# ---- equality with the single environment ------------------------------------------------------


@pytest.fixture(params=["by index, as on a CPU", "by mask, as on a GPU"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test with both ways of writing to a subset of the slots."""
    if "mask" in request.param:
        monkeypatch.setattr(Slots, "by_index", False)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("num_envs", [1, 2, 33])
def test_slot_i_is_the_single_environment_with_seed_plus_i(
    model: WorldModel, num_envs: int
) -> None:
    randomize = {"length": (0.4, 0.6)}
    envs = make(model, num_envs, max_episode_steps=20, randomize=randomize)
    singles = [
        gym.wrappers.TimeLimit(
            WorldModelEnv(model=model, obs_type="state", randomize=randomize), 20
        )
        for _ in range(num_envs)
    ]
    obs, info = envs.reset(seed=7)
    for i, single in enumerate(singles):
        expected, single_info = single.reset(seed=7 + i)
        assert np.array_equal(obs[i], expected)
        assert info["params"]["length"][i] == np.float32(single_info["params"]["length"])
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.integers(0, 2, num_envs)
        obs, rewards, terminated, truncated, info = envs.step(actions)
        for i, single in enumerate(singles):
            expected, *flags, single_info = single.step(int(actions[i]))
            assert flags == [rewards[i], terminated[i], truncated[i]]
            if flags[1] or flags[2]:
                assert np.array_equal(info["final_obs"][i], expected)
                assert np.array_equal(info["final_info"]["state"][i], single_info["state"])
                expected, single_info = single.reset()
                assert info["params"]["length"][i] == np.float32(single_info["params"]["length"])
            assert np.array_equal(obs[i], expected)
            assert np.array_equal(info["state"][i], single_info["state"])
            assert info["in_distribution"][i] == single_info["in_distribution"]


def test_frames_are_those_of_the_single_environment(model: WorldModel) -> None:
    envs, single = make(model, 5, obs_type="pixels"), WorldModelEnv(model=model)
    obs, _ = envs.reset(seed=0)
    expected, _ = single.reset(seed=2)
    assert np.abs(obs[2].astype(int) - expected).max() <= 1
    obs = envs.step([1] * 5)[0]
    assert np.abs(obs[2].astype(int) - single.step(1)[0]).max() <= 1


@pytest.mark.parametrize("mode", MODES[:2])
def test_sync_vector_env_of_single_ones_agrees(checkpoint: str, mode: str) -> None:
    arguments = {"checkpoint": checkpoint, "obs_type": "state", "max_episode_steps": 15}
    ours = gym.make_vec(ENV_ID, num_envs=4, autoreset_mode=mode, **arguments)
    theirs = gym.make_vec(
        ENV_ID,
        num_envs=4,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": mode},
        **arguments,
    )
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    assert ours.metadata == theirs.metadata
    assert np.array_equal(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    rng = np.random.default_rng(0)
    for _ in range(60):
        actions = rng.integers(0, 2, 4)
        a, b = ours.step(actions), theirs.step(actions)
        for x, y in zip(a[:4], b[:4], strict=True):
            assert np.array_equal(x, y)
        assert {"state", "_state", "in_distribution"} <= set(a[4])
        assert ("final_obs" in a[4]) == ("final_obs" in b[4])
        if "final_obs" in a[4]:
            assert np.array_equal(a[4]["_final_obs"], b[4]["_final_obs"])
            assert np.array_equal(a[4]["_final_info"], b[4]["_final_info"])
            for x, y in zip(a[4]["final_obs"], b[4]["final_obs"], strict=True):
                assert (x is None) == (y is None)
                assert x is None or np.array_equal(x, y)


# ---- autoreset ---------------------------------------------------------------------------------


def trace(envs: WorldModelVectorEnv, steps: int) -> list[tuple[Any, ...]]:
    """Rewards, terminations, truncations and elapsed steps."""
    out = []
    for _ in range(steps):
        _, rewards, terminated, truncated, _ = envs.step([0] * envs.num_envs)
        elapsed = envs.simulation.elapsed.tolist()
        out.append((rewards.tolist(), terminated.tolist(), truncated.tolist(), elapsed))
    return out


@pytest.mark.usefixtures("both_ways")
def test_same_step_trace(model: WorldModel) -> None:
    envs = make(model, 2, max_episode_steps=3)
    envs.reset(seed=0, options={"state": [ABOUT_TO_FALL, UPRIGHT]})
    assert trace(envs, 4) == [
        ([1, 1], [True, False], [False, False], [0, 1]),
        ([1, 1], [False, False], [False, False], [1, 2]),
        ([1, 1], [False, False], [False, True], [2, 0]),
        ([1, 1], [False, False], [True, False], [0, 1]),
    ]


@pytest.mark.usefixtures("both_ways")
def test_next_step_trace(model: WorldModel) -> None:
    envs = make(model, 2, max_episode_steps=3, autoreset_mode="NextStep")
    envs.reset(seed=0, options={"state": [ABOUT_TO_FALL, UPRIGHT]})
    assert trace(envs, 5) == [
        ([1, 1], [True, False], [False, False], [1, 1]),
        ([0, 1], [False, False], [False, False], [0, 2]),
        ([1, 1], [False, False], [False, True], [1, 3]),
        ([1, 0], [False, False], [False, False], [2, 0]),
        ([1, 1], [False, False], [True, False], [3, 1]),
    ]


@pytest.mark.parametrize("as_tensor", [False, True])
def test_disabled_trace(model: WorldModel, as_tensor: bool) -> None:
    envs = make(model, 2, max_episode_steps=3, autoreset_mode="Disabled")
    envs.reset(seed=0, options={"state": [ABOUT_TO_FALL, UPRIGHT]})
    assert trace(envs, 1) == [([1, 1], [True, False], [False, False], [1, 1])]
    with pytest.raises(gym.error.ResetNeeded, match=r"environments \[0\] are over"):
        envs.step([0, 0])
    mask: Any = torch.tensor([True, False]) if as_tensor else np.array([True, False])
    before = envs.state[1]
    options = {"reset_mask": mask}
    obs, info = envs.reset(options=options)
    assert "reset_mask" in options
    assert np.array_equal(obs[1], before)
    assert np.abs(obs[0]).max() < 0.05
    assert info["_params"].tolist() == [True, False]
    assert trace(envs, 2) == [
        ([1, 1], [False, False], [False, False], [1, 2]),
        ([1, 1], [False, False], [False, True], [2, 3]),
    ]


def test_terminated_and_truncated_in_one_step(model: WorldModel) -> None:
    envs = make(model, 1, max_episode_steps=1)
    envs.reset(options={"state": ABOUT_TO_FALL})
    _, _, terminated, truncated, info = envs.step([1])
    assert terminated[0]
    assert truncated[0]
    assert abs(info["final_obs"][0][2]) > 0.2095


@pytest.mark.parametrize("mode", MODES)
def test_resets_do_not_disturb_the_others(model: WorldModel, mode: str) -> None:
    alone = make(model, 1, autoreset_mode=mode)
    both = make(model, 2, autoreset_mode=mode)
    alone.reset(seed=1, options={"state": [UPRIGHT]})
    both.reset(seed=0, options={"state": [ABOUT_TO_FALL, UPRIGHT]})
    for action in (0, 1, 1, 0):
        expected = alone.step([action])
        if mode == "Disabled" and both.simulation.done[0]:
            both.reset(options={"reset_mask": np.array([True, False])})
        got = both.step([0, action])
        for x, y in zip(got[:4], expected[:4], strict=True):
            assert np.array_equal(x[1], y[0])


@pytest.mark.parametrize("mode", MODES)
def test_episode_statistics(model: WorldModel, mode: str) -> None:
    limit = 7
    envs = RecordEpisodeStatistics(make(model, 3, max_episode_steps=limit, autoreset_mode=mode))
    envs.reset(seed=0)
    for _ in range(25):
        _, _, terminated, truncated, _ = envs.step(np.zeros(3, int))
        done = terminated | truncated
        if mode == "Disabled" and done.any():
            envs.reset(options={"reset_mask": done})
    assert len(envs.length_queue) >= 6
    assert set(envs.length_queue) == {limit}
    assert set(envs.return_queue) == {float(limit)}


def test_truncation_is_an_array_and_ages_differ(checkpoint: str) -> None:
    envs = gym.make_vec(
        ENV_ID, num_envs=5, max_episode_steps=10, checkpoint=checkpoint, obs_type="state"
    )
    envs.reset(seed=0, options={"state": [UPRIGHT] * 4 + [ABOUT_TO_FALL]})
    for step in range(1, 11):
        *_, terminated, truncated, _ = envs.step([step % 2] * 5)
        assert terminated.shape == truncated.shape == (5,)
        assert terminated.dtype == truncated.dtype == np.bool_
    assert truncated.tolist() == [True] * 4 + [False]
    *_, truncated, _ = envs.step([0] * 5)
    assert truncated.tolist() == [False] * 4 + [True]


@pytest.mark.parametrize("limit", [None, -1])
def test_without_a_limit_nothing_is_truncated(model: WorldModel, limit: int | None) -> None:
    envs = make(model, 1, max_episode_steps=limit)
    envs.reset(seed=0)
    assert not any(envs.step([t % 2])[3][0] for t in range(600))


# ---- outputs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("obs_type", OBS_TYPES)
def test_outputs(model: WorldModel, output: str, mode: str, obs_type: str) -> None:
    envs = make(model, 3, obs_type=obs_type, output=output, autoreset_mode=mode)
    kind = np.ndarray if output == "numpy" else torch.Tensor
    kept: list[tuple[Any, Any]] = []

    def check(value: Any) -> None:
        if isinstance(value, dict):
            for part in value.values():
                check(part)
            return
        assert isinstance(value, kind)
        assert len(value) == 3
        if output == "torch":
            assert value.device == model.device
            assert not value.is_inference()
            assert not value.requires_grad
        array = np.asarray(value)
        if array.dtype != object:
            assert not any(np.shares_memory(array, other) for other, _ in kept)
            kept.append((array, array.copy()))

    obs, info = envs.reset(seed=0, options={"state": [ABOUT_TO_FALL, UPRIGHT, UPRIGHT]})
    check(obs)
    check(info)
    for _ in range(3):
        *returned, info = envs.step(envs.action_space.sample())
        for value in (*returned, info):
            check(value)
        if output == "numpy":
            assert returned[0] in envs.observation_space or obs_type == "pixels_state"
        if mode == "SameStep":
            assert ("final_obs" in info) == bool(returned[2].any())
        elif mode == "Disabled" and bool(returned[2].any()):
            envs.reset(options={"reset_mask": returned[2]})
    assert all(np.array_equal(array, copy) for array, copy in kept)


@pytest.mark.parametrize("obs_type", OBS_TYPES)
def test_torch_output_has_the_numbers_of_numpy(model: WorldModel, obs_type: str) -> None:
    a = make(model, 3, obs_type=obs_type)
    b = make(model, 3, obs_type=obs_type, output="torch")
    a.reset(seed=0, options={"state": [ABOUT_TO_FALL, UPRIGHT, UPRIGHT]})
    b.reset(seed=0, options={"state": [ABOUT_TO_FALL, UPRIGHT, UPRIGHT]})
    (obs, *rest, info), (tensors, *others, more) = (
        a.step([1, 0, 1]),
        b.step(torch.tensor([1, 0, 1])),
    )

    def parts(value: Any) -> list[Any]:
        return list(value.values()) if isinstance(value, dict) else [value]

    for x, y in zip([*parts(obs), *rest], [*parts(tensors), *others], strict=True):
        assert np.array_equal(x, y.numpy())
    last = info["final_obs"][0]
    for x, y in zip(parts(last), parts(more["final_obs"]), strict=True):
        assert np.array_equal(x, y[0].numpy())
    assert more["_final_obs"].tolist() == [True, False, False]


def test_torch_output_trains_a_network(model: WorldModel) -> None:
    envs = make(model, 3, output="torch")
    obs, _ = envs.reset(seed=0)
    policy = torch.nn.Linear(4, 2)
    policy(obs).sum().backward()
    assert policy.weight.grad is not None


def test_infos_fit_gymnasiums_wrapper(model: WorldModel) -> None:
    envs = DictInfoToList(make(model, 2, randomize={"length": (0.4, 0.6)}))
    _, infos = envs.reset(seed=0, options={"state": [ABOUT_TO_FALL, UPRIGHT]})
    assert infos[1]["params"]["masspole"] == pytest.approx(0.1)
    infos = envs.step([1, 1])[4]
    assert "final_info" in infos[0]
    assert "params" in infos[0]
    assert set(infos[1]) == {"state", "in_distribution"}


def test_render_gives_a_tuple_of_frames(model: WorldModel) -> None:
    envs = make(model, 6, render_mode="rgb_array", output="torch")
    envs.reset(seed=0)
    frames = envs.render()
    assert isinstance(frames, tuple)
    assert [f.shape for f in frames] == [(64, 64, 3)] * 6
    assert all(f.dtype == np.uint8 for f in frames)
    first = frames[0].copy()
    envs.step([0] * 6)
    assert np.array_equal(frames[0], first)
    with pytest.warns(UserWarning, match="without specifying any render mode"):
        assert make(model).render() is None


@pytest.mark.usefixtures("both_ways")
def test_frames_follow_autoresets(model: WorldModel) -> None:
    envs = make(model, 2, obs_type="pixels", render_mode="rgb_array")
    envs.reset(seed=0, options={"state": [ABOUT_TO_FALL, UPRIGHT]})
    obs, *_, info = envs.step([1, 1])
    states = torch.from_numpy(info["state"])
    expected = model.decode(states).mul(255).movedim(1, -1).detach().numpy()
    assert np.abs(expected - obs).max() <= 0.51
    assert np.array_equal(np.stack(envs.render() or ()), obs)
    assert not np.array_equal(info["final_obs"][0], obs[0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_frames_belong_to_the_user(
    model: WorldModel, mode: str, render_mode: str | None, output: str
) -> None:
    """What is written to them reaches no later frame."""
    both = {"obs_type": "pixels", "autoreset_mode": mode, "render_mode": render_mode}
    spoiled, kept = (make(model, 3, output=output, **both) for _ in range(2))
    mask = {"reset_mask": np.array([True, False, False])}
    for call in (
        lambda envs: envs.reset(seed=0)[0],
        lambda envs: envs.step([1, 0, 1])[0],
        lambda envs: envs.reset(options=mask)[0],
        lambda envs: np.stack(envs.render()) if render_mode else envs.step([0, 0, 1])[0],
    ):
        written, expected = call(spoiled), call(kept)
        assert np.array_equal(written, expected)
        written[:] = 7


# ---- seeding -----------------------------------------------------------------------------------


def test_autoresets_reproduce_and_slots_differ(model: WorldModel) -> None:
    runs = []
    for _ in range(2):
        envs = make(model, 4, max_episode_steps=12)
        envs.action_space.seed(0)
        envs.reset(seed=5)
        runs.append(np.stack([envs.step(envs.action_space.sample())[0] for _ in range(300)]))
    assert np.array_equal(*runs)
    assert len(np.unique(runs[0][12], axis=0)) == 4
    unseeded = [make(model, 2).reset()[0] for _ in range(2)]
    assert not np.array_equal(*unseeded)


def test_a_seed_per_slot(model: WorldModel) -> None:
    envs = make(model, 2)
    expected = envs.reset(seed=3)[0]
    assert np.array_equal(envs.reset(seed=[3, 4])[0], expected)
    after = envs.reset()[0]
    envs.reset(seed=3)
    envs.reset(seed=3, options={"reset_mask": np.array([True, False])})
    assert np.array_equal(envs.reset()[0], after)
    assert np.array_equal(envs.reset(seed=np.array([3, 4]))[0], expected)
    for seed in ([1], [1, -1], [1, 0.5], "ab", 1.5):
        with pytest.raises(ValueError, match="expected an integer >= 0 or 2 of them"):
            envs.reset(seed=seed)


# ---- actions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "actions",
    [
        [1, 0],
        np.array([1, 0], np.int32),
        np.array([1.0, 0.0]),
        np.array([[1], [0]]),
        np.array([True, False]),
        torch.tensor([1, 0]),
        torch.tensor([1.0, 0.0]),
    ],
)
def test_actions_of_many_types(model: WorldModel, actions: Any) -> None:
    envs = make(model, 2)
    envs.reset(options={"state": UPRIGHT})
    assert np.sign(envs.step(actions)[0][:, 1]).tolist() == [1, -1]


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([0, 2], "of environment 1 is 2"),
        ([-1, 0], "of environment 0 is -1"),
        ([0, np.nan], "of environment 1 is nan"),
        ([0, 0.5], "of environment 1 is 0.5"),
        ([0], r"shape \(1,\)"),
        (0, r"shape \(\)"),
        ([0, 0, 0, 0], r"shape \(4,\)"),
        (["left", "right"], "expected an integer from 0 to 1 for each of"),
    ],
)
def test_actions_that_are_none(model: WorldModel, actions: Any, message: str) -> None:
    envs = make(model, 2)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        envs.step(actions)


def test_actions_on_a_device_are_checked_with_a_delay() -> None:
    reader = ActionReader(gym.spaces.Discrete(2), 2, torch.device("cpu"))
    assert reader._read_on_device(torch.tensor([0, 1])).tolist() == [0, 1]
    reader.verify()
    assert reader._read_on_device(torch.tensor([0.0, 7.0])).tolist() == [0, 1]
    with pytest.raises(ValueError, match="of the last 1 steps was invalid"):
        reader.verify()
    reader.verify()
    box = ActionReader(gym.spaces.Box(-1, 1, (1,)), 2, torch.device("cpu"))
    assert box._read_on_device(torch.tensor([[0.5], [7.0]])).tolist() == [[0.5], [1.0]]
    box.verify()
    for _ in range(127):
        box._read_on_device(torch.tensor([[0.5], [torch.nan]]))
    with pytest.raises(ValueError, match="of the last 128 steps was invalid"):
        box._read_on_device(torch.tensor([[0.5], [0.5]]))


# ---- options, parameters, arguments ------------------------------------------------------------


def test_start_from_states_and_frames(model: WorldModel) -> None:
    envs = make(model, 2)
    states = np.random.default_rng(0).uniform(-0.1, 0.1, (2, 4)).astype(np.float32)
    assert np.array_equal(envs.reset(options={"state": states})[1]["state"], states)
    assert np.array_equal(envs.reset(options={"state": states[0]})[1]["state"][1], states[0])


def test_slots_whose_frames_do_not_show_the_system_are_named() -> None:
    model = load(device="cpu")
    frames = model.draw(torch.zeros(4, 3, 4)).numpy()
    actions = np.ones((4, 2), np.int64)
    envs = make(model, 4)
    envs.reset(options={"frames": frames, "actions": actions})  # warnings are errors here
    frames[[1, 3], 1:] = 255
    with pytest.warns(UserWarning, match=r"of environments \[1, 3\] do not show"):
        envs.reset(options={"frames": frames, "actions": actions})
    mask = np.array([True, False, True, False])
    envs.reset(options={"frames": frames, "actions": actions, "reset_mask": mask})
    frames[3, 1:] = frames[0, 0]
    with pytest.warns(UserWarning, match=r"of environments \[1\] do not show"):
        envs.reset(options={"frames": frames, "actions": actions})


@pytest.mark.filterwarnings("ignore:most of options:UserWarning")
def test_start_from_frames_with_parameters_per_slot(model: WorldModel) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (2, 4, 64, 64, 3), np.uint8)
    actions = np.array([[0, 1, 0], [1, 1, 1]])
    envs = make(model, 2, params={"length": [0.5, 0.9]})
    _, info = envs.reset(options={"frames": frames, "actions": actions})
    for i, length in enumerate((0.5, 0.9)):
        single = WorldModelEnv(model=model, params={"length": length})
        options = {"frames": frames[i], "actions": actions[i]}
        expected = single.reset(options=options)[1]["state"]
        np.testing.assert_allclose(info["state"][i], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": [True, False]}, "unknown option 'mask'"),
        ({"reset_masks": [True, False]}, "did you mean 'reset_mask'"),
        ({"reset_mask": np.array([1, 0])}, "bool"),
        ({"reset_mask": np.array([True])}, r"expected \(2,\) bool"),
        ({"reset_mask": np.array([False, False])}, "selects no environment"),
        ({"state": np.zeros((3, 4))}, r"expected \(2, 4\)"),
        ({"frames": np.zeros((3, 64, 64, 3), np.uint8), "actions": [0, 0]}, r"\(2, T, 64, 64, 3\)"),
        ({"params": {"length": [0.5, 0.5, 0.5]}}, "one number or 2 of them"),
    ],
)
def test_options_that_are_wrong(model: WorldModel, options: Any, message: str) -> None:
    envs = make(model, 2)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        envs.reset(options=options)


def test_the_first_reset_is_of_all(model: WorldModel) -> None:
    with pytest.raises(ValueError, match="the first reset starts all"):
        make(model, 2).reset(options={"reset_mask": np.array([True, False])})
    make(model, 2).reset(options={"reset_mask": np.array([True, True])})


@pytest.mark.parametrize("length", [[0.5, 0.8], np.array([0.5, 0.8]), torch.tensor([0.5, 0.8])])
def test_parameters_per_slot(model: WorldModel, length: Any) -> None:
    envs = make(model, 2, params={"length": length})
    _, info = envs.reset(options={"state": [0, 0, 0.1, 0]})
    assert info["params"]["length"].tolist() == pytest.approx([0.5, 0.8])
    assert info["params"]["gravity"].shape == (2,)
    obs = envs.step([0, 0])[0]
    for i, value in enumerate((0.5, 0.8)):
        single = WorldModelEnv(model=model, obs_type="state", params={"length": value})
        single.reset(options={"state": [0, 0, 0.1, 0]})
        assert np.array_equal(single.step(0)[0], obs[i])
    for _ in range(30):
        envs.step([0, 0])
    assert envs.params.length.tolist() == pytest.approx([0.5, 0.8])  # autoresets keep them


@pytest.mark.usefixtures("both_ways")
def test_parameters_of_one_episode_revert_per_slot(model: WorldModel) -> None:
    envs = make(model, 2)
    envs.reset(options={"state": [ABOUT_TO_FALL, UPRIGHT], "params": {"length": 0.9}})
    *_, info = envs.step([1, 1])
    assert envs.params.length.tolist() == pytest.approx([0.5, 0.9])
    assert info["params"]["length"].tolist() == pytest.approx([0.5, 0.9])
    assert info["_params"].tolist() == [True, False]
    mask = np.array([True, False])
    envs.reset(options={"reset_mask": mask, "params": {"length": [0.7, 0.8], "gravity": 5.0}})
    assert envs.params.length.tolist() == pytest.approx([0.7, 0.9])
    assert envs.params.gravity.tolist() == pytest.approx([5.0, 9.8])
    envs.set_params(length=[0.3, 0.4])
    assert envs.params.length.tolist() == pytest.approx([0.3, 0.4])
    envs.reset()
    assert envs.params.length.tolist() == pytest.approx([0.3, 0.4])
    assert envs.params.gravity.tolist() == pytest.approx([9.8, 9.8])


@pytest.mark.usefixtures("both_ways")
def test_random_parameters_are_drawn_at_each_start(model: WorldModel) -> None:
    envs = make(model, 3, randomize={"length": (0.4, 0.6), "masspole": (0.1, 0.2)})
    _, info = envs.reset(seed=0, options={"state": [ABOUT_TO_FALL, UPRIGHT, UPRIGHT]})
    first = info["params"]["length"]
    assert len(set(first)) == 3
    *_, info = envs.step([1, 1, 1])
    second = info["params"]["length"]
    assert second[0] != first[0]
    assert np.array_equal(second[1:], first[1:])
    assert 0.4 <= second.min() <= second.max() <= 0.6


def test_snapshots_and_pickles(checkpoint: str) -> None:
    envs = gym.make_vec(ENV_ID, num_envs=3, checkpoint=checkpoint, obs_type="state")
    assert isinstance(envs, WorldModelVectorEnv)
    envs.reset(seed=0)
    envs.step([0, 1, 0])
    snapshot = envs.snapshot()
    again = pickle.loads(pickle.dumps(envs))
    expected = [envs.step([0, 0, 0])[0] for _ in range(40)]
    envs.restore(snapshot)
    for other in (envs, again):
        got = [other.step([0, 0, 0])[0] for _ in range(40)]
        assert np.array_equal(got, expected)
    with pytest.raises(ValueError, match="not a snapshot of 2 slots"):
        make(envs.model, 2).restore(snapshot)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 0}, "num_envs is 0; expected an integer of at least 1"),
        ({"num_envs": 2.0}, "num_envs is 2.0"),
        ({"num_envs": True}, "num_envs is True"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0"),
        ({"output": "jax"}, "unknown output 'jax'"),
        ({"autoreset_mode": "samestep"}, "did you mean 'SameStep'"),
        ({"obs_type": "rgb"}, "unknown obs_type 'rgb'"),
        ({"render_mode": "human"}, "unknown render_mode 'human'"),
    ],
)
def test_arguments_that_are_wrong(
    model: WorldModel, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make(model, **arguments)


def test_modes_as_enum_and_in_the_metadata(model: WorldModel) -> None:
    assert make(model).metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    for mode in AutoresetMode:
        assert make(model, autoreset_mode=mode).metadata["autoreset_mode"] is mode


def test_nothing_works_before_reset(model: WorldModel) -> None:
    with pytest.raises(gym.error.ResetNeeded):
        make(model).step([0, 0, 0])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("inside", [(True, False), (False, True)])
@pytest.mark.parametrize("compiled", [False, True])
def test_inference_mode_may_come_and_go(
    model: WorldModel,
    mode: str,
    inside: tuple[bool, bool],
    compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leave_uncompiled(monkeypatch)
    ranges = {"length": (0.4, 0.6)}
    arguments = {"autoreset_mode": mode, "max_episode_steps": 4, "compile": compiled}
    envs, expected = (make(model, 3, randomize=ranges, **arguments) for _ in range(2))

    def drive(envs: Any) -> list[np.ndarray]:
        seen = [envs.reset(seed=0, options={"params": {"masspole": 0.2}})[0]]
        envs.set_params(gravity=9.0)
        for _ in range(9):
            if mode == "Disabled" and envs.simulation.done.any():
                done = envs.simulation.done.numpy()
                seen.append(envs.reset(options={"reset_mask": done})[0])
            seen.append(envs.step([0, 1, 0])[0])
        return seen

    found = []
    for mode_now in inside:
        with torch.inference_mode(mode_now):
            found += drive(envs)
    assert np.array_equal(found, drive(expected) + drive(expected))


def test_many_slots_are_decoded_in_chunks(model: WorldModel) -> None:
    envs = make(model, 600, obs_type="pixels")
    obs, info = envs.reset(seed=0)
    assert obs.shape == (600, 64, 64, 3)
    single = WorldModelEnv(model=model)
    expected, _ = single.reset(options={"state": info["state"][599]})
    assert np.abs(obs[599].astype(int) - expected).max() <= 1


# ---- rollouts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("system", ["cartpole", "lunar_lander", "donkey_car"])
def test_a_rollout_goes_where_steps_would_and_changes_nothing(make_tiny: Any, system: str) -> None:
    model = make_tiny(system=system)
    name = next(iter(vars(model.params)))
    fixed = {key: 0.0 for key in vars(model.params) if key.endswith("dispersion")}
    arguments = {"params": fixed, "randomize": {name: (1.0, 2.0)}, "autoreset_mode": "Disabled"}
    envs = make(model, 3, **arguments)
    with pytest.raises(gym.error.ResetNeeded):
        envs.rollout(np.zeros((3, 4)))
    envs.reset(seed=0)
    space = envs.single_action_space
    actions = np.stack([[space.sample() for _ in range(4)] for _ in range(3)])
    states = envs.rollout(actions)
    assert isinstance(states, np.ndarray)
    for step in range(4):
        envs.step(actions[:, step])
        np.testing.assert_allclose(envs.state, states[:, step], atol=1e-5)
    with pytest.raises(ValueError, match="actions"):
        envs.rollout(actions[:2])


def test_gradients_flow_back_through_a_rollout(make_tiny: Any) -> None:
    envs = make(make_tiny(system="donkey_car"), 2, output="torch")
    envs.reset(seed=0)
    actions = torch.full((2, 5, 2), 0.1, requires_grad=True)
    envs.rollout(actions)[:, -1, :2].sum().backward()
    assert actions.grad is not None
    assert (actions.grad[:, :-1, 1] > 0).all()  # the last throttle is felt a step later


# ---- GPU ---------------------------------------------------------------------------------------


def tensors(value: Any) -> list[torch.Tensor]:
    """All tensors in nested dicts."""
    if isinstance(value, dict):
        return [tensor for part in value.values() for tensor in tensors(part)]
    return [value]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("mode", MODES[:2])
def test_on_a_gpu_nothing_leaves_and_nothing_waits(model: WorldModel, mode: str) -> None:
    model = model.cuda()
    arguments = {"autoreset_mode": mode, "randomize": {"length": (0.4, 0.6)}}
    envs = make(model, 64, output="torch", max_episode_steps=10, **arguments)
    actions = torch.zeros(64, dtype=torch.int64, device="cuda")
    obs, info = envs.reset(seed=0)
    for _ in range(12):  # what is cached on first use may wait
        envs.step(actions)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(20):
            *returned, info = envs.step(actions)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(t.is_cuda for part in (obs, info, *returned) for t in tensors(part))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_numbers_of_the_cpu(make_tiny: Any) -> None:
    runs = []
    for device in ("cpu", "cuda"):
        envs = make(make_tiny().to(device), 16, max_episode_steps=8)
        envs.reset(seed=0)
        runs.append(np.stack([envs.step([t % 2] * 16)[0] for t in range(30)]))
    np.testing.assert_allclose(*runs, atol=1e-5)
