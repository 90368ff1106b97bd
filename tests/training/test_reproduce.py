"""The matrix of experiments: which cells there are, and that they survive kills and failures."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console

from piwm_gym.checkpoint import load_checkpoint, save
from piwm_gym.models import VARIANTS
from piwm_gym.world_model import WorldModel
from training import reproduce
from training.collect import Settings, collect, preset_settings
from training.dataset import TrajectoryDataset, describe, load_dataset, read_manifest
from training.evaluate import Subject
from training.fanout import ROOT, cluster, processes, run_module
from training.reproduce import Cell, Matrix, main, work_off
from training.train import parse

MATRIX = Matrix(("cartpole", "lunar_lander"), folds=(0, 3))
CONTINUOUS = Cell("cartpole", "intrinsic-continuous", 0.05, 1)
DISCRETE = Cell("cartpole", "intrinsic-discrete", 0.05, 1)


def command(folder: Path, *more: str) -> list[str]:
    """Two debug cells without stage 1, one after the other."""
    places = [f"--{name}={folder / name}" for name in ("data", "runs", "out", "results")]
    sizes = ["--preset", "debug", "--data-preset", "debug", "--jobs", "1"]
    variants = ["--variants", CONTINUOUS.variant, DISCRETE.variant]
    return ["cartpole", *sizes, *variants, "--noise-levels", "0.05", "--folds", "1", *places, *more]


def checkpoint(folder: Path, cell: Cell) -> Path:
    name = f"{cell.system}-{cell.variant}.safetensors"
    return folder / "out" / f"noise-{cell.noise_level:g}" / f"fold-{cell.fold}" / name


@pytest.fixture
def unevaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluation has tests of its own, and trains probes for minutes."""
    monkeypatch.setattr(reproduce, "evaluate_cells", lambda *arguments: None)


def test_the_matrix_is_the_product_of_its_sides_each_cell_once() -> None:
    cells = MATRIX.cells
    assert len(cells) == len(set(cells)) == 2 * len(VARIANTS) * 3 * 2
    assert cells[0] == Cell("cartpole", VARIANTS[0], 0.0, 0)
    assert replace(MATRIX, systems=("cartpole", "cartpole")).cells == cells[: len(cells) // 2]
    assert {cell.fold for cell in replace(MATRIX, folds=()).cells} == {None}
    for where in (MATRIX.checkpoint, MATRIX.log):
        assert len({where(cell) for cell in cells}) == len(cells)


def test_without_folds_checkpoints_are_where_they_were() -> None:
    cell = Cell("cartpole", "intrinsic-discrete", 0.1, None)
    expected = Path("runs/checkpoints/noise-0.1/cartpole-intrinsic-discrete.safetensors")
    assert Matrix(("cartpole",)).checkpoint(cell) == expected


def test_cells_that_share_stage_one_wait_until_one_has_made_it() -> None:
    def extrinsic(noise_level: float) -> Cell:
        return Cell("cartpole", "extrinsic-discrete", noise_level, None)

    a, b, c = (extrinsic(noise_level) for noise_level in (0.0, 0.05, 0.1))
    alone = Cell("cartpole", "intrinsic-discrete", 0.0, None)
    started: list[Cell] = []

    def start(cell: Cell) -> "Future[int]":
        future: Future[int] = Future()
        if cell == a:
            future.set_exception(RuntimeError("lost"))
        else:
            future.set_result(0)
        started.append(cell)
        return future

    worked_off = work_off([a, b, c, alone], start)
    problems = dict([next(worked_off), next(worked_off)])
    assert started == [a, alone]
    assert problems == {a: "RuntimeError('lost')", alone: ""}
    assert next(worked_off) == (b, "")  # the failed one may not have made it
    assert started == [a, alone, b]
    assert list(worked_off) == [(c, "")]

    started.clear()
    next(work_off([b, c], start, finished=[alone, extrinsic(0.2)]))
    assert started == [b, c]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cartpol"], "did you mean 'cartpole'"),
        (["cartpole", "--variants", "extrinsic-discret"], "did you mean 'extrinsic-discrete'"),
        (["cartpole", "--folds", "4", "7"], "fold is 7; expected 0 to 4"),
        (["cartpole", "--noise-levels", "-1"], "noise_level is -1"),
        (["cartpole", "--preset", "gpus"], "did you mean 'gpu'"),
        (["cartpole", "--data-preset", "lap"], "did you mean 'laptop'"),
        (["cartpole", "--jobs", "0"], "jobs is 0; expected at least 1"),
        (["cartpole", "--ship", "--folds", "1"], "ship takes models of noise level 0.05"),
    ],
)
def test_mistakes_show_before_anything_runs(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [f"--{name}={tmp_path / name}" for name in ("data", "runs", "out")]
    assert main([*words, *places]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_killed_matrix_goes_on_where_it_was(
    tmp_path: Path, unevaluated: None, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = checkpoint(tmp_path, CONTINUOUS), checkpoint(tmp_path, DISCRETE)
    state = tmp_path / "runs" / "cartpole" / "fold-1"
    process = subprocess.Popen(
        [sys.executable, "-m", "training.reproduce", *command(tmp_path)], cwd=ROOT
    )
    deadline = time.monotonic() + 300
    while not list(state.glob("intrinsic-discrete-*/intrinsic.pt")):  # midway in the second
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = first.stat().st_mtime_ns
    assert not second.exists()

    assert main(command(tmp_path)) == 0
    assert first.stat().st_mtime_ns == finished
    assert load_checkpoint(second).metadata["data"]["fold"] == 1
    assert f"{DISCRETE.name}: finished" in capsys.readouterr().err
    second_finished = second.stat().st_mtime_ns
    assert main(command(tmp_path)) == 0
    assert second.stat().st_mtime_ns == second_finished
    assert "finished" not in capsys.readouterr().err


def test_a_failed_cell_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file is where the folder of its run belongs."""
    data, runs, out = (tmp_path / name for name in ("data", "runs", "out"))
    matrix = Matrix(
        ("cartpole",), preset="debug", data_preset="debug", data=data, runs=runs, out=out
    )
    collect(preset_settings("cartpole", "debug"), matrix.data_folder("cartpole"))
    arguments, (config,) = parse(matrix.arguments(CONTINUOUS))
    manifest = read_manifest(matrix.data_folder("cartpole"))
    description = describe(manifest, CONTINUOUS.fold)
    folder = arguments.folder(config, {**description, "supervision": asdict(arguments.supervision)})
    folder.parent.mkdir(parents=True)
    folder.touch()
    assert main(command(tmp_path)) == 1
    assert load_checkpoint(checkpoint(tmp_path, DISCRETE))
    told = capsys.readouterr().err
    log = tmp_path / "runs" / "logs" / f"{CONTINUOUS.name}.log"
    assert f"{CONTINUOUS.name} failed: exit status 2; log: {log}" in told
    assert log.read_text().splitlines()[-1] in told
    assert "is not evaluated" in told


def test_a_fold_is_evaluated_on_its_own_trajectories_beside_rows_of_others(
    tmp_path: Path, make_tiny: Callable[..., WorldModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = Matrix(
        ("cartpole",), (DISCRETE.variant,), (0.05,), (1,),
        data_preset="debug", data=tmp_path, runs=tmp_path, out=tmp_path, results=tmp_path,
    )  # fmt: skip
    collect(Settings("cartpole", 10, steps=4), matrix.data_folder("cartpole"))
    metadata = {"data": {"supervision": {"noise_level": 0.05}}, "training": {}, "stages": {}}
    save(make_tiny(DISCRETE.variant), matrix.checkpoint(DISCRETE), metadata)
    table = tmp_path / "fold-1" / "cartpole-estimation.csv"
    table.parent.mkdir()
    table.write_text("variant,noise_level,x\nintrinsic-discrete,0.1,3\nintrinsic-discrete,0.05,2\n")
    tested: list[int] = []

    def evaluate(
        subjects: list[Subject], dataset: TrajectoryDataset, probes: Path
    ) -> dict[str, list[dict[str, object]]]:
        tested.extend(dataset.split()["test"])
        return {"estimation": [{**subject.label, "x": 1.0} for subject in subjects]}

    monkeypatch.setattr(reproduce, "evaluate", evaluate)
    reproduce.evaluate_cells(matrix, "cartpole", 1, Console(quiet=True))
    dataset = load_dataset(matrix.data_folder("cartpole"), fold=1)
    assert tested == dataset.split()["test"].tolist()
    lines = ["variant,noise_level,x", "intrinsic-discrete,0.05,1", "intrinsic-discrete,0.1,3"]
    assert table.read_text().splitlines() == lines


def test_jobs_end_with_whoever_started_them(tmp_path: Path) -> None:
    script = "from training.fanout import run_module; from pathlib import Path; import sys; "
    script += "run_module(['http.server', '0', '--bind', '127.0.0.1'], Path(sys.argv[1]))"
    log = tmp_path / "log"
    parent = subprocess.Popen([sys.executable, "-c", script, str(log)], cwd=ROOT)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    deadline = time.monotonic() + 60
    while not children.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child = int(children.read_text())
    parent.kill()
    parent.wait()
    while Path(f"/proc/{child}").exists():
        if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_status_of_a_job_is_that_of_its_module(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert run_module(["training.train", "cartpol"], log) == 2
    assert "did you mean 'cartpole'" in log.read_text()


def test_functions_run_in_other_processes() -> None:
    with processes(1) as submit:
        assert submit(os.getpid).result() != os.getpid()


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """A cluster of this machine; starting one takes seconds, so both tests join it."""
    pytest.importorskip("ray")
    with cluster("local"):
        yield "local"


def test_ray_makes_the_same_bytes(tmp_path: Path, ray_address: str) -> None:
    settings = Settings("cartpole", trajectories=4, steps=6, shard_size=2, seed=3)
    collect(settings, tmp_path / "here")
    collect(settings, tmp_path / "there", ray=ray_address)
    here, there = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("here", "there")
    )
    assert here == there


def test_ray_runs_cells_and_goes_on(tmp_path: Path, unevaluated: None, ray_address: str) -> None:
    assert main(command(tmp_path, "--ray", ray_address)) == 0
    times = [checkpoint(tmp_path, cell).stat().st_mtime_ns for cell in (CONTINUOUS, DISCRETE)]
    assert main(command(tmp_path)) == 0
    assert times == [
        checkpoint(tmp_path, cell).stat().st_mtime_ns for cell in (CONTINUOUS, DISCRETE)
    ]


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"piwm-gym\[cluster\]"), cluster("auto"):
        pass
    assert main(command(tmp_path, "--ray", "auto")) == 2
