"""Load a collected data set.

Time alignment, the same everywhere in this project::

    time        0            1            2                   T-1           T
    frames      frame[0]     frame[1]     frame[2]    ...     frame[T-1]    frame[T]
    states      state[0]     state[1]     state[2]    ...     state[T-1]    state[T]
    labels      label[0]     label[1]     label[2]    ...     label[T-1]    label[T]
    actions         action[0]    action[1]     ...    action[T-2]   action[T-1]

``action[t]`` leads from ``frame[t]`` to ``frame[t+1]``: T+1 frames, states and labels, T actions.
One scene, what is visible and does not change, belongs to all times of a trajectory. States and
scenes are the truth: they make the weak labels (``training/supervision.py``) and the reports, and
nothing is trained or selected on them.

Imported data (``training/import_donkey.py``) may lack parts of the truth. The manifest names these
dimensions under ``missing_states`` and their values are NaN; a data set that lacks any loads only
where the caller says that it needs frames and actions alone.
"""

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from piwm_gym.courses import DEFAULT_COURSE
from piwm_gym.systems import get_system, unknown

SCHEMA = "piwm-trajectories-1"
MANIFEST = "manifest.json"
REQUIRED = ("system", "real_id", "trajectories", "steps", "seed", "state_names", "frame", "shards")
"""What every manifest says; more of it depends on where the data come from."""
OF_SHARD = ("file", "sha256", "first", "trajectories")
SPLITS = ("train", "validation", "test")
FOLDS = 5
"""Of cross-validation: fold i tests on the i-th fifth, validates on the next, trains on three."""


@dataclass(frozen=True)
class TrajectoryDataset:
    """Trajectories of equal length, in memory.

    Attributes:
        frames: uint8 (N, T+1, H, W, 3).
        actions: (N, T) int64, or (N, T, A) float32 for continuous actions.
        states: float32 (N, T+1, D), SI units; for labels and evaluation only. NaN in the
            dimensions that the manifest lists under ``missing_states``.
        scenes: float32 (N, S), static visible variables, SI units, S = 0 where the system has
            none; for labels and evaluation only.
        manifest: How the data were made: system, seeds, frame geometry, coverage.
        fold: Fold of cross-validation, from 0; None is the plain split.

    Raises:
        ValueError: There is no such fold.
    """

    frames: np.ndarray
    actions: np.ndarray
    states: np.ndarray
    scenes: np.ndarray
    manifest: dict[str, Any]
    fold: int | None = None

    def __post_init__(self) -> None:
        check_fold(self.fold)

    def __len__(self) -> int:
        """Number of trajectories."""
        return len(self.frames)

    def split(
        self, seed: int = 0, fractions: tuple[float, float, float] = (0.8, 0.1, 0.1)
    ) -> dict[str, np.ndarray]:
        """Split **by trajectory**: neighbouring frames never land on two sides.

        Args:
            seed: Seed of the shuffle.
            fractions: Shares of train, validation and test; those of a fold are always the same.

        Returns:
            Sorted int64 indices of the trajectories under "train", "validation" and "test":
            disjoint, together all of them.

        Raises:
            ValueError: The fractions are not three non-negative numbers that add up to 1, or
                there are fewer trajectories than folds.
        """
        if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-9:
            raise ValueError(
                f"fractions is {fractions}; expected three non-negative shares of "
                f"{', '.join(SPLITS)} that add up to 1, such as (0.8, 0.1, 0.1)"
            )
        order = np.random.default_rng(seed).permutation(len(self))
        if self.fold is None:
            ends = np.round(np.cumsum(fractions[:2]) * len(self)).astype(int)
            parts = np.split(order, ends)
        else:
            parts = _parts_of_fold(order, self.fold)
        return {name: np.sort(part) for name, part in zip(SPLITS, parts, strict=True)}

    @property
    def description(self) -> dict[str, Any]:
        """:func:`describe`, with the number of trajectories that were loaded."""
        return {**describe(self.manifest, self.fold), "trajectories": len(self)}


def check_fold(fold: int | None) -> None:
    """Raise ValueError if there is no such fold."""
    if fold is not None and fold not in range(FOLDS):
        raise ValueError(
            f"fold is {fold}; expected 0 to {FOLDS - 1}, or none for the plain split; did you mean "
            f"{min(max(fold, 0), FOLDS - 1)}?"
        )


def _parts_of_fold(order: np.ndarray, fold: int) -> list[np.ndarray]:
    """Train, validation and test trajectories of a fold, of all in shuffled order."""
    if len(order) < FOLDS:
        raise ValueError(f"{len(order)} trajectories; {FOLDS} folds need at least {FOLDS}")
    parts = np.array_split(order, FOLDS)
    test, validation, *train = (parts[(fold + i) % FOLDS] for i in range(FOLDS))
    return [np.concatenate(train), validation, test]


def describe(manifest: dict[str, Any], fold: int | None = None) -> dict[str, Any]:
    """What training sees of a data set, JSON-able: goes into keys and checkpoints."""
    shards = json.dumps([shard["sha256"] for shard in manifest["shards"]])
    return {
        "trajectories": manifest["trajectories"],
        "steps": manifest["steps"],
        "collection_seed": manifest["seed"],
        "sha256": hashlib.sha256(shards.encode()).hexdigest(),
        "real_id": manifest["real_id"],
        "split_seed": 0,
        **_course(manifest),
        **({} if fold is None else {"fold": fold}),
    }


def _course(manifest: dict[str, Any]) -> dict[str, str]:
    """The course, if it is not the default one: the same frames on another path teach otherwise."""
    asset = manifest.get("asset")
    default = get_system(manifest["system"]).asset
    if asset is None or (default is not None and asset == default.tolist()):
        return {}
    return {"course": manifest.get("course", ""), "path_sha256": asset_sha256(asset)}


def asset_sha256(asset: list[list[float]]) -> str:
    """Hexadecimal sha256 of a system's asset, as the manifest holds it."""
    return hashlib.sha256(json.dumps(asset).encode()).hexdigest()


def load_dataset(
    path: str | os.PathLike[str],
    *,
    limit: int | None = None,
    threads: int = 4,
    allow_missing_states: bool = False,
    fold: int | None = None,
) -> TrajectoryDataset:
    """Load a data set into memory, checking every shard's bytes.

    Args:
        path: Folder that ``python -m training.collect`` or an importer made.
        limit: Load only the first this many trajectories.
        threads: Shards unpacked at the same time.
        allow_missing_states: Load frames and actions of a data set that lacks states, too.
        fold: Fold of cross-validation that it splits by; None is the plain split.

    Raises:
        FileNotFoundError: No finished data set is there.
        ValueError: Another schema, a shard that is missing or has changed, states that are
            missing where they are needed, or no such fold.
    """
    check_fold(fold)
    folder = Path(path)
    manifest = read_manifest(folder)
    if (missing := manifest.get("missing_states")) and not allow_missing_states:
        raise ValueError(
            f"{folder} holds no {', '.join(missing)}: the source had no such telemetry, so there "
            "are no labels; pass allow_missing_states=True where frames and actions are enough, "
            "as for an autoencoder"
        )
    total = manifest["trajectories"] if limit is None else min(limit, manifest["trajectories"])
    if total < 1:
        raise ValueError(f"limit is {limit}; expected at least 1")
    shards = [shard for shard in manifest["shards"] if shard["first"] < total]

    first = read_shard(folder, shards[0], manifest)
    arrays = {
        name: np.empty((total, *first[name].shape[1:]), dtype)
        for name, dtype in (
            ("frames", np.dtype(np.uint8)),
            ("actions", first["actions"].dtype),
            ("states", np.dtype(np.float32)),
            ("scenes", np.dtype(np.float32)),
        )
    }

    def place(content: dict[str, np.ndarray], shard: dict[str, Any]) -> None:
        begin = shard["first"]
        end = min(begin + shard["trajectories"], total)
        for name, target in arrays.items():
            target[begin:end] = content[name][: end - begin]

    place(first, shards[0])
    del first
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda s: place(read_shard(folder, s, manifest), s), shards[1:]):
            pass
    return TrajectoryDataset(**arrays, manifest=manifest, fold=fold)


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _command(folder: Path, manifest: dict[str, Any] | None = None) -> str:
    """The command that completes or repairs a data set."""
    made = {"system": "SYSTEM", "preset": "PRESET", "seed": "SEED", **(manifest or {})}
    if "command" in made:  # imported, not collected
        return str(made["command"]).replace("{out}", str(folder))
    course = made.get("course", DEFAULT_COURSE)
    return (
        f"python -m training.collect {made['system']} --preset {made['preset']} "
        f"--seed {made['seed']} {'' if course == DEFAULT_COURSE else f'--course {course} '}"
        f"--out {folder}"
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    """Manifest of a finished data set.

    Raises:
        FileNotFoundError: No finished data set is there.
        ValueError: It is damaged, or of another schema.
    """
    path = folder / MANIFEST
    if not path.exists():
        state = (
            "collection has not finished" if any(folder.glob("shard-*")) else "there is no data set"
        )
        raise FileNotFoundError(
            f"{path} does not exist: {state} in {folder}; run `{_command(folder)}`"
        )
    try:
        manifest = json.loads(path.read_text())
    except ValueError as error:  # or no text at all
        raise ValueError(
            f"{path} is not JSON ({error}); delete it and run `{_command(folder)}`"
        ) from error
    again = f"delete it and run `{_command(folder)}`"
    if not isinstance(manifest, dict):
        raise ValueError(f"{path} holds a {type(manifest).__name__}, expected an object; {again}")
    if manifest.get("schema") != SCHEMA:
        raise ValueError(
            f"{path}: {unknown('schema', manifest.get('schema'), (SCHEMA,))}; collect the data "
            f"again into another folder"
        )
    if missing := [name for name in REQUIRED if name not in manifest]:
        raise ValueError(f"{path} lacks {', '.join(missing)}; {again}")
    shards = manifest["shards"]
    if not isinstance(shards, list) or not shards or not all(map(_is_shard, shards)):
        raise ValueError(
            f"{path}: shards is {str(shards)[:60]}; expected a list of at least one object with "
            f"{', '.join(OF_SHARD)}; {again}"
        )
    return cast(dict[str, Any], manifest)


def _is_shard(entry: object) -> bool:
    return isinstance(entry, dict) and all(name in entry for name in OF_SHARD)


def read_shard(
    folder: Path, shard: dict[str, Any], manifest: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Arrays of one shard, once its bytes and shapes are those of the manifest.

    Args:
        folder: The data set's.
        shard: Its entry in the manifest.
        manifest: The whole manifest.

    Returns:
        What ``training/collect.py`` lists: states and scenes in their full precision.

    Raises:
        ValueError: It is missing, has changed, or does not fit the manifest.
    """
    path = folder / shard["file"]
    repair = f"run `{_command(folder, manifest)}` to make it again"
    if not path.exists():
        raise ValueError(f"{path} is missing, though the manifest lists it; {repair}")
    found = file_sha256(path)
    if found != shard["sha256"]:
        raise ValueError(
            f"{path} has sha256 {found}, expected {shard['sha256']} by the manifest: the file is "
            f"damaged or was replaced; {repair}"
        )
    with np.load(path) as file:
        arrays = dict(file)
    # Data sets of systems without a scene may be older than the array.
    arrays.setdefault("scenes", np.zeros((len(arrays["states"]), 0)))
    n, steps = shard["trajectories"], manifest["steps"]
    height, width = manifest["frame"]["size"]
    expected = {
        "frames": (n, steps + 1, height, width, 3),
        "actions": (n, steps, *arrays["actions"].shape[2:]),
        "states": (n, steps + 1, len(manifest["state_names"])),
        "scenes": (n, len(manifest.get("scene_names", ()))),
    }
    for name, shape in expected.items():
        if arrays[name].shape != shape:
            raise ValueError(f"{path}: {name} has shape {arrays[name].shape}, expected {shape}")
    known = [name not in manifest.get("missing_states", ()) for name in manifest["state_names"]]
    if not np.isfinite(arrays["states"][..., known]).all():
        raise ValueError(f"{path}: states are not finite, though the manifest calls none missing")
    return arrays


__all__ = [
    "FOLDS",
    "MANIFEST",
    "SCHEMA",
    "SPLITS",
    "TrajectoryDataset",
    "asset_sha256",
    "check_fold",
    "describe",
    "file_sha256",
    "load_dataset",
    "read_manifest",
    "read_shard",
]
