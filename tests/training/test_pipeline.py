"""Stages and pipeline on a few trajectories; the debug preset end to end, twice."""

import dataclasses
import math
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from piwm_gym.checkpoint import load_checkpoint
from piwm_gym.manifest import sha256
from piwm_gym.models import VARIANTS, Dynamics, Extrinsic, build_autoencoder
from piwm_gym.models.quantizer import VectorQuantizer
from piwm_gym.models.vision import to_float
from piwm_gym.registration import DEFAULT_VARIANT
from piwm_gym.systems import CartPole, LunarLander
from piwm_gym.world_model import WorldModel
from training.codebook import CodebookKeeper, kmeans, usage
from training.collect import Settings, collect, preset_settings
from training.config import LossWeights, effective, preset
from training.dataset import TrajectoryDataset, load_dataset
from training.dynamics import starting_values, train_dynamics
from training.fit import FitConfig, Stage
from training.foreground import foreground_of
from training.reading import cache_latents
from training.run import Run
from training.stages import (
    GlimpseStage,
    Interpretability,
    IntrinsicStage,
    LatentSource,
    PhysicalDecoderStage,
    PhysicalEncoderStage,
    VisionStage,
)
from training.supervision import Supervision
from training.train import main, parse
from training.training_data import TrainingData, steady

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

SYSTEM = CartPole()
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def data_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    collect(preset_settings("cartpole", "debug"), folder)
    return folder


@pytest.fixture(scope="module")
def lander_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lander-data")
    collect(preset_settings("lunar_lander", "debug"), folder)
    return folder


@pytest.fixture(scope="module")
def dataset(data_folder: Path) -> TrajectoryDataset:
    return load_dataset(data_folder)


FOLDERS = {"cartpole": "data_folder", "lunar_lander": "lander_folder"}


def prepare(dataset: TrajectoryDataset, noise_level: float = 0.05) -> TrainingData:
    return TrainingData.prepare(dataset, Supervision(noise_level), torch.device("cpu"))


def test_kmeans_finds_separated_clusters() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])
    points = centres.repeat(50, 1) + 0.1 * torch.randn(150, 2, generator=generator)
    found = kmeans(points, 3, generator)
    distance = torch.cdist(centres, found).amin(1)
    assert (distance < 0.2).all()


def test_dead_codes_move_to_badly_represented_latents() -> None:
    torch.manual_seed(0)
    quantizer = VectorQuantizer(3, (2, 2), latent_dim=3, num_codes=8)
    keeper = CodebookKeeper(quantizer)
    with torch.no_grad():
        quantizer.codebook[1:] = 1e6  # only the first is ever nearest
    tokens = torch.randn(16, 4, 3)
    for _ in range(120):
        latent = quantizer(tokens)
        assert latent.indices is not None
        keeper.reseed(quantizer, tokens, latent.indices)
    used = quantizer(tokens).indices
    assert used is not None
    assert len(used.unique()) > 4


def test_usage_of_a_codebook() -> None:
    assert usage(torch.tensor([3, 0, 3, 3])) == {"codes_used": 3, "perplexity": 3.0}
    assert usage(torch.tensor([0, 9])) == {"codes_used": 1, "perplexity": 1.0}
    uneven = usage(torch.tensor([98, 1, 1]))
    assert uneven["codes_used"] == 3
    assert 1 < uneven["perplexity"] < 1.2


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_step_of_every_stage_reaches_what_it_trains_and_nothing_else(
    variant: str, dataset: TrajectoryDataset
) -> None:
    data = prepare(dataset)
    config = preset("debug", variant, "cartpole")
    autoencoder = build_autoencoder(config.autoencoder, SYSTEM)
    frames = data.frames[:2].flatten(0, 1)
    labels = {k: v[:2].flatten(0, 1) for k, v in data.configuration_labels(autoencoder).items()}
    foreground = foreground_of(SYSTEM, to_float(data.sample()))
    interpretability = Interpretability(LossWeights(), SYSTEM)
    if variant.startswith("intrinsic"):
        stage = IntrinsicStage(
            autoencoder, data.sample(), foreground, interpretability, LossWeights()
        )
        loss, _ = stage({"frames": frames, **labels})
        loss.backward()
        own = (n for n in autoencoder.named_parameters() if not n[0].startswith("direct."))
        missing = [n for n, p in own if p.grad is None]
        assert missing == [] or missing == ["bottleneck.codebook"]  # it has not started
        return
    vision = VisionStage(autoencoder, data.sample(), foreground)
    loss, _ = vision({"frames": frames})
    loss.backward()
    assert all(p.grad is None for p in autoencoder.physical_encoder.parameters())
    autoencoder.zero_grad()
    autoencoder.requires_grad_(False)
    source = LatentSource(autoencoder.bottleneck)
    cached = source.cache(autoencoder.eval().latent(to_float(frames)))
    encoder = PhysicalEncoderStage(autoencoder, source, interpretability)
    decoder = PhysicalDecoderStage(autoencoder, source, foreground, LossWeights())
    batch = {"frames": frames, "latent": cached, "configuration": labels["proxy_mean"], **labels}
    for stage in (encoder, decoder):
        stage.requires_grad_(True)
        loss, _ = stage(batch)
        loss.backward()
        trained = {n for n, p in autoencoder.named_parameters() if p.grad is not None}
        prefix = "physical_encoder" if stage is encoder else "physical_decoder"
        assert trained == {n for n, _ in autoencoder.named_parameters() if n.startswith(prefix)}
        autoencoder.zero_grad()
        stage.requires_grad_(False)


STAGES = {
    "vision": ("vision_encoder", "bottleneck", "expand", "vision_decoder"),
    "encoder": ("physical_encoder",),
    "glimpse": ("glimpse",),
    "decoder": ("physical_decoder",),
}
"""Parts of extrinsic autoencoders that the stages train, one after the other."""


@pytest.mark.parametrize("variant", ["extrinsic-discrete", "extrinsic-continuous"])
def test_no_stage_looks_through_what_is_trained_after_it(
    variant: str, dataset: TrajectoryDataset
) -> None:
    """Else it would learn to make up for untrained networks."""
    data = prepare(dataset)
    torch.manual_seed(0)
    autoencoder = build_autoencoder(preset("debug", variant).autoencoder, SYSTEM).eval()
    assert isinstance(autoencoder, Extrinsic)
    assert autoencoder.glimpse is not None
    autoencoder.requires_grad_(False)
    frames = data.frames[:2].flatten(0, 1)
    labels = {k: v[:2].flatten(0, 1) for k, v in data.configuration_labels(autoencoder).items()}
    foreground = foreground_of(SYSTEM, to_float(data.sample()))
    source = LatentSource(autoencoder.bottleneck)
    latent = source.cache(autoencoder.latent(to_float(frames)))
    batch = {"frames": frames, "latent": latent, "configuration": labels["proxy_mean"], **labels}
    stages: dict[str, Stage] = {
        "vision": VisionStage(autoencoder, data.sample(), foreground),
        "encoder": PhysicalEncoderStage(
            autoencoder, source, Interpretability(LossWeights(), SYSTEM)
        ),
        "glimpse": GlimpseStage(autoencoder, source, SYSTEM),
        "decoder": PhysicalDecoderStage(autoencoder, source, foreground, LossWeights()),
    }
    before = {name: stage.eval()(batch)[0].item() for name, stage in stages.items()}
    for name in reversed(stages):
        for part in STAGES[name]:
            for parameter in getattr(autoencoder, part).parameters():
                parameter.add_(torch.randn_like(parameter))
        after = {earlier: stage(batch)[0].item() for earlier, stage in stages.items()}
        assert after[name] != before[name]
        for earlier in list(stages)[: list(stages).index(name)]:
            assert after[earlier] == before[earlier], (earlier, name)


def test_training_data_hold_no_true_state(dataset: TrajectoryDataset) -> None:
    data = prepare(dataset)
    truth = torch.from_numpy(dataset.states)
    assert not (data.proxy_mean == truth).any()
    held_out = set(dataset.split()["test"].tolist())
    assert held_out.isdisjoint(data.train.tolist())
    assert held_out.isdisjoint(data.validation.tolist())


def test_starting_values_are_at_least_half_off() -> None:
    dynamics = Dynamics(SYSTEM)
    truth = np.array(dynamics.parametrisation.from_params(SYSTEM.reference), dtype=float)
    starts = np.array([starting_values(dynamics, SYSTEM, i) for i in range(20)])
    assert (np.abs(starts / truth - 1) >= 0.5).all()
    assert (starts < truth).any()
    assert (starts > truth).any()
    assert (starts[:, 1] < 1).all()


def test_dynamics_are_recovered_from_exact_configurations(
    dataset: TrajectoryDataset, tmp_path: Path
) -> None:
    """Sixteen trajectories without noise suffice for force and length."""
    data = prepare(dataset, noise_level=0.0)
    dynamics = Dynamics(SYSTEM)
    train, validation = (
        {
            "configurations": data.proxy_mean[index][..., SYSTEM.visible],
            "actions": data.actions[index],
            "labels": data.proxy_mean[index],
        }
        for index in (data.train, data.validation)
    )
    config = dataclasses.replace(
        preset("laptop", "extrinsic-discrete", "cartpole").dynamics, epochs=80
    )
    results = train_dynamics(dynamics, SYSTEM, train, validation, config, 1, Run(tmp_path))
    learned = results["starts"][0]["learned"]
    assert learned["force_per_mass"] == pytest.approx(10 / 1.1, rel=0.02)
    assert learned["length"] == pytest.approx(0.5, rel=0.02)


def train_twice(system: str, data: Path, folder: Path, *variants: str) -> list[WorldModel]:
    """Models by the debug preset, trained twice: the second time nothing changes."""
    command = [system, "--preset", "debug", "--quiet"]
    command += ["--data", str(data), "--runs", str(folder / "runs"), "--out", str(folder / "out")]
    commands = [[*command, "--variant", variant] for variant in variants]
    assert [main(command) for command in commands] == [0] * len(variants)
    paths = sorted((folder / "out").iterdir())
    first = [path.read_bytes() for path in paths]
    assert [main(command) for command in commands] == [0] * len(variants)
    assert [path.read_bytes() for path in sorted((folder / "out").iterdir())] == first
    return [load_checkpoint(path) for path in paths]


@pytest.mark.usefixtures("hasty_dynamics")
def test_the_debug_preset_runs_end_to_end_and_again(data_folder: Path, tmp_path: Path) -> None:
    models = train_twice("cartpole", data_folder, tmp_path, "all")
    assert len(models) == len(VARIANTS)
    assert len(list((tmp_path / "runs" / "cartpole").glob("vision-*"))) == 2
    for model in models:
        assert model.metadata["data"]["supervision"]["noise_level"] == 0.05
        assert model.metadata["training"]["preset"] == "debug"
        assert math.isfinite(model.metadata["measured"]["single_frame_rmse"]["x"])
        variant = model.config.autoencoder.variant
        stages = model.metadata["stages"]
        codebook = stages["vision" if variant.startswith("extrinsic") else "intrinsic"]
        assert ("codes_used" in codebook) == variant.endswith("discrete")
        assert ("perplexity" in codebook) == variant.endswith("discrete")
        assert model.config.init == "shooting"


@pytest.mark.parametrize("damage", ["truncated", "empty", "of other data"])
def test_damaged_latents_are_named_with_what_to_do(
    damage: str, dataset: TrajectoryDataset, tmp_path: Path
) -> None:
    frames = torch.from_numpy(dataset.frames[:2, :3])
    autoencoder = build_autoencoder(preset("debug", "extrinsic-discrete").autoencoder, SYSTEM)
    assert isinstance(autoencoder, Extrinsic)
    path, source = tmp_path / "latents.npy", LatentSource(autoencoder.bottleneck)
    made = cache_latents(autoencoder, source, frames, path)
    assert torch.equal(cache_latents(autoencoder, source, frames, path), made)
    if damage == "of other data":
        frames = frames[:1]
    else:
        path.write_bytes(path.read_bytes()[: 200 if damage == "truncated" else 0])
    with pytest.raises(ValueError, match=r"latents\.npy is damaged .*; delete it"):
        cache_latents(autoencoder, source, frames, path)


@pytest.mark.usefixtures("hasty_dynamics")
@pytest.mark.parametrize("variant", [v for v in VARIANTS if v.endswith("discrete")])
def test_usage_of_a_codebook_is_told_in_every_epoch(
    variant: str, data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: dict[str, dict[int, float]] = {}

    def log(tag: str, value: float, step: int) -> None:
        told.setdefault(tag, {})[step] = value

    monkeypatch.setattr("training.train._tensorboard", lambda folder: log)
    words = ["cartpole", "--preset", "debug", "--variant", variant, "--quiet"]
    for other in ("refinement", "decoder", "direct"):
        words += [f"--{other}.epochs", "0"]
    assert main([*words, "--data", str(data_folder), "--runs", str(tmp_path)]) == 0
    stage = "vision" if variant.startswith("extrinsic") else "intrinsic"
    epochs = list(told[f"{stage}/validation/loss"])
    assert len(epochs) == 7
    for name in ("codes_used", "perplexity"):
        usages = told[f"{stage}/validation/{name}"]
        assert list(usages) == epochs[1:]  # in the first epoch there is no codebook yet
        assert all(1 <= value <= 32 for value in usages.values())


@pytest.mark.usefixtures("hasty_dynamics")
def test_the_papers_preset_estimates_states_of_two_frames(
    data_folder: Path, tmp_path: Path
) -> None:
    words = ["cartpole", "--preset", "paper", "--variant", "extrinsic-continuous", "--quiet"]
    for stage in ("vision", "encoder", "decoder", "dynamics"):
        words += [f"--{stage}.epochs", "1", f"--{stage}.samples-per-epoch", "64"]
    places = ["--data", str(data_folder), "--runs", str(tmp_path), "--out", str(tmp_path)]
    assert main([*words, *places, "--starts", "1"]) == 0
    model = load_checkpoint(tmp_path / "cartpole-extrinsic-continuous.safetensors")
    assert model.config.init == "fd"
    by_window = model.metadata["measured"]["forecast_rmse_30_steps_by_window"]
    assert by_window["2"] == by_window["10"] == by_window["20"]  # the last two frames of each


@pytest.mark.usefixtures("hasty_dynamics")
def test_it_does_so_with_scene_derived_dimensions_and_process_noise(
    lander_folder: Path, tmp_path: Path
) -> None:
    variants = "extrinsic-continuous", "intrinsic-discrete"
    for model in train_twice("lunar_lander", lander_folder, tmp_path, *variants):
        measured = model.metadata["measured"]
        assert math.isfinite(measured["single_frame_rmse"]["scene"])
        assert "crashed" not in measured["forecast_rmse_30_steps_by_window"]["10"]
        estimated = model.system.estimated
        derived = [i for i in range(len(model.state_low)) if i not in estimated]
        assert model.state_low[estimated].isfinite().all()
        assert (model.state_low[derived] == -math.inf).all()
        assert (model.state_high[derived] == math.inf).all()


def test_scenes_are_labelled_like_states(lander_folder: Path) -> None:
    dataset = load_dataset(lander_folder)
    data = prepare(dataset)
    system = LunarLander()
    dimensions = len(system.variables)
    assert data.state_labels.shape == dataset.states.shape
    error = data.proxy_mean[..., dimensions:] - torch.from_numpy(dataset.scenes)[:, None]
    ranges = torch.tensor([v.range for v in system.scene_variables])
    assert (error / ranges).std().item() == pytest.approx(0.2915 * 0.05, rel=0.05)
    assert (error[:, 1:] != error[:, :-1]).all()
    autoencoder = build_autoencoder(preset("debug", VARIANTS[0]).autoencoder, system)
    labels = data.configuration_labels(autoencoder)["proxy_mean"]
    torch.testing.assert_close(
        autoencoder.denormalize(labels)[..., 3:],
        data.proxy_mean[..., dimensions:].mean(1, keepdim=True).expand_as(labels[..., 3:]),
    )


def test_a_trajectory_has_one_scene() -> None:
    configurations = torch.randn(2, 5, 14)
    steadied = steady(configurations, LunarLander())
    assert torch.equal(steadied[..., :3], configurations[..., :3])
    assert torch.equal(steadied[:, 0, 3:], configurations[..., 3:].mean(1))
    assert torch.equal(steadied[:, 0, 3:], steadied[:, -1, 3:])
    assert torch.equal(steady(configurations[..., :2], SYSTEM), configurations[..., :2])


def test_settings_of_stages_that_a_variant_does_not_have_are_not_its_settings() -> None:
    def changed(variant: str, stage: str) -> bool:
        config = preset("debug", variant, "cartpole")
        other = dataclasses.replace(config, **{stage: FitConfig(epochs=99)})
        return effective(config) != effective(other)

    assert changed("extrinsic-discrete", "encoder")
    assert not changed("extrinsic-discrete", "intrinsic")
    assert changed("intrinsic-discrete", "intrinsic")
    assert not changed("intrinsic-discrete", "encoder")


@pytest.mark.usefixtures("hasty_dynamics")
def test_stage_one_is_shared_by_noise_levels(data_folder: Path, tmp_path: Path) -> None:
    for noise in ("0.05", "0.1"):
        command = ["cartpole", "--preset", "debug", "--quiet", "--noise-level", noise]
        command += ["--data", str(data_folder), "--runs", str(tmp_path)]
        assert main(command) == 0
    assert len(list((tmp_path / "cartpole").glob("vision-*"))) == 1
    assert len(list((tmp_path / "cartpole").glob("extrinsic-*"))) == 2


@pytest.mark.usefixtures("hasty_dynamics")
@pytest.mark.parametrize(
    ("system", "variant"),
    [
        ("cartpole", "extrinsic-discrete"),
        ("cartpole", "intrinsic-discrete"),
        ("lunar_lander", DEFAULT_VARIANT),
    ],
)
def test_all_stages_train_in_mixed_precision(
    system: str,
    variant: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU, where nobody solves equations in half precision."""
    half = partial(torch.autocast, "cpu", torch.bfloat16)
    monkeypatch.setattr("training.fit.mixed_precision", lambda device, config: half())
    data = request.getfixturevalue(FOLDERS[system])
    command = [system, "--preset", "debug", "--quiet", "--data", str(data)]
    command += ["--runs", str(tmp_path), "--out", str(tmp_path), "--variant", variant]
    assert main(command) == 0
    saved = load_checkpoint(tmp_path / f"{system}-{variant}.safetensors").state_dict()
    assert all(x.dtype != torch.bfloat16 for x in saved.values())


@pytest.mark.usefixtures("hasty_dynamics")
def test_a_direct_decoder_may_begin_as_that_of_another_variant(
    data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["cartpole", "--preset", "debug", "--quiet", "--data", str(data_folder)]
    command += ["--runs", str(tmp_path), "--out", str(tmp_path)]
    assert main(command) == 0
    given = tmp_path / f"cartpole-{DEFAULT_VARIANT}.safetensors"
    command += ["--variant", "intrinsic-continuous", "--direct-from", str(given)]
    assert main([*command, "--direct.learning-rate", "0"]) == 0
    first, second = (
        load_checkpoint(tmp_path / f"cartpole-{variant}.safetensors")
        for variant in (DEFAULT_VARIANT, "intrinsic-continuous")
    )
    assert second.metadata["training"]["direct_from"] == sha256(given)
    kept = second.autoencoder.direct.state_dict()
    for name, tensor in first.autoencoder.direct.state_dict().items():
        assert torch.equal(kept[name], tensor), name
    assert main([*command, "--autoencoder.direct.width", "8"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(
        r"direct_from: .*width=16.* of cartpole; expected .*width=8.* of cartpole", said
    )


@pytest.mark.usefixtures("hasty_dynamics")
def test_commands_name_damaged_states(
    data_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cartpole", "--preset", "debug", "--variant", "extrinsic-discrete", "--quiet"]
    words += ["--data", str(data_folder), "--runs", str(tmp_path), "--vision.epochs", "2"]
    for stage in ("encoder", "glimpse"):
        words += [f"--{stage}.epochs", "1"]
    for stage in ("refinement", "decoder", "direct"):
        words += [f"--{stage}.epochs", "0"]
    assert main(words) == 0
    for name in ("latents.npy", "vision.pt"):
        (path,) = tmp_path.glob(f"cartpole/vision-*/{name}")
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        assert main(words) == 2
        said = "".join(capsys.readouterr().err.split())
        assert f"{name}isdamaged" in said
        assert "deleteit" in said


@pytest.mark.usefixtures("hasty_dynamics")
def test_runs_of_a_fold_and_their_first_stage_are_apart_from_others(tmp_path: Path) -> None:
    words = ["cartpole", "--preset", "debug", "--runs", str(tmp_path)]
    folders = []
    for fold in ([], ["--fold", "0"], ["--fold", "1"]):
        arguments, (config,) = parse([*words, *fold])
        folders.append(arguments.folder(config, {}))
    shared = [folder.parent for folder in folders]  # stage 1 lies beside the runs
    home = tmp_path / "cartpole"
    assert shared == [home, home / "fold-0", home / "fold-1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--variant", "extrinsic"], "did you mean 'extrinsic-discrete'"),
        (["--fold", "5"], "did you mean 4?"),
        (["--preset", "labtop"], "did you mean 'laptop'"),
        (["--data", "nowhere"], "python -m training.collect"),
        (["--noise-level", "-1"], "noise_level is -1"),
        (["--direct-from", "nowhere"], "nowhere"),
    ],
)
def test_mistakes_are_explained(
    arguments: list[str],
    message: str,
    data_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["cartpole", "--data", str(data_folder), "--runs", str(tmp_path), *arguments]
    assert main(command) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("system", ["cartpole", "donkey_car"])
def test_short_trajectories_are_refused_before_training(
    system: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collect(Settings(system, 2, steps=20), tmp_path / "data")
    words = [system, "--preset", "debug", "--runs", str(tmp_path / "runs")]
    assert main([*words, "--data", str(tmp_path / "data")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "data: steps is 20 in each trajectory; expected at least 49" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("hasty_dynamics")
def test_the_shortest_trajectories_can_be_trained_on(tmp_path: Path) -> None:
    collect(Settings("cartpole", 24, steps=49, shard_size=24), tmp_path / "data")
    words = ["cartpole", "--preset", "debug", "--runs", str(tmp_path), "--quiet"]
    assert main([*words, "--data", str(tmp_path / "data")]) == 0


DISTRIBUTED = """
import sys, torch
from pathlib import Path
sys.path.insert(0, "tests/training")
from test_fit import Line, line_data
from training import distributed
from training.fit import FitConfig, Stage, fit

torch.set_num_threads(1)
distributed.initialize()


class Drawn(Line):
    def validation(self, batch):  # with draws of each process's own, as those of latents
        torch.manual_seed(self.steps + 99 * distributed.rank())
        return torch.rand(()), {}


config = FitConfig(epochs=30, batch_size=8, learning_rate=0.05, clip_norm=0, patience=2)
stage = Drawn()
if distributed.rank() == 1:
    torch.nn.init.constant_(stage.layer.weight, 9.0)  # the first process's weights win
summary = fit(stage, line_data(), line_data(16), config, Path(sys.argv[1]), "line")
values = [float(p.detach()) for p in stage.parameters()]
values = [distributed.world_size(), summary["epochs"], *values]
Path(sys.argv[1], f"rank-{distributed.rank()}").write_text(repr(values))
distributed.finalize()
# Threads of the process group that outlive it may abort the process as it exits.
threads = [task.read_text() for task in Path("/proc/self/task").glob("*/comm")]  # none but on Linux
assert not [name for name in threads if "gloo" in name], threads
"""


def run_in_two_processes(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         str(script), *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )  # fmt: skip


def test_two_processes_train_the_same_weights(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(DISTRIBUTED)
    run = run_in_two_processes(script, str(tmp_path))
    assert run.returncode == 0, run.stderr
    first, second = ((tmp_path / f"rank-{rank}").read_text() for rank in (0, 1))
    assert first.startswith("[2, ")
    assert first == second
    assert not first.startswith("[2, 30,")  # all stopped early, and at once


OVERHEARD = """
import os, runpy, sys, torch
from pathlib import Path
from training import distributed, pipeline

folder, train_variant = Path(sys.argv.pop(1)), pipeline.train_variant


def overheard(*arguments):
    model, results = train_variant(*arguments)
    assert distributed.world_size() == 2
    torch.save(model.state_dict(), folder / f"rank-{distributed.rank()}.pt")
    return model, results


pipeline.train_variant = overheard
runpy.run_module("training.train", run_name="__main__", alter_sys=True)
"""
"""The command, ``-m training.train``; what each process made lies beside its checkpoint."""


def test_two_processes_train_one_model(data_folder: Path, tmp_path: Path) -> None:
    """All stages of a whole training, which ends in the same model in both and one checkpoint."""
    script = tmp_path / "job.py"
    script.write_text(OVERHEARD)
    words = ["cartpole", "--preset", "debug", "--variant", "extrinsic-discrete", "--quiet"]
    for stage in ("encoder", "glimpse", "refinement", "decoder", "direct"):
        words += [f"--{stage}.epochs", "1"]
    for name, folder in {"data": data_folder, "runs": tmp_path, "out": tmp_path / "out"}.items():
        words += [f"--{name}", str(folder)]
    run = run_in_two_processes(script, str(tmp_path), *words)
    assert run.returncode == 0, run.stderr
    first, second = (torch.load(tmp_path / f"rank-{rank}.pt") for rank in (0, 1))
    (path,) = (tmp_path / "out").iterdir()
    model = load_checkpoint(path)
    assert model.metadata["stages"]["vision"]["epochs"] == 7
    saved = model.state_dict()
    assert saved.keys() == first.keys() == second.keys()
    for name, tensor in saved.items():
        assert torch.equal(first[name], second[name]), name
        assert torch.equal(first[name], tensor), name
