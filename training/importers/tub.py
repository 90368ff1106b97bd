"""Donkey tubs, versions 1 and 2: pictures, commands and, from the simulator, poses.

Version 1 holds one ``record_N.json`` per record and the pictures beside them, version 2
``catalog_K.catalog`` files with a JSON object per line and the pictures in ``images/``. Both use
the same keys. A tub is read as it is found on disks of cars: cut-off lines, absurd numbers, files
that cannot be read, pictures that were deleted or half written and the ``._*`` files of other
systems cost a record each, not the import.
Nothing in a tub is ever executed or unpickled.
"""

import hashlib
import json
import math
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from training.importers.records import LARGEST, Records, Report

IMAGE = "cam/image_array"
POSITION = ("pos/pos_x", "pos/pos_z")
"""Right and forward seen from above: the simulator's y axis points up."""


def tub_version(path: Path) -> int | None:
    """1 or 2, or None where there is no tub."""
    if any(path.glob("catalog_*.catalog")):
        return 2
    return 1 if any(path.glob("record_*.json")) else None


def read_tub(
    path: Path, native: tuple[int, int], report: Report, units_per_metre: float = 1.0
) -> Records:
    """Read a tub of either version.

    Args:
        path: Its folder.
        native: Height and width that its pictures must have.
        report: Counts what is dropped.
        units_per_metre: Units of the recorded positions in a metre: 1 since 2022, 8 before.

    Raises:
        ValueError: No record can be used.
    """
    junk = sum(1 for _ in path.rglob("._*"))
    if junk:
        report.notes["files of other systems (._*), skipped"] += junk
    version_1 = tub_version(path) == 1
    images = path if version_1 else path / "images"
    contents = _version_1(path, report) if version_1 else _version_2(path, report)
    records: list[_Record] = []
    for content in contents:
        report.read += 1
        record = _record(content, images, native)
        if isinstance(record, str):
            report.drop(record)
        elif records and record.digest == records[-1].digest:
            report.drop("same picture as the record before")
        else:
            records.append(record)
    if not records:
        why = "; ".join(f"{reason}: {n}" for reason, n in sorted(report.dropped.items()))
        raise ValueError(f"{path} holds no usable record of {report.read} ({why})")
    return _table(records, report, units_per_metre)


@dataclass(frozen=True)
class _Record:
    time: float
    session: object
    steering: float
    throttle: float
    position: tuple[float, float]
    speed: float
    image: Path
    digest: bytes
    driver: str


def _version_1(path: Path, report: Report) -> Iterator[object]:
    """Contents of the records that can be read, by number; None for one that is not JSON."""
    numbered = [
        (int(match[1]), file)
        for file in path.glob("record_*.json")
        if (match := re.fullmatch(r"record_(\d+)\.json", file.name))
    ]
    for _, file in sorted(numbered):
        try:
            text = _read_file(file)
        except OSError:
            report.read += 1
            report.drop("file cannot be read")
        else:
            yield _parse(text)


def _version_2(path: Path, report: Report) -> Iterator[object]:
    """Contents of the catalogs' lines without deleted records; None for one that is not JSON."""
    numbered = [
        (int(match[1]), file)
        for file in path.glob("catalog_*.catalog")
        if (match := re.fullmatch(r"catalog_(\d+)\.catalog", file.name))
    ]
    skip = _deleted(path, report)
    for _, file in sorted(numbered):
        for line in _lines(file, report):
            content = _parse(line)
            index = content.get("_index") if isinstance(content, dict) else None
            if type(index) is int:  # True is none
                if index in skip:
                    report.read += 1
                    report.drop(skip[index])
                    continue
                skip[index] = "same index as an earlier record"
            yield content


def _lines(file: Path, report: Report) -> list[bytes]:
    """Lines of a catalog; none of one that cannot be read."""
    try:
        return _read_file(file).splitlines()
    except OSError:
        report.notes["catalogs that cannot be read, so their records are not known"] += 1
        return []


def _read_file(path: Path) -> bytes:
    """Bytes of a file.

    Raises:
        OSError: It is missing or cannot be read, or it is a folder, or a pipe, whose reader would
            wait for ever.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(f"{path} is not a file")
    return path.read_bytes()


def _deleted(path: Path, report: Report) -> dict[int, str]:
    """Indices of records that their owner deleted, and why they are dropped."""
    try:
        last = _read_file(path / "manifest.json").splitlines()[4]
        indices = json.loads(last)["deleted_indexes"]
        return {int(i): "deleted by its owner" for i in indices}
    except (OSError, LookupError, TypeError, ValueError, OverflowError, RecursionError):
        report.notes["manifest unreadable, so no record is known to be deleted"] += 1
        return {}


def _parse(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _record(content: object, images: Path, native: tuple[int, int]) -> _Record | str:
    """One record, or why it is dropped."""
    if not isinstance(content, dict):
        return "cut-off or malformed JSON"
    milliseconds = _number(content, "_timestamp_ms", _number(content, "milliseconds"))
    if not milliseconds >= 0:  # or NaN
        return "no usable timestamp"
    driver, steering, throttle = _command(content)
    if math.isnan(steering) or math.isnan(throttle):
        return "no usable steering or throttle"
    name = content.get(IMAGE)
    if not isinstance(name, str):
        return "no picture named"
    image = images / Path(name).name  # never outside the tub
    digest = _check_picture(image, native)
    if isinstance(digest, str):
        return digest
    x, y = (_number(content, key) for key in POSITION)
    return _Record(
        time=milliseconds / 1000,
        session=content.get("_session_id"),
        steering=steering,
        throttle=throttle,
        position=(x, y),
        speed=_number(content, "pos/speed"),
        image=image,
        digest=digest,
        driver=driver,
    )


def _number(content: dict[str, Any], key: str, default: float = math.nan) -> float:
    """A number that is there and not absurd, or else the default."""
    value = content.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    return float(value) if abs(value) <= LARGEST else default  # False for NaN


def _command(content: dict[str, Any]) -> tuple[str, float, float]:
    """Who drove, and the steering and throttle that acted.

    In the modes of a pilot, some versions store its command under ``pilot/``, others overwrite
    the user's and leave zeros there.
    """
    user = tuple(_number(content, f"user/{name}") for name in ("angle", "throttle"))
    pilot = tuple(_number(content, f"pilot/{name}") for name in ("angle", "throttle"))
    mode = content.get("user/mode", "user")
    steers = mode in ("local", "local_angle", "pilot") and _acts(pilot[0])
    accelerates = mode in ("local", "pilot") and _acts(pilot[1])
    driver = "pilot" if steers or accelerates else "user"
    return driver, pilot[0] if steers else user[0], pilot[1] if accelerates else user[1]


def _acts(value: float) -> bool:
    return not math.isnan(value) and value != 0


def _check_picture(path: Path, native: tuple[int, int]) -> bytes | str:
    """Digest of a picture that decodes, or why it cannot be used."""
    try:
        content = _read_file(path)
        with Image.open(BytesIO(content)) as image:
            if (image.height, image.width) != native:
                return f"picture is not {native[1]} x {native[0]} pixels"
            image.load()
    except FileNotFoundError:
        return "picture is missing"
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return "picture cannot be decoded"
    return hashlib.sha256(content).digest()


def _table(records: list[_Record], report: Report, units_per_metre: float) -> Records:
    actions = np.array([(r.steering, r.throttle) for r in records])
    positions = np.array([r.position for r in records])
    keep = _with_consistent_poses(positions, report)
    clipped = int((np.abs(actions) > 1).any(1).sum())
    if clipped:
        report.notes["commands beyond -1 to 1, clipped"] += clipped
    for record in records:
        report.notes[f"commands of the {record.driver}"] += 1
    table = Records(
        times=np.array([r.time for r in records]),
        actions=np.clip(actions, -1, 1),
        positions=positions / units_per_metre,
        speeds=np.array([r.speed for r in records]) / units_per_metre,
        episodes=_sessions([r.session for r in records]),
        images=tuple(r.image for r in records),
    )
    return table.select(keep)


def _with_consistent_poses(positions: np.ndarray, report: Report) -> np.ndarray:
    """Records to keep: those with a pose if most have one, all otherwise (then without poses)."""
    known = np.isfinite(positions).all(1)
    if known.mean() <= 0.5:
        positions[:] = np.nan
        return np.ones(len(known), bool)
    report.drop("no pose, though most records have one", int((~known).sum()))
    return known


def _sessions(sessions: list[object]) -> np.ndarray:
    changes = [0, *(int(a != b) for a, b in pairwise(sessions))]
    return np.cumsum(changes, dtype=np.int64)


__all__ = ["read_tub", "tub_version"]
