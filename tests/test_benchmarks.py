"""The benchmarks with tiny settings: what they feed policies, and the tables they write."""

import csv
import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

pytest.importorskip("stable_baselines3")

import piwm_gym
from benchmarks import control, throughput
from benchmarks.agents import World, train
from benchmarks.contenders import envpool_subjects, gymnax_subjects, imagined
from benchmarks.costs import decoding, floor
from benchmarks.endings import ENDINGS, LEADS, confusion, imagined_endings, real_endings
from benchmarks.floor import Capacity, of_products, of_rollout, of_step
from benchmarks.growth import draw_growth
from benchmarks.model_calls import decoders, encoding, enlarged, of_frame, rollouts
from benchmarks.pixels import BAND, STACK, FrameStack, bands
from benchmarks.reality import EstimatedStates, RealEpisodes, StackedFrames
from benchmarks.recipes import RECIPES
from benchmarks.soak import main as soak_all
from benchmarks.soak import soak
from benchmarks.stopwatch import Work
from benchmarks.tables import update_csv
from piwm_gym.registration import DEFAULT_VARIANT
from piwm_gym.systems import get_system
from piwm_gym.world_model import WorldModel

ENV_ID = "PIWM-CartPole-v0"


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def test_control_writes_its_table(checkpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "control.csv"
    tiny = {"checkpoint": checkpoint, "steps": 128, "num_envs": 2, "episodes": 2, "out": out}
    control.main(seeds=(0,), **tiny)  # type: ignore[arg-type]
    control.main(policies=("state",), seeds=(0, 1), **tiny)  # type: ignore[arg-type]
    rows = read(out)
    assert [(row["deployment_observations"], row["seed"]) for row in rows] == [
        ("real frames", "0"),
        ("true state", "0"),
        ("state from real frames", "0"),
        ("true state", "1"),
        ("state from real frames", "1"),
    ]
    for row in rows:
        assert int(row["training_steps"]) >= 128
        assert 1 <= float(row["imagined_return_mean"]) <= 500
        assert 1 <= float(row["real_return_min"]) <= float(row["real_return_mean"]) <= 500


@pytest.fixture
def envpool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module with EnvPool's interface."""
    (tmp_path / "envpool.py").write_text(
        "import gymnasium\n"
        "def list_all_envs():\n"
        "    return ['CartPole-v1']\n"
        "def make(name, env_type, num_envs, num_threads):\n"
        "    return gymnasium.make_vec(name, num_envs)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("envpool")


def test_throughput_writes_its_table(checkpoint: str, tmp_path: Path, envpool: None) -> None:
    out = tmp_path / "throughput.csv"
    throughput.main(
        checkpoint=checkpoint,
        sizes=(1, 8),
        pixel_sizes=(2,),
        gpu_pixel_sizes=(),
        seconds=0.01,
        compiled=False,
        costs=False,
        out=out,
    )
    rows = [row for row in read(out) if row["device"] == "cpu"]
    assert {row["measure"] for row in rows} == {
        "environment steps",
        "frames",
        "states from 20 frames",
        "rollouts of 1024 states",
        "decoded frames",
    }
    assert all(float(row["per_second"]) > 0 for row in rows)
    floored = {row["subject"].split(",")[0] for row in rows if row["floor_per_second"]}
    assert floored == {"piwm-gym", "WorldModel.rollout", "untrained decoder"}
    assert {row["subject"].split(",")[0] for row in rows} - floored >= {
        "CartPole-v1",
        "WorldModel.encode",
    }
    for column, name, batches in (
        ("subject", "CartPole-v1, CartPoleVectorEnv, frames resized", ["2"]),
        ("subject", "CartPole-v1, EnvPool", ["1", "8"]),
        ("subject", "WorldModel.rollout, 15 steps", ["1", "8"]),
        ("measure", "rollouts of 1024 states", ["1", "5", "15", "50", "150"]),
        ("measure", "decoded frames", ["4096", "16384", "65536"]),
    ):
        assert [row["batch"] for row in rows if row[column] == name] == batches
    assert out.with_suffix(".png").stat().st_size > 10_000


def test_frames_of_large_batches_are_for_gpus(
    checkpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(throughput, "draw_growth", lambda *_: None)
    monkeypatch.setattr(throughput, "print_rows", lambda *_: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(throughput, "Lot", lambda *of: asked.append((of[4], of[3])) or [])
    throughput.main(costs=False, out=tmp_path / "throughput.csv")
    assert asked == [("cpu", (1, 64, 1024, 4096)), ("cuda", (1, 64, 1024, 4096, 65536))]


def test_continuous_actions_are_timed_too(car_checkpoint: str) -> None:
    source = {"variant": DEFAULT_VARIANT, "checkpoint": car_checkpoint}
    lot = imagined("PIWM-DonkeyCar-v0", source, "state", (1, 4), "cpu", Work())
    assert all(subject.rates(0.01).wall > 0 for subject in lot)
    model = piwm_gym.load("PIWM-DonkeyCar-v0", checkpoint=car_checkpoint, device="cpu")
    for lot in (rollouts(model, (4,), False, horizons=()), encoding(model, (2,))):
        assert [subject.rates(0.01).wall > 0 for subject in lot] == [True]


def test_rollouts_are_timed_before_they_are_compiled(
    model: WorldModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    monkeypatch.setattr(model, "compile_rollout", done.append)
    done += ((subject.name, subject.batch) for subject in rollouts(model, (4,), True, (2,)))
    assert [thing if isinstance(thing, tuple) else "compiled" for thing in done] == [
        ("WorldModel.rollout, 15 steps", 4),
        ("WorldModel.rollout", 2),
        "compiled",
        "compiled",
        ("WorldModel.rollout, 15 steps, compiled", 4),
        ("WorldModel.rollout, compiled", 2),
    ]


def test_the_floor_is_what_takes_longest() -> None:
    capacity = Capacity(products=100.0, bandwidth=10.0)
    assert capacity.rate(Work(multiply_adds=50.0)) == 2
    assert capacity.rate(Work(moved=20.0)) == 0.5
    assert capacity.rate(Work(50.0, 20.0) * 2) == 0.25
    assert dict((name, value) for name, value, _ in floor(capacity)) == {
        "measured matrix throughput": 100,
        "measured memory bandwidth": 10,
    }


def test_work_can_be_counted_by_hand() -> None:
    a, b, total = torch.rand(6, 3), torch.rand(3, 5), torch.rand(6, 5)
    assert of_products(lambda: a @ b, 6) == Work(multiply_adds=3 * 5)
    assert of_products(lambda: total.addmm_(a, b), 1) == Work(multiply_adds=6 * 3 * 5)
    # Twice 4 numbers, a counter and a position; an action, 4 numbers and a reward, two flags.
    system = get_system("cartpole")
    assert of_step(system) == Work(moved=2 * (16 + 4 + 8) + 8 + 16 + 4 + 2)
    assert of_rollout(system) == Work(moved=16 + 8)


@pytest.mark.parametrize("env_id", ["PIWM-CartPole-v0", "PIWM-LunarLander-v0", "PIWM-DonkeyCar-v0"])
def test_shipped_decoders_can_be_enlarged(env_id: str) -> None:
    model = piwm_gym.load(env_id, device="cpu")
    height, width = model.system.frame.size
    small, large = decoders(model, scales=(1, 2))
    assert (small.batch, large.batch) == (height * width, 4 * height * width)
    assert small.work == of_frame(model)
    assert large.work is not None
    assert large.work.multiply_adds > 2 * of_frame(model).multiply_adds
    frames: Any = large.call()
    assert frames.shape[1:] == (2 * height, 2 * width, 3)
    assert enlarged(model.system, 2) is not model.system
    assert model.system.frame.size == (height, width)


def test_envpool_is_measured_where_it_has_the_environment(envpool: None) -> None:
    (subject,) = envpool_subjects("CartPole-v1", (2, 99999))
    assert (subject.name, subject.count) == ("CartPole-v1, EnvPool", 2)
    assert list(envpool_subjects("LunarLander-v3", (2,))) == []


def test_growth_is_drawn_from_the_file_alone(tmp_path: Path) -> None:
    table, picture = tmp_path / "table.csv", tmp_path / "table.png"
    table.write_text(
        "measure,subject,output,device,batch,per_second\n"
        "environment steps,piwm-gym,numpy,cpu,1,10\n"
        "rollouts of 1024 states,WorldModel.rollout,torch,cpu,5,10\n"
    )
    draw_growth(table, picture)  # without the rows that a file had not before
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize(("obs_type", "steps"), [("state", 4000), ("pixels", 800)])
def test_soaking_in_miniature(
    checkpoint: str, mode: AutoresetMode, obs_type: str, steps: int
) -> None:
    arguments = {"checkpoint": checkpoint, "max_episode_steps": 40, "obs_type": obs_type}
    row = soak(ENV_ID, mode, steps, 16, 0, **arguments)
    assert (row["steps"], row["not_finite"], row["out_of_step"]) == (steps, 0, 0)
    assert row["growth_mib"] < 20


def test_soaking_takes_actions_of_any_kind(car_checkpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "soak.csv"
    soak_all("PIWM-DonkeyCar-v0", steps=400, num_envs=8, checkpoint=car_checkpoint, out=out)
    assert len(out.read_text().splitlines()) == 1 + len(AutoresetMode)


def test_multiply_adds_are_counted(checkpoint: str) -> None:
    source = {"variant": DEFAULT_VARIANT, "checkpoint": checkpoint}
    costs = decoding(ENV_ID, source, "cpu", Capacity(1e9, 1e9), 0.01, slots=4)
    values = {name: value for name, value, _ in costs}
    assert values["multiply-adds of a decoded frame"] > 1000
    assert len(values) == 3
    assert all(value > 0 for value in values.values())


def test_errors_are_one_line(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        control.main(policies=("pixel",), checkpoint=checkpoint, out=tmp_path / "x.csv")
    assert caught.value.code == 2
    assert "did you mean 'pixels'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        throughput.main(checkpoint=str(tmp_path / "none.safetensors"))


def test_a_table_with_other_columns_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("name,value\na,1\n")
    with pytest.raises(ValueError, match="--out"):
        update_csv(path, [{"name": "a", "other": 2}], ("name",))
    update_csv(path, [{"name": "a", "value": 123456.7}, {"name": "b", "value": 0.5}], ("name",))
    assert path.read_text() == "name,value\na,123457\nb,0.5\n"


def test_rows_from_before_a_column_was_added_stay(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("name,value\na,1\nb,2\n")
    with pytest.raises(ValueError, match="--out"):
        update_csv(path, [{"name": "a", "value": 3, "kind": "x"}], ("name", "kind"))
    update_csv(path, [{"name": "a", "more": "", "value": 3}], ("name",))
    assert path.read_text() == "name,more,value\nb,,2\na,,3\n"


def test_drawn_frames_are_the_real_environments() -> None:
    episodes = RealEpisodes(ENV_ID, [3, 4])
    real = piwm_gym.make_real(ENV_ID, obs_type="pixels")
    frame, _ = real.reset(seed=4)
    for _ in range(5):
        assert np.array_equal(episodes.frames()[1], frame)
        episodes.step(np.array([0, 1]))
        frame, *_ = real.step(1)


def test_bands_keep_the_area_average() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (2, 8, 6, 3), dtype=np.uint8)
    expected = 255 - frames[..., 2].astype(float).reshape(2, 2, BAND, 6).mean(2)
    assert bands(frames).shape == (2, 2, 6)
    assert np.abs(bands(frames) - expected).max() <= 0.5


def test_noise_is_on_cart_and_pole_alone_and_new_in_every_frame() -> None:
    frames = np.full((200, 8, 64, 3), 255, np.uint8)
    frames[:, :, 10:50] = 100
    stack = FrameStack(noise=4.0, seed=3)
    first = stack.start(frames)[:, -1].astype(float)
    second = stack.push(frames)[:, -1].astype(float)
    assert not first[..., :10].any()
    assert not first[..., 50:].any()
    for seen in (first, second, (first - second) / np.sqrt(2)):
        noise = seen[..., 10:50] - seen[..., 10:50].mean()
        assert np.isclose(noise.std(), 4.0, rtol=0.05)
    again = FrameStack(noise=4.0, seed=3).start(frames)[:, -1]
    assert np.array_equal(again, first)


def test_imagined_episodes_start_with_a_still_stack(checkpoint: str) -> None:
    venv = World(checkpoint=checkpoint).imagine(RECIPES["cartpole"]["pixels"], 2, seed=0)
    before = np.asarray(venv.reset())
    assert before.shape == (2, STACK, 64 // BAND, 64)
    assert venv.observation_space.contains(before[0])
    assert (before == before[:, -1:]).all()
    ended = 0
    for _ in range(15):
        obs, _, dones, infos = venv.step(np.array([1, 1]))
        after = np.asarray(obs)
        for i in range(2):
            last = infos[i]["terminal_observation"] if dones[i] else after[i]
            assert np.array_equal(last[:-1], before[i, 1:])
            assert not dones[i] or (after[i] == after[i, -1]).all()
        before, ended = after, ended + dones.sum()
    assert ended >= 2


def test_real_frames_are_stacked_like_imagined_ones() -> None:
    episodes, observe = RealEpisodes(ENV_ID, [0]), StackedFrames()
    first = observe(episodes)
    assert (first == bands(episodes.frames())[:, None]).all()
    episodes.step(np.array([1]))
    second = observe(episodes)
    assert np.array_equal(second[:, :-1], first[:, 1:])
    assert np.array_equal(second[:, -1], bands(episodes.frames()))


def test_states_are_estimated_from_frames_and_actions(
    model: WorldModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where frames are read without error, the estimate is the true state."""
    episodes = RealEpisodes(ENV_ID, [5, 6])
    monkeypatch.setattr(
        model,
        "encode_frames",
        lambda frames: torch.from_numpy(episodes.states[:, model.system.visible]),
    )
    monkeypatch.setattr(model, "recognize", lambda frames, read: torch.ones(2, dtype=torch.bool))
    model.reading_std.fill_(1e-4)
    observe = EstimatedStates(model)
    first = observe(episodes)
    assert (np.abs(first[:, [1, 3]]) < 0.05).all()  # where episodes begin
    for _ in range(30):
        lean = episodes.states @ np.array([0.0, 0.0, 1.0, 0.5])
        episodes.step((lean > 0).astype(np.int64))
        estimate = observe(episodes)
    assert episodes.running.all()
    np.testing.assert_allclose(estimate, episodes.states, atol=2e-3)


def test_training_is_reproducible_and_keeps_the_best(checkpoint: str) -> None:
    recipe = replace(
        RECIPES["cartpole"]["state"],
        steps=256,
        num_envs=8,
        batch_size=64,
        eval_every=1,
        eval_episodes=4,
    )
    world = World(checkpoint=checkpoint)
    first, second = (train(recipe, world, seed=1, episodes=3) for _ in range(2))
    assert np.array_equal(first.imagined, second.imagined)
    assert first.steps == 256


def test_endings_are_counted_and_agree(make_tiny: Any) -> None:
    """With true parameters, and, as the README claims, with the shipped ones."""
    endings = real_endings(30, seed=0)
    real = [ending.name for ending in endings]
    assert set(real) <= set(ENDINGS)
    for model in (make_tiny(system="lunar_lander"), piwm_gym.load("PIWM-LunarLander-v0")):
        for lead, least in zip(LEADS, (90, 75), strict=True):
            rows = confusion(real, imagined_endings(model, endings, lead))
            assert rows[-1]["episodes"] == 30
            assert rows[-1]["agreement_percent"] >= least
    counted = confusion(["landed", "crashed", "crashed"], ["landed", "landed", "crashed"])
    assert [row["agreement_percent"] for row in counted[:2]] == [100, 50]


@pytest.mark.skipif(importlib.util.find_spec("gymnax") is not None, reason="needs to lack gymnax")
def test_a_python_without_gymnax_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gymnax is .*; expected a Python that can import gymnax"):
        next(gymnax_subjects(sys.executable, (2,)))
