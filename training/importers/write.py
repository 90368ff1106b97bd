"""Write imported trajectories as a data set that ``training/dataset.py`` loads."""

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import track

from piwm_gym.courses import Course
from piwm_gym.preprocess import preprocess_frame
from piwm_gym.systems import System
from training.collect import Settings
from training.dataset import MANIFEST, file_sha256
from training.importers.records import Report
from training.importers.sampling import Sampled
from training.shards import coverage, shard_path, write_json, write_shard

CONTROLLER = "imported"


def finished(folder: Path, identity: dict[str, Any]) -> bool:
    """Whether the folder holds this very import already, undamaged.

    Args:
        folder: Where it would lie.
        identity: Source and options, as the manifest records them.

    Raises:
        ValueError: It holds another data set.
    """
    for path in (folder / MANIFEST, *sorted(folder.glob("shard-*.json"))):
        found = _read(path)
        if found is not None and found.get("import") != identity:
            raise ValueError(
                f"{folder} holds another data set, or this source imported with other options; "
                "choose another --out, or delete the folder"
            )
    manifest = _read(folder / MANIFEST)
    return manifest is not None and all(
        (folder / shard["file"]).exists() and file_sha256(folder / shard["file"]) == shard["sha256"]
        for shard in manifest["shards"]
    )


def write_dataset(
    trajectories: list[Sampled],
    report: Report,
    system: System,
    course: Course,
    folder: Path,
    identity: dict[str, Any],
    command: str,
    shard_size: int = 200,
) -> Path:
    """Write shards, then the manifest that makes a data set of them.

    Args:
        trajectories: At least one.
        report: What was dropped; goes into the manifest.
        system: Whose frames and states they are.
        course: What was driven.
        folder: Where to; made if need be.
        identity: Source and options.
        command: What makes it again; ``{out}`` stands for the folder.
        shard_size: Trajectories in a shard.

    Returns:
        Path of the manifest.
    """
    steps = len(trajectories[0].states) - 1
    settings = Settings(system.name, len(trajectories), steps, shard_size, course=course)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    shards = write_shards(
        settings,
        lambda members: _arrays([trajectories[i] for i in members], system),
        folder,
        {"import": identity},
    )
    _clean(folder, {shard["file"] for shard in shards})
    states = np.stack([t.states for t in trajectories])
    known = np.isfinite(states).all((0, 1))
    names = np.array(system.state_names)
    content = {
        **settings.identity(),
        "dt": identity["dt"],
        "preset": "imported",
        "import": identity,
        "command": command,
        "report": report.as_dict(),
        "missing_states": names[~known].tolist(),
        "versions": {name: version(name) for name in ("numpy", "pillow")},
        "controllers": {CONTROLLER: len(trajectories)},
        "coverage": coverage(states[..., known], names[known].tolist()),
        "shards": shards,
    }
    write_json(folder / MANIFEST, content)
    return folder / MANIFEST


def write_shards(
    settings: Settings,
    arrays_of: Callable[[range], dict[str, np.ndarray]],
    folder: Path,
    identity: dict[str, Any],
    *,
    quiet: bool = True,
) -> list[dict[str, Any]]:
    """Write all shards.

    Args:
        settings: How many trajectories there are, and in a shard.
        arrays_of: Contents of a shard, by the indices of its trajectories.
        folder: Where to; it must exist.
        identity: What made them; goes into the marks.
        quiet: Show no progress bar.

    Returns:
        Their entries in the manifest.
    """
    shards = []
    console = Console(stderr=True, quiet=quiet)
    for shard in track(range(settings.num_shards), description="shards", console=console):
        members = settings.members(shard)
        path = shard_path(folder, shard)
        sha256 = write_shard(path, arrays_of(members), {**identity, "shard": shard})
        shards.append(
            {
                "file": path.name,
                "sha256": sha256,
                "first": members.start,
                "trajectories": len(members),
            }
        )
    return shards


def _arrays(trajectories: list[Sampled], system: System) -> dict[str, np.ndarray]:
    frames = [[_frame(path, system) for path in t.records.images] for t in trajectories]
    return {
        "frames": np.array(frames),
        "actions": np.stack([_actions(t, system) for t in trajectories]),
        "states": np.stack([t.states for t in trajectories]),
        "scenes": np.zeros((len(trajectories), len(system.scene_variables))),
        "controllers": np.array([CONTROLLER] * len(trajectories)),
    }


def _frame(path: Path, system: System) -> np.ndarray:
    with Image.open(path) as image:
        return preprocess_frame(np.array(image.convert("RGB")), system.frame)


def _actions(trajectory: Sampled, system: System) -> np.ndarray:
    """(T, 2) float32; the command that was in force on the last frame leads out of the data."""
    space: Any = system.action_space
    return np.clip(trajectory.records.actions[:-1], space.low, space.high).astype(np.float32)


def _clean(folder: Path, keep: set[str]) -> None:
    """Remove what an earlier, interrupted run left."""
    for leftover in folder.glob("*.tmp"):
        leftover.unlink()
    for path in folder.glob("shard-*.npz"):
        if path.name not in keep:
            path.unlink()
            path.with_suffix(".json").unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return content if isinstance(content, dict) else None


__all__ = ["finished", "write_dataset", "write_shards"]
