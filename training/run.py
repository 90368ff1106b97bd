"""Where a training run lives and how it reports."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from training.fit import Batch, FitConfig, Stage, fit

Log = Callable[[str, float, int], None]


@dataclass(frozen=True)
class Run:
    """Where a training run lives and how it reports.

    Attributes:
        folder: Its files.
        log: Receives (tag, value, step).
        quiet: No progress bars.
    """

    folder: Path
    log: Log = lambda tag, value, step: None
    quiet: bool = True

    def fit(
        self, stage: Stage, batches: tuple[Batch, Batch], config: FitConfig, name: str
    ) -> dict[str, float]:
        """Fit a stage on (training, validation) data; it is frozen afterwards."""
        stage.requires_grad_(True).train()
        results = fit(stage, *batches, config, self.folder, name, self.log, self.quiet)
        stage.requires_grad_(False).eval()
        return results


def key(*parts: object) -> str:
    """Short hash of JSON-able settings."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:8]
