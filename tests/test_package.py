"""The built wheel works from an empty folder, weights included."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

SCRIPT = """
import sys
import gymnasium as gym
import piwm_gym
from piwm_gym.models import VARIANTS

assert piwm_gym.__file__.startswith(sys.argv[1]), piwm_gym.__file__
envs = [gym.make("PIWM-CartPole-v0", variant=variant) for variant in VARIANTS]
for env in (*envs, gym.make("PIWM-LunarLander-v0")):
    observation, info = env.reset(seed=0)
    observation, *_ = env.step(1)
    assert observation in env.observation_space
"""


def test_the_wheel_works_from_an_empty_folder(tmp_path: Path) -> None:
    wheels, site, empty = (tmp_path / name for name in ("wheels", "site", "empty"))
    empty.mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", str(ROOT), "--no-deps", "--no-build-isolation", "-w", str(wheels)]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = wheels.glob("*.whl")
    install = ["install", str(wheel), "--no-deps", "--no-compile", "--target", str(site)]
    subprocess.run([*pip, *install], check=True)
    assert not (site / "training").exists()
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(site)]
    subprocess.run(command, check=True, cwd=empty, env=environment)
