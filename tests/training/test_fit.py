"""The optimisation loop: schedule, selection, early stopping, resuming after a kill."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from training.fit import Batch, FitConfig, Stage, Terms, _Run, batches, fit, schedule

CONFIG = FitConfig(
    epochs=6, batch_size=8, learning_rate=0.05, warmup_epochs=1, patience=100, save_seconds=0.0
)


class Line(Stage):
    """y = w x + b, with a touch of noise in the loss, as sampled latents have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self.steps = 0
        self.stop_at = -1

    def forward(self, batch: Batch) -> tuple[Tensor, Terms]:
        if self.training:
            self.steps += 1
            if self.steps == self.stop_at:
                raise KeyboardInterrupt
        noise = 0.01 * torch.randn_like(batch["x"]) if self.training else 0.0
        loss = (self.layer(batch["x"] + noise) - batch["y"]).square().mean()
        return loss, {"twice": 2 * loss}


def line_data(count: int = 64) -> Batch:
    x = torch.linspace(-1, 1, count)[:, None]
    return {"x": x, "y": 3 * x + 1}


def weights(stage: Stage) -> list[Tensor]:
    return [p.detach().clone() for p in stage.parameters()]


def test_schedule_warms_up_and_ends_at_zero() -> None:
    factors = [schedule(step, 100, 10) for step in range(101)]
    assert factors[0] == 0.1
    assert max(factors) == factors[9] == 1.0
    assert factors[55] == pytest.approx(0.5)
    assert factors[100] == pytest.approx(0.0)


def test_batches_are_a_permutation_that_epoch_and_seed_determine() -> None:
    data = {"i": torch.arange(20)}

    def order(epoch: int, seed: int = 0) -> list[int]:
        return [int(i) for batch in batches(data, 5, epoch, seed, 0) for i in batch["i"]]

    assert sorted(order(0)) == list(range(20))
    assert order(0) == order(0) != order(1)
    assert order(0) != order(0, seed=1)
    assert len([b for b in batches(data, 5, 0, 0, limit=10)]) == 2


def test_a_resumed_optimiser_counts_on_the_host(tmp_path: Path) -> None:
    """A GPU would have to be asked for the count at every step."""
    fit(Line(), line_data(), line_data(16), CONFIG, tmp_path, "line")
    run = _Run(Line(), CONFIG, tmp_path / "line.pt", 64)
    state = run.optimizer.state_dict()["state"]
    assert run.step
    assert all(part["step"].device.type == "cpu" for part in state.values())


def test_it_learns_and_reports(tmp_path: Path) -> None:
    logged: list[str] = []
    stage = Line()
    result = fit(
        stage,
        line_data(),
        line_data(16),
        FitConfig(epochs=100, batch_size=8, learning_rate=0.05, clip_norm=0),
        tmp_path,
        "line",
        lambda tag, value, step: logged.append(tag),
    )
    assert result["loss"] < 1e-2
    assert result["twice"] == pytest.approx(2 * result["loss"])
    assert {"line/train/twice", "line/validation/loss"} <= set(logged)


def test_an_interrupted_fit_ends_where_an_uninterrupted_one_does(tmp_path: Path) -> None:
    whole = Line()
    expected = fit(whole, line_data(), line_data(16), CONFIG, tmp_path / "whole", "line")
    for stop in (3, 21):  # inside the first epoch, and inside the third
        folder = tmp_path / f"parts-{stop}"
        broken = Line()
        broken.stop_at = stop
        with pytest.raises(KeyboardInterrupt):
            fit(broken, line_data(), line_data(16), CONFIG, folder, "line")
        resumed = Line()
        result = fit(resumed, line_data(), line_data(16), CONFIG, folder, "line")
        assert 48 - resumed.steps == stop - 1
        assert result["loss"] == expected["loss"]
        assert all(map(torch.equal, weights(resumed), weights(whole)))


def test_a_finished_fit_is_not_repeated(tmp_path: Path) -> None:
    first = Line()
    result = fit(first, line_data(), line_data(16), CONFIG, tmp_path, "line")
    second = Line()
    assert fit(second, line_data(), line_data(16), CONFIG, tmp_path, "line") == result
    assert second.steps == 0
    assert all(map(torch.equal, weights(first), weights(second)))


@pytest.mark.parametrize("damage", ["truncated", "empty", "text", "of another stage", "incomplete"])
def test_a_damaged_state_is_named_with_what_to_do(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "line.pt"
    fit(Line(), line_data(), line_data(16), CONFIG, tmp_path, "line")
    whole, state = path.read_bytes(), torch.load(path)
    if damage == "of another stage":
        torch.save({**state, "stage": {}}, path)
    elif damage == "incomplete":
        torch.save({name: state[name] for name in state if name != "best"}, path)
    else:
        content = {"truncated": whole[: len(whole) // 2], "empty": b"", "text": b"nothing here"}
        path.write_bytes(content[damage])
    with pytest.raises(ValueError, match=r"line\.pt is damaged or of another version.*delete it"):
        fit(Line(), line_data(), line_data(16), CONFIG, tmp_path, "line")
    path.unlink()
    fit(Line(), line_data(), line_data(16), CONFIG, tmp_path, "line")


def test_early_stopping_keeps_the_best_weights(tmp_path: Path) -> None:
    class Worsening(Line):
        def validation(self, batch: Batch) -> tuple[Tensor, Terms]:
            return self.layer.weight.abs().sum(), {}

    stage = Worsening()
    config = FitConfig(epochs=50, batch_size=8, learning_rate=0.05, warmup_epochs=0, patience=3)
    result = fit(stage, line_data(), line_data(16), config, tmp_path, "line")
    assert result["epochs"] == 4
    torch.testing.assert_close(stage.layer.weight.detach().abs().sum().item(), result["loss"])


def test_weights_are_not_selected_while_something_warms_up(tmp_path: Path) -> None:
    class Warming(Line):
        @property
        def selectable(self) -> bool:
            return self.steps > 24

        def validation(self, batch: Batch) -> tuple[Tensor, Terms]:
            return torch.tensor(float(self.steps)), {}  # the earliest weights look best

    stage = Warming()
    result = fit(stage, line_data(), line_data(16), CONFIG, tmp_path, "line")
    assert result["loss"] == 32


def test_divergence_is_an_error_that_names_the_learning_rate(tmp_path: Path) -> None:
    class Diverging(Line):
        def validation(self, batch: Batch) -> tuple[Tensor, Terms]:
            return torch.tensor(float("nan")), {}

    with pytest.raises(FloatingPointError, match=r"line: .* nan; .*learning_rate than 0\.05"):
        fit(Diverging(), line_data(), line_data(16), CONFIG, tmp_path, "line")


KILLED = """
import sys, time, torch
from pathlib import Path
sys.path.insert(0, "tests/training")
from test_fit import CONFIG, Line, line_data
from training.fit import fit

class Slow(Line):
    def forward(self, batch):
        time.sleep(0.02)
        return super().forward(batch)

fit(Slow(), line_data(), line_data(16), CONFIG, Path(sys.argv[1]), "line")
"""


def test_kill_9_leaves_a_state_to_resume_from(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "line.pt").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    resumed, whole = Line(), Line()
    result = fit(resumed, line_data(), line_data(16), CONFIG, tmp_path, "line")
    expected = fit(whole, line_data(), line_data(16), CONFIG, tmp_path / "whole", "line")
    assert resumed.steps < 48
    assert result["loss"] == expected["loss"]
    assert all(map(torch.equal, weights(resumed), weights(whole)))
