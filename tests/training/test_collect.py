import json
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from piwm_gym.preprocess import preprocess_frame
from piwm_gym.systems import CartPole
from training.collect import Settings, collect, collect_shard, main, preset_settings, shard_path
from training.collectors import CartPoleCollector, get_collector
from training.collectors.cartpole import MAX_THETA, MAX_X, CartPoleRenderer
from training.collectors.collector import Trajectory
from training.controllers import RandomHold, SwitchedLinear

SPEC = CartPole.frame
SMALL = Settings("cartpole", trajectories=5, steps=6, shard_size=2, seed=3)


@pytest.fixture
def real(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = gym.make("CartPole-v1", render_mode="rgb_array").unwrapped
    assert isinstance(env, CartPoleEnv)
    env.reset(seed=0)
    yield env
    env.close()


@pytest.fixture(scope="module")
def trajectories() -> list[Trajectory]:
    collector = CartPoleCollector()
    collector._render = lambda state: np.zeros((1, 1, 3), np.uint8)  # type: ignore[assignment]
    return [collector.trajectory(np.random.default_rng([1, i]), 50) for i in range(150)]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("length", [0.5, 0.25, 0.8, 1.6])
def test_fast_frames_are_bit_equal_to_the_real_ones(real, length):
    """Half the cart out of the picture, steep angles and poles longer than the crop included."""
    render = CartPoleRenderer(SPEC)
    rng = np.random.default_rng(0)
    states = rng.uniform([-2.7, -1, -0.5, -1], [2.7, 1, 0.5, 1], size=(80, 4))
    states = np.concatenate([states, [[2.4, 0, 0, 0], [-2.4, 0, 0.5, 0], [0, 0, 0, 0]]])
    real.length = length
    for state in states:
        real.state = state
        expected = preprocess_frame(real.render(), SPEC)
        np.testing.assert_array_equal(render(state, length), expected, err_msg=str(state))


def test_preprocessing_averages_the_crop():
    native = np.random.default_rng(0).integers(0, 256, (400, 600, 3), dtype=np.uint8)
    spec = replace(SPEC, rows=(160, 352), columns=(12, 588))
    frame = preprocess_frame(native, spec)
    assert frame.dtype == np.uint8
    blocks = native[160:352, 12:588].reshape(64, 3, 64, 9, 3).mean(axis=(1, 3))
    np.testing.assert_allclose(frame, blocks, atol=1)
    assert preprocess_frame(native, SPEC).shape == (64, 64, 3)


@pytest.mark.parametrize(
    ("native", "got"),
    [
        (np.zeros((400, 600), np.uint8), r"uint8 array of shape \(400, 600\)"),
        (np.zeros((64, 64, 3), np.uint8), r"shape \(64, 64, 3\)"),
        (np.zeros((400, 600, 3), np.float32), "float32"),
        (None, "NoneType"),
    ],
)
def test_preprocessing_says_what_it_expected(native, got):
    with pytest.raises(ValueError, match=rf"native is a .*{got}.*expected .*\(400, 600, 3\)"):
        preprocess_frame(native, SPEC)


def test_trajectory_is_the_real_environment_frame_by_frame(real):
    trajectory = CartPoleCollector().trajectory(np.random.default_rng(0), 12)
    assert trajectory.frames.shape == (13, 64, 64, 3)
    assert trajectory.actions.shape == (12,)
    real.state = trajectory.states[0]
    for t in range(13):
        np.testing.assert_array_equal(real.state, trajectory.states[t])
        np.testing.assert_array_equal(preprocess_frame(real.render(), SPEC), trajectory.frames[t])
        if t < 12:
            real.steps_beyond_terminated = None
            real.step(int(trajectory.actions[t]))


def test_trajectories_follow_the_equations(trajectories):
    states = torch.from_numpy(np.stack([t.states for t in trajectories]))
    actions = torch.from_numpy(np.stack([t.actions for t in trajectories]))
    system = CartPole()
    following = system.transition(states[:, :-1], actions, system.reference)
    torch.testing.assert_close(following, states[:, 1:], atol=1e-12, rtol=0)


def test_trajectories_have_full_length_inside_the_accepted_region(trajectories):
    for t in trajectories:
        assert t.states.shape == (51, 4)
        assert t.actions.shape == (50,)
        assert np.abs(t.states[:, 0]).max() <= MAX_X
        assert np.abs(t.states[:, 2]).max() <= MAX_THETA


def test_trajectories_cover_the_states(trajectories):
    states = np.concatenate([t.states for t in trajectories])
    low, high = np.quantile(states, [0.01, 0.99], axis=0)
    assert (low < [-1.9, -1.5, -0.20, -1.0]).all()
    assert (high > [1.9, 1.5, 0.20, 1.0]).all()
    assert CartPole().terminal(torch.from_numpy(states)).double().mean() > 0.01
    assert {t.controller for t in trajectories} == set(CartPoleCollector.controllers)
    assert sum(CartPoleCollector.controllers.values()) == pytest.approx(1)


def test_impossible_trajectories_end_in_an_error(monkeypatch):
    monkeypatch.setattr("training.collectors.cartpole.MAX_TRIES", 3)
    monkeypatch.setattr("training.collectors.cartpole.MAX_THETA", 0.0)
    with pytest.raises(RuntimeError, match="3 tries; ask for fewer steps"):
        CartPoleCollector().trajectory(np.random.default_rng(0), 50)


def test_random_hold_keeps_its_action():
    rng = np.random.default_rng(0)
    held, free = RandomHold(2, max_hold=6), RandomHold(2)
    state = np.zeros(4)
    changes = [
        np.count_nonzero(np.diff([controller(state, rng) for _ in range(2000)])) / 2000
        for controller in (held, free)
    ]
    assert changes[0] == pytest.approx(1 / 7, abs=0.03)
    assert changes[1] == pytest.approx(1 / 2, abs=0.05)


def test_switched_linear_pushes_towards_its_target():
    rng = np.random.default_rng(0)
    controller = SwitchedLinear(np.array([1.0, 2.0]), np.array([0.5, 0.0]), 4, epsilon=0.0)
    assert controller(np.array([1.0, 0.0]), rng) == 1
    assert controller(np.array([0.0, -1.0]), rng) == 0
    blind = SwitchedLinear(np.array([1.0, 2.0]), np.array([0.5, 0.0]), 4, epsilon=1.0)
    pushes = [blind(np.array([1.0, 0.0]), rng) for _ in range(500)]
    assert np.mean(pushes) == pytest.approx(0.5, abs=0.1)


def test_bytes_depend_on_the_seed_but_not_on_workers(tmp_path):
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    collect(SMALL, one)
    collect(SMALL, two, workers=2)
    collect(Settings("cartpole", 5, steps=6, shard_size=2, seed=4), other)
    assert files(one) == files(two)
    assert files(one).keys() == files(other).keys()
    assert files(one)["shard-00000.npz"] != files(other)["shard-00000.npz"]


def test_larger_data_sets_begin_with_the_smaller_ones(tmp_path):
    (tmp_path / "small").mkdir()
    (tmp_path / "large").mkdir()
    small = collect_shard(SMALL, 0, tmp_path / "small")
    large = collect_shard(Settings("cartpole", 9, 6, shard_size=4, seed=3), 0, tmp_path / "large")
    with np.load(small) as a, np.load(large) as b:
        assert set(a) == {"frames", "actions", "states", "scenes", "controllers"}
        for name in a:
            np.testing.assert_array_equal(a[name], b[name][:2])


def test_collection_goes_on_where_it_was_killed(tmp_path):
    manifest = collect(SMALL, tmp_path)
    whole = files(tmp_path)
    kept = shard_path(tmp_path, 0).stat().st_mtime_ns

    manifest.unlink()
    half = shard_path(tmp_path, 1)
    half.write_bytes(half.read_bytes()[: half.stat().st_size // 2])
    shard_path(tmp_path, 2).with_suffix(".json").write_text('{"schema": ')
    (tmp_path / "shard-00002.npz.1234.tmp").write_bytes(b"half a shard")

    collect(SMALL, tmp_path)
    assert files(tmp_path) == whole
    assert shard_path(tmp_path, 0).stat().st_mtime_ns == kept


def test_failed_writes_leave_nothing_behind(tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        collect_shard(SMALL, 0, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_other_settings_do_not_overwrite(tmp_path):
    collect(SMALL, tmp_path)
    before = files(tmp_path)
    other = Settings("cartpole", trajectories=5, steps=6, shard_size=2, seed=4)
    with pytest.raises(ValueError, match=r"seed = 3, now 4 .*choose another --out"):
        collect(other, tmp_path)
    with pytest.raises(ValueError, match=r"seed = 3, now 4"):
        collect_shard(other, 0, tmp_path)
    assert files(tmp_path) == before


def test_manifest_describes_the_data(tmp_path):
    manifest = json.loads(collect(SMALL, tmp_path).read_text())
    assert manifest["real_id"] == "CartPole-v1"
    assert manifest["preset"] == "custom"
    assert manifest["resizer"] == "pillow-box"
    assert manifest["frame"]["rows"] == [160, 320]
    assert manifest["versions"]["gymnasium"] == gym.__version__
    assert [s["trajectories"] for s in manifest["shards"]] == [2, 2, 1]
    assert [s["first"] for s in manifest["shards"]] == [0, 2, 4]
    assert sum(manifest["controllers"].values()) == 5
    assert len(manifest["coverage"]["theta"]) == len(manifest["coverage"]["quantiles"])


def test_command_line(tmp_path):
    main("cartpole", preset="debug", out=tmp_path, workers=1)
    assert json.loads((tmp_path / "manifest.json").read_text())["preset"] == "debug"


def test_command_line_explains_itself(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main("cartpol", preset="debug", out=tmp_path, workers=1)
    assert "did you mean 'cartpole'?" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_errors_say_what_is_allowed(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'cartpole'"):
        get_collector("cart-pole")
    with pytest.raises(ValueError, match="did you mean 'laptop'"):
        preset_settings("cartpole", "lap-top")
    with pytest.raises(ValueError, match="workers is 0; expected at least 1"):
        collect(SMALL, tmp_path, workers=0)
    with pytest.raises(ValueError, match="steps is 0; expected at least 1"):
        Settings("cartpole", 1, steps=0)
    with pytest.raises(ValueError, match="seed is -1; expected 0 or more"):
        Settings("cartpole", 1, seed=-1)
