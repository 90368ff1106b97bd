"""Train a world model: ``python -m training.train cartpole --variant extrinsic-continuous``.

Interrupted at any point, the same command goes on where it was and loses at most
``save_seconds``. Under torchrun the processes share every batch. Settings of the preset can be
overridden field by field: ``--vision.epochs 10 --weights.pixel 0``. Many runs, on one machine or
a cluster: ``training/reproduce.py``.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.console import Console

from piwm_gym.checkpoint import CheckpointError, load_checkpoint, resolve_device, save
from piwm_gym.checks import writable_folder
from piwm_gym.locate import file_name
from piwm_gym.manifest import sha256
from piwm_gym.models import VARIANTS
from piwm_gym.registration import DEFAULT_VARIANT
from piwm_gym.systems import get_system, unknown
from training import distributed
from training.checks import check_settings
from training.config import TrainConfig, effective, preset
from training.dataset import TrajectoryDataset, check_fold, describe, load_dataset
from training.dynamics import HORIZONS
from training.flight import CONTEXT
from training.metrics import HORIZON, WINDOWS, TestSet, summary
from training.pipeline import starting_direct, train_variant
from training.run import Log, Run, key
from training.supervision import Bias, Supervision
from training.training_data import TrainingData, check_system


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
        fold: Fold of cross-validation, 0 to 4; the plain split if not given.
        data: Folder of the data set; data/SYSTEM-laptop if not given.
        runs: Folder for logs and resumable states.
        direct_from: Checkpoint of the same system whose direct decoder this one's begins as: the
            same states look the same whatever variant reads them, and a few epochs are enough.
        out: Folder for finished checkpoints; the run's own if not given.
        device: auto, cpu or cuda.
        quiet: No progress bars.
    """

    system: tyro.conf.Positional[str]
    preset: str = "laptop"
    variant: str = DEFAULT_VARIANT
    noise_level: float = 0.05
    bias: Bias = "per_step"
    label_seed: int = 0
    fold: int | None = None
    data: Path | None = None
    runs: Path = Path("runs")
    direct_from: Path | None = None
    out: Path | None = None
    device: str = "auto"
    quiet: bool = False

    @property
    def supervision(self) -> Supervision:
        """How weak the labels are."""
        return Supervision(self.noise_level, self.bias, seed=self.label_seed)

    @property
    def data_folder(self) -> Path:
        """Folder of the data set."""
        return self.data or Path("data") / f"{self.system}-laptop"

    def settings(self, config: TrainConfig) -> dict[str, Any]:
        """What training depends on besides the data; goes into keys and the checkpoint."""
        given = {} if self.direct_from is None else {"direct_from": sha256(self.direct_from)}
        return {"preset": self.preset, **effective(config), **given}

    def folder(self, config: TrainConfig, data: dict[str, Any]) -> Path:
        """The run's own folder. A fold has its own stage 1, so its runs are apart from others."""
        name = f"{config.autoencoder.variant}-noise{self.noise_level:g}"
        place = self.runs / self.system / ("" if self.fold is None else f"fold-{self.fold}")
        return place / f"{name}-{key(self.settings(config), data)}"

    def checkpoint(self, config: TrainConfig, data: dict[str, Any]) -> Path:
        """Where the checkpoint goes."""
        name = file_name(self.system, config.autoencoder.variant)
        return (self.out or self.folder(config, data)) / name


def is_finished(arguments: Arguments, config: TrainConfig, manifest: dict[str, Any]) -> bool:
    """Whether the checkpoint is there, undamaged, with these settings and of these data.

    Args:
        arguments: What to train, of one variant.
        config: Its settings.
        manifest: That of the data set.
    """
    data = {**describe(manifest, arguments.fold), "supervision": asdict(arguments.supervision)}
    try:
        found = load_checkpoint(arguments.checkpoint(config, data), "cpu").metadata
    except CheckpointError:
        return False
    return key(found.get("training"), found.get("data")) == key(arguments.settings(config), data)


def check_steps(dataset: TrajectoryDataset) -> None:
    """Raise ValueError if trajectories are too short to learn the dynamics and to measure them."""
    found = dataset.actions.shape[1]
    learned = CONTEXT - 1 + HORIZONS[-1]
    measured = max(WINDOWS) - 1 + HORIZON
    if found < max(learned, measured):
        raise ValueError(
            f"data: steps is {found} in each trajectory; expected at least "
            f"{max(learned, measured)}: {learned} to learn the dynamics, {measured} to measure "
            "them; collect or import trajectories of more steps, such as 50"
        )


def train(arguments: Arguments, config: TrainConfig, dataset: TrajectoryDataset) -> Path:
    """Train one variant and write its checkpoint.

    Returns:
        The checkpoint.

    Raises:
        ValueError: The data are of another system, the trajectories too short, a setting is out
            of bounds, or nothing can be written where checkpoint or logs belong.
    """
    check_settings(config)
    check_system(dataset.manifest, arguments.system)
    check_steps(dataset)
    device = resolve_device(arguments.device)
    data = TrainingData.prepare(dataset, arguments.supervision, device)
    direct = starting_direct(arguments.direct_from, arguments.system, config.autoencoder.direct)
    folder = writable_folder("runs", arguments.folder(config, data.description))
    path = arguments.checkpoint(config, data.description)
    writable_folder("out", path.parent)
    run = Run(folder, _tensorboard(folder), arguments.quiet)
    model, results = train_variant(config, data, run, direct)
    if distributed.rank() == 0:
        metadata = {
            "training": arguments.settings(config),
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


def parse(arguments: Sequence[str] | None = None) -> tuple[Arguments, list[TrainConfig]]:
    """Command line to what is to be trained, and the settings of each variant.

    Raises:
        ValueError: Unknown system, variant, fold or preset, or a setting out of bounds.
    """
    args, rest = tyro.cli(Arguments, args=arguments, return_unknown_args=True)
    chosen = VARIANTS if args.variant == "all" else (args.variant,)
    if args.variant not in (*VARIANTS, "all"):
        raise ValueError(unknown("variant", args.variant, (*VARIANTS, "all")))
    get_system(args.system)
    check_fold(args.fold)
    args.supervision  # noqa: B018
    configs = [
        tyro.cli(TrainConfig, default=preset(args.preset, v, args.system), args=rest)
        for v in chosen
    ]
    for config in configs:
        check_settings(config)
    return args, configs


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; see the module's docstring."""
    console = Console(stderr=True)
    try:
        args, configs = parse(arguments)
        distributed.initialize()
        dataset = load_dataset(args.data_folder, fold=args.fold)
        for config in configs:
            path = train(args, config, dataset)
            if distributed.rank() == 0:
                console.print(f"{path}", markup=False)
    except (ValueError, FileNotFoundError, FloatingPointError) as error:
        console.print(str(error), markup=False)
        return 2
    finally:
        distributed.finalize()
    return 0


if __name__ == "__main__":
    sys.exit(main())
