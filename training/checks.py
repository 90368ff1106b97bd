"""What nothing can be done with, settings and checkpoints, refused before anything runs."""

import math
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from piwm_gym.checkpoint import load_checkpoint
from piwm_gym.world_model import WorldModel
from training.config import TrainConfig

POSITIVE = {
    "batch_size",
    "channels",
    "epochs",
    "feedforward",
    "kernels",
    "latent_dim",
    "layers",
    "merge",
    "num_codes",
    "patch",
    "patience",
    "starts",
    "strides",
    "token_dim",
    "width",
}
"""Numbers that are at least 1; all others are at least 0."""
OPTIONAL = ("refinement", "decoder", "direct", "views")
"""Stages that are left out by giving them no epochs."""
RECORD = ("training", "data", "stages")
"""What metadata tell of a model that was trained here."""
MOST = {"visual_dropout": 1, "dropout": 1, "num_codes": 2**15 - 1, "seed": 2**32 - 1}
"""Codes are cached as 16-bit numbers; seeds of batches are multiples of a stage's."""


def load_trained(path: Path) -> WorldModel:
    """Model of a checkpoint that tells how it was trained.

    Raises:
        CheckpointError: The file cannot be used.
        ValueError: Somebody saved the model without that.
    """
    model = load_checkpoint(path, "cpu")
    missing = [name for name in RECORD if name not in model.metadata]
    if missing:
        raise ValueError(
            f"{path} does not tell {', '.join(missing)} in its metadata; expected a checkpoint "
            "that training.train or training.refine wrote"
        )
    return model


def check_settings(config: TrainConfig) -> None:
    """Raise ValueError for numbers out of bounds, by the path of their field.

    Whether sizes of networks fit each other and the frames, the networks tell as they are built,
    which is before anything is trained.
    """
    _check(config, "")
    vision = config.autoencoder.vision
    for name in ("kernels", "strides", "paddings"):
        found, expected = len(getattr(vision, name)), len(vision.channels)
        if found != expected:
            raise ValueError(
                f"autoencoder.vision.{name} has {found} numbers; expected {expected}, one for each "
                "of channels"
            )


def _check(tree: Any, path: str) -> None:
    for field in fields(tree):
        value, name = getattr(tree, field.name), f"{path}{field.name}"
        if is_dataclass(value):
            _check(value, f"{name}.")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not isinstance(number, bool):
                _check_number(name, number)


def _check_number(path: str, number: float) -> None:
    stage, _, name = path.rpartition(".")
    least = int(name in POSITIVE and not (name == "epochs" and stage in OPTIONAL))
    most = MOST.get(name, math.inf)
    if not (math.isfinite(number) and least <= number <= most):
        bounds = f"at least {least}" if math.isinf(most) else f"{least} to {most}"
        raise ValueError(f"{path} is {number}; expected {bounds}")


__all__ = ["check_settings", "load_trained"]
