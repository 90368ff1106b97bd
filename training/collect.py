"""Collect trajectories from a real environment: ``python -m training.collect cartpole``.

A data set is a folder::

    manifest.json       what it is, a coverage table, and the sha256 of every shard
    shard-00000.npz     frames uint8 (n, T+1, H, W, 3), actions (n, T), states float64 (n, T+1, D),
                        scenes float64 (n, S), controllers (n,); states and scenes serve labels and
                        evaluation, no model sees them
    shard-00000.json    its sha256 and the settings that made it: the mark of a finished shard

Shards are the unit of work. Each is written under a temporary name and renamed, the mark last, so
a run may be killed at any moment; the same command then goes on with what is missing, and makes
broken shards again. Trajectory i draws from its own generator, seeded with (seed, i): the bytes
depend on seed and settings, not on the number of workers. ``--ray auto`` makes shards on the
machines of a ray cluster, which must share the folder. :func:`collect_shard` alone makes one shard,
for job arrays that share it; any later run of the command adds the manifest.
"""

import dataclasses
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import as_completed
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
import tyro
from rich.console import Console
from rich.progress import track

from piwm_gym.checks import writable_folder
from piwm_gym.courses import DEFAULT_COURSE, Course, get_course
from piwm_gym.preprocess import RESIZER
from piwm_gym.systems import get_system, unknown
from training import fanout
from training.collectors import get_collector
from training.courses import on_course
from training.dataset import MANIFEST, SCHEMA, file_sha256
from training.shards import coverage, shard_path, write_json, write_shard

VERSIONS = ("gymnasium", "numpy", "pillow", "pygame-ce")


@dataclass(frozen=True)
class Settings:
    """What the bytes of a data set depend on.

    Attributes:
        system: Short name of the system.
        trajectories: How many there are.
        steps: Actions in each; there is one more frame.
        shard_size: Trajectories in a shard; the last one may hold fewer.
        seed: Seed of everything random.
        course: The course that is driven, for systems that have one; default: "meadow".
    """

    system: str
    trajectories: int
    steps: int = 50
    shard_size: int = 200
    seed: int = 0
    course: Course | None = None

    def __post_init__(self) -> None:
        for name in ("trajectories", "steps", "shard_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected at least 1")
        if self.seed < 0:
            raise ValueError(f"seed is {self.seed}; expected 0 or more")
        system = get_system(self.system)
        if self.course is not None:
            on_course(system, self.course)  # refuses what cannot be driven
        elif system.asset is not None:
            object.__setattr__(self, "course", get_course(DEFAULT_COURSE))

    @property
    def num_shards(self) -> int:
        """Number of shards, the last one possibly smaller."""
        return -(-self.trajectories // self.shard_size)

    def members(self, shard: int) -> range:
        """Indices of the trajectories in a shard."""
        first = shard * self.shard_size
        return range(first, min(first + self.shard_size, self.trajectories))

    def identity(self) -> dict[str, Any]:
        """JSON description; two data sets with the same one hold the same trajectories."""
        system = get_system(self.system)
        scene = {"scene_names": [v.name for v in system.scene_variables]}
        place = {}
        if self.course is not None:
            asset = on_course(system, self.course).asset
            assert asset is not None
            place = {"course": self.course.name, "asset": asset.tolist()}
        numbers = ("system", "trajectories", "steps", "shard_size", "seed")
        return {
            "schema": SCHEMA,
            **{name: getattr(self, name) for name in numbers},
            "real_id": system.real_id,
            "state_names": list(system.state_names),
            "state_units": [v.unit for v in system.variables],
            **(scene if system.scene_variables else {}),
            **place,
            "resizer": RESIZER,
            "frame": json.loads(json.dumps(dataclasses.asdict(system.frame))),
        }


PRESETS: dict[str, Callable[[str, int], Settings]] = {
    "debug": lambda system, seed: Settings(system, 24, shard_size=8, seed=seed),
    "laptop": lambda system, seed: Settings(system, 2_000, seed=seed),
    "paper": lambda system, seed: Settings(system, 60_000, seed=seed),
}
"""Named sizes: seconds, minutes, and the 60,000 trajectories of the paper."""


def preset_settings(system: str, preset: str, seed: int = 0, course: str | None = None) -> Settings:
    """Settings of a named size.

    Raises:
        ValueError: The preset or the course is unknown; the nearest one is suggested. Or the
            system has no courses, or not room for this one.
    """
    if preset not in PRESETS:
        raise ValueError(unknown("preset", preset, tuple(PRESETS)))
    settings = PRESETS[preset](system, seed)
    return settings if course is None else dataclasses.replace(settings, course=get_course(course))


def collect_shard(settings: Settings, shard: int, folder: Path) -> Path:
    """Make one shard, unless it is there already with the right bytes.

    Args:
        settings: Settings of the whole data set.
        shard: Index of the shard, from 0.
        folder: The data set's folder; it must exist.

    Returns:
        Path of the shard.

    Raises:
        ValueError: The folder holds a shard of other settings.
    """
    path = shard_path(folder, shard)
    mark = path.with_suffix(".json")
    if _is_finished(settings, path, mark):
        return path
    mark.unlink(missing_ok=True)
    collector = get_collector(settings.system, settings.course)
    trajectories = [
        collector.trajectory(
            np.random.default_rng(np.random.SeedSequence(settings.seed, spawn_key=(i,))),
            settings.steps,
        )
        for i in settings.members(shard)
    ]
    arrays: dict[str, np.ndarray] = {
        name: np.stack([getattr(t, name) for t in trajectories])
        for name in ("frames", "actions", "states")
    }
    arrays["scenes"] = np.stack([t.scene for t in trajectories])
    arrays["controllers"] = np.array([t.controller for t in trajectories])
    write_shard(path, arrays, {**settings.identity(), "shard": shard})
    return path


def collect(
    settings: Settings,
    folder: Path,
    workers: int = 1,
    *,
    ray: str | None = None,
    quiet: bool = True,
) -> Path:
    """Make a data set, or the part of it that is missing.

    Args:
        settings: What to collect.
        folder: Where to; made if need be.
        workers: Processes. With 1, everything happens in this one.
        ray: Address of a ray cluster, which then makes the shards; see ``training/fanout.py``.
        quiet: Show no progress bar.

    Returns:
        Path of the manifest.

    Raises:
        ValueError: The folder holds a data set of other settings, or nothing can be written there.
        ImportError: ``ray`` is given, but not installed.
        ConnectionError: There is no such ray cluster.
    """
    if workers < 1:
        raise ValueError(f"workers is {workers}; expected at least 1")
    get_collector(settings.system, settings.course)
    writable_folder("out", folder)
    manifest = folder / MANIFEST
    if manifest.exists():
        _check_identity(settings, manifest)
    job = partial(collect_shard, settings, folder=folder.resolve())
    console = Console(stderr=True, quiet=quiet)
    for _ in track(
        _side_by_side(job, settings.num_shards, workers, ray),
        description=f"{settings.system}: shards of {settings.shard_size} trajectories",
        total=settings.num_shards,
        console=console,
    ):
        pass
    for leftover in folder.glob("*.tmp"):  # of runs that were killed
        leftover.unlink()
    write_json(manifest, _manifest(settings, folder))
    return manifest


def _side_by_side(
    job: Callable[[int], Path], count: int, workers: int, ray: str | None
) -> Iterator[Path]:
    """Run the job for 0 to ``count - 1``: in this process, in several fresh ones, or by ray."""
    if ray is None and (workers == 1 or count == 1):
        yield from map(job, range(count))
        return
    with fanout.cluster(ray) if ray else fanout.processes(min(workers, count)) as submit:
        for future in as_completed([submit(job, i) for i in range(count)]):
            yield future.result()


def _is_finished(settings: Settings, path: Path, mark: Path) -> bool:
    """Whether the shard is complete; a mark of other settings is an error, not overwritten."""
    try:
        content = json.loads(mark.read_text())
    except (FileNotFoundError, ValueError):
        return False
    if not isinstance(content, dict):
        return False
    sha256 = _check_identity(settings, mark).get("sha256")
    return path.exists() and file_sha256(path) == sha256


def _check_identity(settings: Settings, path: Path) -> dict[str, Any]:
    """Contents of a manifest or mark, which must be of these settings."""
    try:
        # There was one course when data sets did not name it.
        found = {"course": DEFAULT_COURSE, **json.loads(path.read_text())}
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({error}); delete it, and the same command makes it again"
        ) from error
    for key, expected in settings.identity().items():
        if found.get(key) != expected:
            raise ValueError(
                f"{path} was collected with {key} = {found.get(key)!r}, now {expected!r} is asked "
                "for; choose another --out, or delete the folder"
            )
    return cast(dict[str, Any], found)


def _manifest(settings: Settings, folder: Path) -> dict[str, Any]:
    """Manifest of a folder whose shards are all finished."""
    system = get_system(settings.system)
    shards, states, controllers = [], [], Counter[str]()
    for shard in range(settings.num_shards):
        path = shard_path(folder, shard)
        mark = json.loads(path.with_suffix(".json").read_text())
        members = settings.members(shard)
        shards.append(
            {
                "file": path.name,
                "sha256": mark["sha256"],
                "first": members.start,
                "trajectories": len(members),
            }
        )
        with np.load(path) as arrays:
            states.append(arrays["states"])
            controllers.update(arrays["controllers"].tolist())
    return {
        **settings.identity(),
        "preset": next(
            (
                name
                for name, make in PRESETS.items()
                if dataclasses.replace(make(settings.system, settings.seed), course=settings.course)
                == settings
            ),
            "custom",
        ),
        "versions": {name: version(name) for name in VERSIONS},
        "controllers": dict(sorted(controllers.items())),
        "coverage": coverage(np.concatenate(states), list(system.state_names)),
        "shards": shards,
    }


def main(
    system: tyro.conf.Positional[str],
    preset: str = "laptop",
    out: Path | None = None,
    workers: int = os.cpu_count() or 1,
    seed: int = 0,
    course: str | None = None,
    ray: str | None = None,
) -> None:
    """Collect trajectories from a real environment; run it again to go on after an interruption.

    Args:
        system: Short name of the system, such as cartpole.
        preset: debug (24 trajectories, seconds), laptop (2,000) or paper (60,000).
        out: Folder of the data set; data/SYSTEM-PRESET if not given.
        workers: Number of processes.
        seed: Seed of everything random.
        course: Course of donkey_car: meadow (if not given), hall or random-SEED.
        ray: Address of a ray cluster that makes the shards: auto, local or host:port.
    """
    console = Console(stderr=True)
    try:
        settings = preset_settings(system, preset, seed, course)
        folder = out or Path("data") / f"{system}-{preset}"
        manifest = collect(settings, folder, workers, ray=ray, quiet=False)
    except (ValueError, ImportError, ConnectionError) as error:
        console.print(str(error), markup=False, soft_wrap=True)
        sys.exit(2)
    console.print(f"{settings.trajectories} trajectories in {manifest.parent}", markup=False)


if __name__ == "__main__":
    tyro.cli(main)
