"""Other people's recordings of Donkey Cars: tubs with pictures, and telemetry without."""

from training.importers.records import Records, Report
from training.importers.telemetry import (
    is_telemetry,
    load_telemetry,
    read_telemetry,
    save_telemetry,
)
from training.importers.tub import read_tub, tub_version

__all__ = [
    "Records",
    "Report",
    "is_telemetry",
    "load_telemetry",
    "read_telemetry",
    "read_tub",
    "save_telemetry",
    "tub_version",
]
