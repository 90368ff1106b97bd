"""Every example runs as a user would run it, with tiny settings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = {
    "imagined_rollout.py": (["--horizon", "5"], "error of theta_dot at the end"),
    "change_physics.py": (["--steps", "5"], "of 5 in CartPole-v1"),
    "state_from_frames.py": (["--frames", "4"], "theta_dot"),
    "cem_planning.py": (["--steps", "5"], "of 5 steps"),
    "ppo_in_the_model.py": (
        ["--steps", "256", "--episodes", "1", "--num-envs", "2"],
        "real return",
    ),
    "land_in_the_model.py": (
        ["--steps", "256", "--episodes", "1", "--num-envs", "2"],
        "real return",
    ),
    "follow_by_camera.py": (["--steps", "11"], "(truth)"),
    "drive_in_the_model.py": (
        ["--steps", "256", "--num-envs", "2", "--max-steps", "20"],
        "m from the path",
    ),
}


def test_all_examples_are_listed_and_short() -> None:
    found = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
    assert found == sorted(EXAMPLES)
    for name in found:
        assert len((ROOT / "examples" / name).read_text().splitlines()) < 60, name


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(
    name: str, checkpoint: str, lander_checkpoint: str, car_checkpoint: str, tmp_path: Path
) -> None:
    arguments, expected = EXAMPLES[name]
    others = {"land_in_the_model.py": lander_checkpoint, "drive_in_the_model.py": car_checkpoint}
    others["follow_by_camera.py"] = lander_checkpoint
    weights = others.get(name, checkpoint)
    command = [sys.executable, str(ROOT / "examples" / name), "--checkpoint", weights]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        command + arguments, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert expected in result.stdout
    films = sorted(path.suffix for path in (tmp_path / "videos").glob("*"))
    assert films in ([], [".gif", ".mp4"])


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("cem_planning.py", ["--steps", "0"], "balanced after 0 of 0 steps"),
        ("state_from_frames.py", ["--frames", "200"], "theta_dot"),  # of episodes of a few dozen
    ],
)
def test_examples_of_extreme_lengths_end_well(
    name: str, arguments: list[str], expected: str, checkpoint: str
) -> None:
    command = [sys.executable, str(ROOT / "examples" / name)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [*command, "--checkpoint", checkpoint, *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert expected in result.stdout
