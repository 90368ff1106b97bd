"""The one optimisation loop; stages and baselines hand it a loss.

A *stage* is a module whose ``forward(batch)`` returns (loss, named terms). The loop gives it
batches drawn from tensors, saves a resumable state at intervals, validates every epoch, keeps
the best weights and stops early. Randomness is a function of (seed, epoch), so that a resumed
run sees the batches that the interrupted one would have seen.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from training import distributed

LOG_EVERY = 50
COUNTERS = ("step", "epoch", "stale", "seconds", "finished", "best", "best_losses")
"""What a resumable state holds besides weights and optimiser."""

Batch = dict[str, Tensor]
Terms = dict[str, Tensor]


@dataclass(frozen=True)
class FitConfig:
    """How to optimise; the defaults are the paper's (appendix F).

    Attributes:
        epochs: Most epochs.
        batch_size: Samples per step, over all processes.
        learning_rate: Peak of the schedule.
        warmup_epochs: Epochs of linear warm-up; cosine decay to zero afterwards.
        patience: Epochs without a better validation loss before stopping.
        clip_norm: Largest norm of the gradient; 0 does not clip.
        samples_per_epoch: Samples that make an epoch; 0 takes all of them.
        save_seconds: Longest work that an interruption may lose.
        seed: Seed of batches and of sampled latents.
        amp: Mixed precision (bfloat16) on a GPU; without effect on a CPU.
    """

    epochs: int = 200
    batch_size: int = 32
    learning_rate: float = 1e-3
    warmup_epochs: float = 5.0
    patience: int = 20
    clip_norm: float = 1.0
    samples_per_epoch: int = 0
    save_seconds: float = 60.0
    seed: int = 0
    amp: bool = True


class Stage(nn.Module):
    """Base of what the loop trains: a loss, and upkeep that is not a gradient step."""

    @property
    def selectable(self) -> bool:
        """Whether the weights are candidates for the best; False while something warms up."""
        return True

    def forward(self, batch: Batch) -> tuple[Tensor, Terms]:
        """Loss of a batch and the terms it is made of."""
        raise NotImplementedError

    def validation(self, batch: Batch) -> tuple[Tensor, Terms]:
        """Loss by which the best weights are chosen; the training loss unless overridden."""
        return self(batch)

    def tally(self) -> dict[str, float]:
        """Numbers of a whole validation that are no averages over its batches; asked once after."""
        return {}

    def upkeep(self, batch: Batch, progress: float) -> None:
        """Called after every step; ``progress`` runs from 0 to 1 over the whole schedule."""


def schedule(step: int, total: int, warmup: int) -> float:
    """Learning-rate factor: linear warm-up, then half a cosine to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))


def batches(data: Batch, size: int, epoch: int, seed: int, limit: int) -> Iterator[Batch]:
    """Batches of one epoch for this process, in an order that (seed, epoch) determines."""
    count = len(next(iter(data.values())))
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(count, generator=generator)[: limit or count]
    size = min(size, len(order))
    for first in range(0, len(order) - size + 1, size):
        mine = order[first : first + size][distributed.rank() :: distributed.world_size()]
        yield {name: tensor[mine.to(tensor.device)] for name, tensor in data.items()}


def fit(
    stage: Stage,
    train: Batch,
    validation: Batch,
    config: FitConfig,
    folder: Path,
    name: str,
    log: Callable[[str, float, int], None] = lambda tag, value, step: None,
    quiet: bool = True,
) -> dict[str, float]:
    """Train a stage and leave its best weights in it.

    Args:
        stage: What to train; its parameters that require a gradient are optimised.
        train: Tensors with equal first dimension.
        validation: Tensors of the same names.
        config: How to optimise.
        folder: Where the resumable state is kept.
        name: Name of the stage in files and logs.
        log: Receives (tag, value, step).
        quiet: No progress bar.

    Returns:
        Best validation terms, epochs and seconds. A finished fit is not repeated.

    Raises:
        FloatingPointError: The training diverged.
        ValueError: The resumable state is damaged.
    """
    run = _Run(stage, config, folder / f"{name}.pt", len(next(iter(train.values()))))
    if run.finished:
        stage.load_state_dict(run.best)
        return run.summary
    distributed.broadcast(stage)
    model = distributed.wrap(stage)
    bar = Progress(
        TextColumn(f"{name:<28}"),
        BarColumn(),
        TextColumn("{task.fields[status]}"),
        TimeRemainingColumn(),
        disable=quiet or distributed.rank() > 0,
    )
    with bar:
        task = bar.add_task(name, total=run.total, completed=run.step, status="")
        while not run.done:
            for terms in _epoch(run, model, train):
                bar.update(task, completed=run.step)
                if run.step % LOG_EVERY == 0:
                    for tag, value in terms.items():
                        log(f"{name}/train/{tag}", float(value.detach()), run.step)
            losses = distributed.agreed(_validate(stage, validation, config))
            for tag, number in losses.items():
                log(f"{name}/validation/{tag}", number, run.step)
            run.end_epoch(losses)
            bar.update(task, status=f"validation {losses['loss']:.4g}")
    if not run.best:
        raise FloatingPointError(
            f"{name}: no validation loss was finite, the last one is {losses['loss']}; try a lower "
            f"learning_rate than {config.learning_rate:g}"
        )
    stage.load_state_dict(run.best)
    return run.summary


def _epoch(run: "_Run", model: nn.Module, train: Batch) -> Iterator[Terms]:
    """The steps of the current epoch that are not done yet; yields their terms."""
    config = run.config
    device = next(iter(train.values())).device
    done = run.step - run.epoch * run.steps_per_epoch
    drawn = batches(train, config.batch_size, run.epoch, config.seed, config.samples_per_epoch)
    for batch in islice(drawn, done, None):
        torch.manual_seed(config.seed + 7919 * run.step + distributed.rank())
        with mixed_precision(device, config):
            loss, terms = model(batch)
        run.descend(loss)
        run.stage.upkeep(batch, run.step / run.total)
        run.save_if_due()
        yield terms


def mixed_precision(device: torch.device, config: FitConfig) -> torch.autocast:
    """bfloat16 where a GPU gains by it."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.amp and device.type == "cuda")


@torch.no_grad()
def _validate(stage: Stage, data: Batch, config: FitConfig) -> dict[str, float]:
    stage.eval()
    count = len(next(iter(data.values())))
    sums: dict[str, float] = {}
    size = max(config.batch_size, 256)
    for first in range(0, count, size):
        batch = {name: tensor[first : first + size] for name, tensor in data.items()}
        share = len(next(iter(batch.values()))) / count
        loss, terms = stage.validation(batch)
        for tag, value in {"loss": loss, **terms}.items():
            sums[tag] = sums.get(tag, 0.0) + float(value) * share
    stage.train()
    return sums | stage.tally()


class _Run:
    """State of one fit: optimiser, counters, best weights; saved and restored as one file."""

    def __init__(self, stage: Stage, config: FitConfig, path: Path, count: int) -> None:
        self.stage, self.config, self.path = stage, config, path
        self.parameters = [p for p in stage.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(self.parameters, lr=config.learning_rate)
        samples = min(config.samples_per_epoch or count, count)
        self.steps_per_epoch = max(1, samples // min(config.batch_size, samples))
        self.total = config.epochs * self.steps_per_epoch
        self.step = self.epoch = self.stale = 0
        self.seconds = 0.0
        self.finished = False
        self.best: dict[str, Tensor] = {}
        self.best_losses: dict[str, float] = {"loss": math.inf}
        if path.exists():
            self._restore()
        self.clock = self.saved = time.monotonic()

    @property
    def done(self) -> bool:
        return self.epoch >= self.config.epochs or self.stale >= self.config.patience

    @property
    def summary(self) -> dict[str, float]:
        return {**self.best_losses, "epochs": self.epoch, "seconds": round(self.seconds, 1)}

    def descend(self, loss: Tensor) -> None:
        """One optimiser step at the scheduled learning rate."""
        warmup = int(self.config.warmup_epochs * self.steps_per_epoch)
        factor = schedule(self.step, self.total, warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.learning_rate * factor
        self.optimizer.zero_grad()
        loss.backward()
        if self.config.clip_norm:
            nn.utils.clip_grad_norm_(self.parameters, self.config.clip_norm)
        self.optimizer.step()
        self.step += 1

    def end_epoch(self, losses: dict[str, float]) -> None:
        """Keep the weights if they are the best so far, and save."""
        self.epoch += 1
        if not self.stage.selectable:
            pass
        elif losses["loss"] < self.best_losses["loss"]:
            self.best_losses, self.stale = losses, 0
            self.best = {k: v.detach().clone() for k, v in self.stage.state_dict().items()}
        else:
            self.stale += 1
        self.finished = self.done
        self.save()

    def save_if_due(self) -> None:
        if time.monotonic() - self.saved > self.config.save_seconds:
            self.save()

    def save(self) -> None:
        """Write the state under a temporary name and move it into place."""
        now = time.monotonic()
        self.seconds += now - self.clock
        self.clock = self.saved = now
        if distributed.rank() > 0:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        torch.save(
            {
                "stage": self.stage.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                **{name: getattr(self, name) for name in COUNTERS},
            },
            temporary,
        )
        os.replace(temporary, self.path)

    def _restore(self) -> None:
        try:
            # On the host, where Adam looks at its count of steps; what belongs elsewhere is moved.
            state: dict[str, Any] = torch.load(self.path, map_location="cpu", weights_only=True)
            self.stage.load_state_dict(state["stage"])
            self.optimizer.load_state_dict(state["optimizer"])
            for name in COUNTERS:
                setattr(self, name, state[name])
        except (RuntimeError, EOFError, UnpicklingError, KeyError, TypeError, ValueError) as error:
            reason = str(error).partition("\n")[0] or "it is empty"
            raise ValueError(
                f"{self.path} is damaged or of another version, nothing can be resumed from it "
                f"({reason}); delete it to train from the beginning"
            ) from error
