"""Records of a drive, whatever file they came from, and what is wrong with them."""

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

MAX_SPEED = 6.0
"""m/s, above what these cars reach: bounds the way between two records without a speed."""
SLACK = 0.2
"""m that a record may lie beyond what its speed allows before the car counts as moved by hand."""

LARGEST = 1e15
"""Magnitude beyond which a number is damage: in ms, 31,000 years."""


@dataclass
class Report:
    """What an import read and dropped, by reason.

    Attributes:
        read: Records (or rows) that the source holds.
        dropped: Number of records dropped, by reason.
        splits: Number of places where a drive was cut in two, by reason.
        notes: Other counts that a reader wants to know.
    """

    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    splits: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)

    def drop(self, reason: str, count: int = 1) -> None:
        """Count dropped records; zero leaves no trace."""
        if count:
            self.dropped[reason] += count

    def as_dict(self) -> dict[str, object]:
        """JSON content, sorted: the same import gives the same bytes."""
        return {
            "records": self.read,
            **{name: dict(sorted(getattr(self, name).items())) for name in _COUNTERS},
        }

    def lines(self) -> list[str]:
        """Text for people."""
        kept = self.read - sum(self.dropped.values())
        words = {"dropped": "dropped", "splits": "cut", "notes": "note"}
        return [f"{self.read} records read, {kept} kept"] + [
            f"  {words[name]}: {reason}: {count}"
            for name in _COUNTERS
            for reason, count in sorted(getattr(self, name).items())
        ]


_COUNTERS = ("dropped", "splits", "notes")


@dataclass(frozen=True)
class Records:
    """Records in the order of driving.

    Attributes:
        times: float64 (n,), s.
        actions: float64 (n, 2), steering (positive to the right) and throttle.
        positions: float64 (n, 2), x and y in m, right-handed seen from above; NaN where unknown.
        speeds: float64 (n,), m/s; NaN where unknown.
        episodes: int64 (n,), number of the session or episode; a drive never crosses two.
        images: Picture of each record, or empty where the source has none.
    """

    times: np.ndarray
    actions: np.ndarray
    positions: np.ndarray
    speeds: np.ndarray
    episodes: np.ndarray
    images: tuple[Path, ...] = ()

    def __len__(self) -> int:
        """Number of records."""
        return len(self.times)

    @property
    def has_poses(self) -> bool:
        """Whether every record knows where the car was."""
        return len(self) > 0 and bool(np.isfinite(self.positions).all())

    def select(self, index: np.ndarray) -> "Records":
        """Some of the records, by a mask or by indices."""
        chosen = np.arange(len(self))[index]
        arrays = {
            f.name: getattr(self, f.name)[chosen]
            for f in dataclasses.fields(self)
            if f.name != "images"
        }
        images = tuple(self.images[i] for i in chosen) if self.images else ()
        return Records(**arrays, images=images)


def drop_repeats(records: Records, report: Report) -> Records:
    """Drop records that show the same moment as the one before.

    A drive loop that is faster than the telemetry writes each pose several times, and the speed
    between the copies would read as zero. A car that stands still is dropped, too, where the
    pose is known to the last bit: it teaches nothing about motion.
    """
    if len(records) < 2:
        return records
    same = np.diff(records.episodes) == 0
    repeated = same & (np.diff(records.positions, axis=0) == 0).all(1)
    late = same & ~repeated & (np.diff(records.times) == 0)
    report.drop("same pose as the record before", int(repeated.sum()))
    report.drop("same time as the record before", int(late.sum()))
    return records.select(np.concatenate(([True], ~(repeated | late))))


def drives(records: Records, max_gap: float, report: Report) -> list[Records]:
    """Cut into uninterrupted drives.

    Args:
        records: Without repeats.
        max_gap: Longest time between two records of one drive, s.
        report: Counts the cuts.

    Returns:
        Drives within one episode, without pauses, without a car that was carried elsewhere.
    """
    if not len(records):
        return []
    elapsed = np.diff(records.times)
    way = np.linalg.norm(np.diff(records.positions, axis=0), axis=1)
    faster = np.fmax(records.speeds[1:], records.speeds[:-1])
    reach = SLACK + np.where(np.isnan(faster), MAX_SPEED, 1.5 * faster) * np.abs(elapsed)
    reasons = {
        "next episode or session": np.diff(records.episodes) != 0,
        "clock went backwards": elapsed < 0,
        f"pause of more than {max_gap:.3g} s": elapsed > max_gap,
        "car was moved": way > reach,  # False where the pose is unknown
    }
    cut = np.zeros(len(elapsed), bool)
    for reason, found in reasons.items():
        if count := int((found & ~cut).sum()):
            report.splits[reason] += count
        cut |= found
    parts = np.split(np.arange(len(records)), np.flatnonzero(cut) + 1)
    return [records.select(part) for part in parts]


__all__ = ["LARGEST", "Records", "Report", "drives", "drop_repeats"]
