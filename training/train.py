"""Train a world model: ``python -m training.train cartpole --variant extrinsic-discrete``.

Interrupted at any point, the same command goes on where it was and loses at most
``save_seconds``. Under torchrun the processes share every batch. Settings of the preset can be
overridden field by field: ``--vision.epochs 10 --weights.pixel 0``.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from rich.console import Console

from piwm_gym.checkpoint import resolve_device, save
from piwm_gym.models import VARIANTS
from piwm_gym.systems import get_system, unknown
from training import distributed
from training.config import TrainConfig, effective, preset
from training.dataset import TrajectoryDataset, load_dataset
from training.metrics import TestSet, summary
from training.pipeline import TrainingData, key, train_variant
from training.run import Log, Run
from training.supervision import Bias, Supervision


@dataclass(frozen=True)
class Arguments:
    """What to train.

    Attributes:
        system: Short name of the system, such as cartpole.
        preset: debug, laptop, gpu or paper.
        variant: extrinsic-discrete, extrinsic-continuous, intrinsic-continuous,
            intrinsic-discrete, or all.
        noise_level: Width of the label intervals, as a fraction of each dimension's range.
        bias: How long a label's shift stays: per_step, per_trajectory or per_dataset.
        label_seed: Seed of the labels.
        data: Folder of the data set; data/SYSTEM-laptop if not given.
        runs: Folder for logs and resumable states.
        out: Folder for finished checkpoints; the run's own if not given.
        device: auto, cpu or cuda.
        quiet: No progress bars.
    """

    system: tyro.conf.Positional[str]
    preset: str = "laptop"
    variant: str = "extrinsic-discrete"
    noise_level: float = 0.05
    bias: Bias = "per_step"
    label_seed: int = 0
    data: Path | None = None
    runs: Path = Path("runs")
    out: Path | None = None
    device: str = "auto"
    quiet: bool = False


def train(arguments: Arguments, config: TrainConfig, dataset: TrajectoryDataset) -> Path:
    """Train one variant and write its checkpoint.

    Returns:
        The checkpoint.
    """
    device = resolve_device(arguments.device)
    supervision = Supervision(arguments.noise_level, arguments.bias, seed=arguments.label_seed)
    data = TrainingData.prepare(dataset, supervision, device)
    variant = config.autoencoder.variant
    settings = {"preset": arguments.preset, **effective(config)}
    name = f"{variant}-noise{arguments.noise_level:g}-{key(settings, data.description)}"
    folder = arguments.runs / arguments.system / name
    run = Run(folder, _tensorboard(folder), arguments.quiet)
    model, results = train_variant(config, data, run)
    path = (arguments.out or folder) / f"{arguments.system}-{variant}.safetensors"
    if distributed.rank() == 0:
        metadata = {
            "training": settings,
            "data": data.description,
            "stages": results,
            "measured": summary(model, TestSet(dataset, model.system, model.device)),
            "versions": {"torch": torch.__version__, "device": device.type},
        }
        save(model, path, metadata)
    distributed.barrier()
    return path


def _tensorboard(folder: Path) -> Log:
    """Logger that writes to TensorBoard, from the first process only."""
    if distributed.rank() > 0:
        return lambda tag, value, step: None
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder / "tensorboard"))
    return writer.add_scalar


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see the module's docstring."""
    console = Console(stderr=True)
    try:
        args, rest = tyro.cli(Arguments, args=arguments, return_unknown_args=True)
        chosen = VARIANTS if args.variant == "all" else (args.variant,)
        if args.variant not in (*VARIANTS, "all"):
            raise ValueError(unknown("variant", args.variant, (*VARIANTS, "all")))
        get_system(args.system)  # an unknown one is an error before anything else
        configs = [
            tyro.cli(TrainConfig, default=preset(args.preset, v, args.system), args=rest)
            for v in chosen
        ]
        distributed.initialize()
        dataset = load_dataset(args.data or Path("data") / f"{args.system}-laptop")
        for config in configs:
            path = train(args, config, dataset)
            console.print(f"{path}", markup=False)
    except (ValueError, FileNotFoundError) as error:
        console.print(str(error), markup=False)
        return 2
    finally:
        distributed.finalize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
