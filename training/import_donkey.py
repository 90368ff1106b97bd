"""Import other people's Donkey Car data: ``python -m training.import_donkey SOURCE --out FOLDER``.

SOURCE is a tub of version 1 or 2, which becomes a data set like those of ``training.collect``, or
the telemetry of a real car as CSV, which has no pictures and becomes ``telemetry.npz`` for
``python -m training.identify``. No tub tells which course was driven, but rewards, endings and laps
are judged by its path: ``--course`` names it, or ``--path`` is a CSV file of it (a header ``x,y``,
then the middle of the right lane in metres, in driving order, a point every 10 cm or so). Models
cover x from -5 to 5 m and y from -3.5 to 3.5 m: the course must lie therein, and what was recorded
elsewhere is dropped. What was dropped, and why, is printed and kept in the manifest.
The same command again changes nothing; after an interruption, it goes through.
"""

import hashlib
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from piwm_gym.systems import System, get_system
from piwm_gym.systems.donkey_car import MAX_CTE
from training.courses import check_near, choose_course, on_course
from training.dataset import asset_sha256
from training.importers import Report, is_telemetry, read_telemetry, read_tub, tub_version
from training.importers.sampling import sample
from training.importers.telemetry import save_telemetry
from training.importers.write import finished, write_dataset
from training.shards import write_json

SYSTEM = "donkey_car"
TELEMETRY = "telemetry.npz"
REPORT = "report.json"


def import_tub(
    source: Path,
    out: Path,
    report: Report,
    *,
    course: str | None = None,
    path: Path | None = None,
    system: System | None = None,
    steps: int = 50,
    units_per_metre: float = 1.0,
) -> Path:
    """Make a data set of a tub.

    Args:
        source: Folder of the tub.
        out: Folder of the data set.
        report: Counts what is dropped; stays empty where the data set exists already.
        course: Name of the course that was driven; or else ``path``.
        path: CSV file of its path, see :func:`training.courses.read_path`.
        system: Whose frames and states to make, at its time step; default: the Donkey Car.
        steps: Actions in a trajectory.
        units_per_metre: Units of the recorded positions in a metre.

    Returns:
        Path of the manifest.

    Raises:
        ValueError: A bad option, no course or one that was not driven or does not fit the
            system's ranges, nothing usable in the tub, records at a rate that does not give the
            time step, or another data set in ``out``.
    """
    driven = choose_course(course, path)
    system = on_course(get_system(SYSTEM) if system is None else system, driven)
    assert system.asset is not None
    for name, value in (("steps", steps), ("units_per_metre", units_per_metre)):
        if not value > 0:
            raise ValueError(f"{name} is {value}; expected a positive number")
    identity = {
        "source": source.resolve().name,
        "kind": f"tub v{tub_version(source)}",
        "sha256": _fingerprint(source),
        "course": driven.name,
        "path_sha256": asset_sha256(system.asset.tolist()),
        "dt": system.dt,
        "steps": steps,
        "units_per_metre": units_per_metre,
    }
    if finished(out, identity):
        return out / "manifest.json"
    records = read_tub(source, system.frame.native, report, units_per_metre)
    if braking := int((records.actions[:, 1] < 0).sum()):
        report.notes["braking or reverse (negative throttle), kept as no throttle"] += braking
    try:
        if records.has_poses and (beyond := check_near(driven, records.positions, units_per_metre)):
            report.notes[f"beyond {MAX_CTE:g} m from the path, where episodes end"] += beyond
        trajectories = sample(records, system, steps, report)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error
    if not trajectories:
        reasons = "\n".join(report.lines())
        raise ValueError(
            f"{source} gives no trajectory of {steps} steps of {system.dt} s; ask for fewer --steps"
            f"\n{reasons}"
        )
    where = f"--course {course}" if path is None else f"--path {path}"
    command = (
        f"python -m training.import_donkey {source} --out {{out}} {where} --steps {steps} "
        f"--units-per-metre {units_per_metre}"
    )
    return write_dataset(trajectories, report, system, driven, out, identity, command)


def import_telemetry(path: Path, out: Path, report: Report) -> Path:
    """Make ``telemetry.npz`` of a CSV file, with the report beside it.

    Returns:
        Path of the npz file.

    Raises:
        ValueError: The file cannot be read.
    """
    records = read_telemetry(path, report)
    out.mkdir(parents=True, exist_ok=True)
    save_telemetry(records, out / TELEMETRY)
    write_json(out / REPORT, report.as_dict())
    return out / TELEMETRY


def _fingerprint(folder: Path) -> str:
    """sha256 over the records' text and the pictures' names and sizes."""
    digest = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        digest.update(f"{path.relative_to(folder)} {path.stat().st_size}\n".encode())
        if path.suffix in {".json", ".catalog"}:
            with suppress(OSError):  # what cannot be read gives no records either
                digest.update(path.read_bytes())
    return digest.hexdigest()


def main(
    source: tyro.conf.Positional[Path],
    out: Path,
    course: str | None = None,
    path: Path | None = None,
    steps: int = 50,
    units_per_metre: float = 1.0,
) -> None:
    """Import a Donkey tub (version 1 or 2), or a real car's telemetry as CSV.

    Args:
        source: Folder of a tub, or a .csv or .csv.gz file.
        out: Folder for the result.
        course: Course that the tub was recorded on: meadow, hall or random-SEED; or else --path.
        path: CSV file of the path that was driven: a header x,y, then points in metres.
        steps: Actions in a trajectory; training needs 49 or more.
        units_per_metre: Of recorded positions: 1 for simulators since 2022, 8 for older ones.
    """
    console = Console(stderr=True)
    report = Report()
    try:
        result = _import(
            source,
            out,
            report,
            course=course,
            path=path,
            steps=steps,
            units_per_metre=units_per_metre,
        )
    except (OSError, ValueError) as error:
        console.print(str(error), markup=False, soft_wrap=True)
        sys.exit(2)
    for line in report.lines() if report.read else ["imported before, nothing to do"]:
        console.print(line, markup=False, soft_wrap=True, highlight=False)
    console.print(str(result), markup=False, soft_wrap=True)


def _import(source: Path, out: Path, report: Report, **options: Any) -> Path:
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist; expected a tub's folder or a CSV file")
    if is_telemetry(source) and source.suffix != ".npz":
        return import_telemetry(source, out, report)
    if source.is_dir() and tub_version(source) is not None:
        return import_tub(source, out, report, **options)
    raise ValueError(
        f"{source} is not recognised; expected a folder with record_*.json (tub version 1) or "
        "catalog_*.catalog (version 2), or a file that ends in .csv or .csv.gz"
    )


if __name__ == "__main__":
    tyro.cli(main)
