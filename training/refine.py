"""Train a finished checkpoint further: E_p on smoother labels, the direct decoder, drawn views.

    python -m training.refine cartpole-extrinsic-discrete.safetensors

The last stages of :func:`training.pipeline.train_variant` for a checkpoint that was trained
without them, on the same kind of data. The rest of the checkpoint stays as it is, the decoder
through the latent included unless it is given epochs; what the checkpoint claims is measured again.
"""

import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
import tyro
from rich.console import Console

from piwm_gym.checkpoint import CheckpointError, save
from piwm_gym.checks import writable_folder
from piwm_gym.manifest import sha256
from piwm_gym.models import Extrinsic
from piwm_gym.models.direct import DirectDecoder
from piwm_gym.world_model import WorldModel
from training.checks import check_settings, load_trained
from training.config import TrainConfig, preset
from training.dataset import TrajectoryDataset, load_dataset
from training.metrics import TestSet, summary
from training.pipeline import polish, round_weights, starting_direct
from training.reading import cache_latents, encode_all, train_glimpse
from training.run import Run, key
from training.stages import LatentSource
from training.supervision import Supervision
from training.training_data import TrainingData, check_place
from training.views import check_camera


def extended(
    model: WorldModel, config: TrainConfig, direct: DirectDecoder | None = None
) -> WorldModel:
    """A copy of a model with the parts that are to be trained as new ones.

    Args:
        model: Model to copy.
        config: Which stages have epochs, the sizes of new parts, and how readings are matched.
        direct: Direct decoder that a new one begins as.
    """
    old = model.config.autoencoder
    looks = isinstance(model.autoencoder, Extrinsic) and config.refinement.epochs
    glimpse = config.autoencoder.glimpse if looks else old.glimpse
    redraws = config.direct.epochs or direct is not None
    sizes = config.autoencoder.direct if redraws else old.direct
    matching = config.autoencoder.matching if sizes.patch is not None else old.matching
    asset = model.asset if model.system.asset is not None else None
    parts = replace(old, glimpse=glimpse, direct=sizes, matching=matching)
    new = WorldModel(replace(model.config, autoencoder=parts), asset)
    anew = ["autoencoder.glimpse."] if config.refinement.epochs else []
    anew += ["autoencoder.direct."] if redraws else []
    kept = {n: t for n, t in model.state_dict().items() if not n.startswith(tuple(anew))}
    new.load_state_dict(kept, strict=False)
    if direct is not None:
        assert new.autoencoder.direct is not None
        new.autoencoder.direct.load_state_dict(direct.state_dict())
    new.metadata = model.metadata
    return new.requires_grad_(False).eval()


def refine(
    model: WorldModel,
    config: TrainConfig,
    data: TrainingData,
    run: Run,
    direct: DirectDecoder | None = None,
) -> WorldModel:
    """The model after those of its last stages that have epochs.

    What its metadata claim of it is not measured anew here.

    Args:
        model: Model to copy and train.
        config: Its stages; those without epochs are left out.
        data: What it is trained on.
        run: Where it is logged and resumed from.
        direct: What the direct decoder is like at first, instead of random.
    """
    torch.manual_seed(config.direct.seed)
    stages = dict(model.metadata["stages"])
    training = dict(model.metadata["training"])
    new = extended(model, config, direct)
    autoencoder, latents = new.autoencoder, None
    readings = encode_all(model.autoencoder, data.frames)
    learns = config.refinement.epochs or config.views.epochs or config.decoder.epochs
    if isinstance(autoencoder, Extrinsic) and learns:
        source = LatentSource(autoencoder.bottleneck)
        run.folder.mkdir(parents=True, exist_ok=True)
        latents = cache_latents(autoencoder, source, data.frames, run.folder / "latents.npy")
        if autoencoder.glimpse is not None and config.refinement.epochs:
            stages["glimpse"] = train_glimpse(
                autoencoder,
                data,
                run,
                latents,
                data.guess(readings, new.params),
                config.glimpse,
                "glimpse",
            )
            training["glimpse"] = asdict(config.glimpse)
            readings = encode_all(autoencoder, data.frames)
    polished = polish(new, config, data, run, latents, readings)
    stages |= polished
    training |= {name: asdict(getattr(config, name)) for name in polished}
    training["autoencoder"] = asdict(new.config.autoencoder)
    round_weights(new)
    stages["refined_on"] = data.description
    new.metadata = {**model.metadata, "training": training, "stages": stages}
    return new


def main(
    checkpoint: tyro.conf.Positional[Path],
    data: Path | None = None,
    runs: Path = Path("runs"),
    out: Path | None = None,
    preset_name: str = "laptop",
    refinement: int | None = None,
    direct: int | None = None,
    views: int | None = None,
    decoder: int = 0,
    direct_from: Path | None = None,
) -> None:
    """Refine a checkpoint.

    Args:
        checkpoint: File that ``training.train`` wrote.
        data: Folder of data from the same seed; data/SYSTEM-laptop if not given.
        runs: Folder for the resumable state.
        out: File to write; the checkpoint itself if not given.
        preset_name: Preset whose settings of the stages to use.
        refinement: Epochs of E_p, other than the preset's; 0 keeps what is there.
        direct: Epochs of the direct decoder, likewise.
        views: Epochs of E_p on drawn views, likewise.
        decoder: Epochs of D_p, from where it is.
        direct_from: Checkpoint of the same system whose direct decoder a new one begins as.
    """
    try:
        model = load_trained(checkpoint)
        name, variant = model.system.name, model.config.autoencoder.variant
        dataset = load_dataset(data or Path("data") / f"{name}-laptop")
        config = preset(preset_name, variant, name)
        given = {"refinement": refinement, "direct": direct, "views": views, "decoder": decoder}
        for stage, epochs in given.items():
            if epochs is not None:
                config = replace(config, **{stage: replace(getattr(config, stage), epochs=epochs)})
        check_settings(config)
        if config.views.epochs:
            check_camera(model.system)
        begin = starting_direct(direct_from, name, config.autoencoder.direct)
        prepared = _prepared(model, dataset)
        writable_folder("runs", runs)
        writable_folder("out", (out or checkpoint).parent)
        origin = {} if direct_from is None else {"direct_from": sha256(direct_from)}
        settled = key(asdict(config), prepared.description, model.metadata["training"], origin)
        run = Run(runs / name / f"refined-{variant}-{settled}")
        model = refine(model, config, prepared, run, begin)
    except (ValueError, FileNotFoundError, FloatingPointError, CheckpointError) as error:
        Console(stderr=True).print(str(error), markup=False)
        sys.exit(2)
    if config.direct.epochs:  # what an earlier direct decoder began as is history
        model.metadata["training"].pop("direct_from", None)
    model.metadata["training"] |= origin
    measured = summary(model, TestSet(dataset, model.system, torch.device("cpu")))
    save(model, out or checkpoint, {**model.metadata, "measured": measured})


def _prepared(model: WorldModel, dataset: TrajectoryDataset) -> TrainingData:
    """The data with labels as weak as the model's were.

    Raises:
        ValueError: The data come from another course, or from other seeds: what was held out could
            have been trained on.
    """
    check_place(model, dataset.manifest)
    trained = model.metadata["data"]
    supervision = Supervision(**trained["supervision"])
    data = TrainingData.prepare(dataset, supervision, torch.device("cpu"))
    for name, value in trained.items():
        if name != "sha256" and data.description.get(name) != value:
            raise ValueError(
                f"data: {name} is {data.description.get(name)!r}; expected {value!r}, with which "
                "the checkpoint was trained"
            )
    return data


if __name__ == "__main__":
    tyro.cli(main)


__all__ = ["extended", "refine"]
