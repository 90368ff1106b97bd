"""Files of a data set: shards, their marks and the coverage table; written whole or not at all."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from training.dataset import file_sha256

QUANTILES = (0.0, 0.001, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999, 1.0)


def shard_path(folder: Path, shard: int) -> Path:
    """Where a shard lies."""
    return folder / f"shard-{shard:05d}.npz"


def write_shard(path: Path, arrays: dict[str, np.ndarray], identity: dict[str, Any]) -> str:
    """Write a shard, then the mark that it is finished.

    Args:
        path: Where to.
        arrays: Contents, as listed in ``training/collect.py``.
        identity: What made it; goes into the mark, with the sha256.

    Returns:
        The sha256 of the shard.
    """
    replace_file(path, lambda file: np.savez_compressed(file, allow_pickle=False, **arrays))
    sha256 = file_sha256(path)
    write_json(path.with_suffix(".json"), {**identity, "sha256": sha256})
    return sha256


def coverage(states: np.ndarray, names: list[str]) -> dict[str, Any]:
    """Quantiles of every state dimension.

    Args:
        states: (..., D), SI units.
        names: Names of the dimensions.
    """
    table = np.quantile(states.reshape(-1, states.shape[-1]), QUANTILES, axis=0)
    return {
        "quantiles": list(QUANTILES),
        **{name: [round(float(v), 4) for v in table[:, d]] for d, name in enumerate(names)},
    }


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that it is either whole or not there."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write indented JSON."""
    replace_file(path, lambda file: file.write((json.dumps(content, indent=1) + "\n").encode()))


__all__ = ["QUANTILES", "coverage", "replace_file", "shard_path", "write_json", "write_shard"]
