"""The command line: films and tables from a checkpoint, mistakes explained without traceback."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from piwm_gym import __version__
from piwm_gym.checkpoint import load, save
from piwm_gym.cli import main
from piwm_gym.registration import DEFAULT_VARIANT
from piwm_gym.systems import CartPole, LunarLander
from piwm_gym.world_model import WorldModel

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")


def test_rollout(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["rollout", "--checkpoint", checkpoint, "--output", str(tmp_path)]
    assert main([*arguments, "--horizon", "12", "--context", "4", "--episodes", "2"]) == 0
    out = capsys.readouterr().out
    assert "pole_mass_fraction" in out
    assert "(rad/s)" in out
    assert "13 frames, 520 x 280 pixels" in out
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {f"cartpole-{DEFAULT_VARIANT}{end}" for end in (".mp4", ".gif")}


def test_info(model: WorldModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(model, tmp_path / "m.safetensors", {"results": {"pole_error": 0.125, "seeds": [3]}})
    assert main(["info", "--checkpoint", str(tmp_path / "m.safetensors")]) == 0
    out = capsys.readouterr().out
    for text in (
        "force_per_mass",
        "results.pole_error",
        "0.125",
        "[3]",
        "autoencoder.transformer.width",
    ):
        assert text in out


@pytest.mark.parametrize("native", [True, False])
def test_state(
    native: bool, checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = CartPole().frame.native if native else CartPole().frame.size
    frames = np.full((5, *size, 3), 255, dtype=np.uint8)
    np.savez(tmp_path / "window.npz", frames=frames, actions=np.array([0, 1, 1, 0]))
    assert main(["state", str(tmp_path / "window.npz"), "--checkpoint", checkpoint]) == 0
    out = capsys.readouterr().out
    assert "State at frame 4" in out
    assert "rad/s" in out
    assert "these numbers are guesses" in out


def test_state_of_frames_that_show_the_system(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = load(device="cpu")
    frames = model.draw(torch.zeros(3, 4)).numpy()
    np.savez(tmp_path / "window.npz", frames=frames, actions=np.array([0, 1]))
    assert main(["state", str(tmp_path / "window.npz")]) == 0
    assert "guesses" not in capsys.readouterr().out


WINDOW = np.zeros((3, 64, 64, 3), dtype=np.uint8)


def test_mistakes_are_explained(
    checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "empty.npz", pictures=np.zeros(3))
    (tmp_path / "text.npz").write_text("frames")
    frames = np.zeros((1, 64, 64, 3), dtype=np.uint8)
    np.savez(tmp_path / "short.npz", frames=frames, actions=np.zeros(0))
    for name, frames, actions in (
        ("seven", WINDOW, np.array([0, 7])),
        ("words", WINDOW, np.array(["left", "right"])),
        ("few", WINDOW, np.array([0])),
        ("floats", WINDOW.astype(float), np.array([0, 1])),
        ("small", WINDOW[:, :32], np.array([0, 1])),
    ):
        np.savez(tmp_path / f"{name}.npz", frames=frames, actions=actions)
    ours = ["--checkpoint", checkpoint]
    for arguments, message in [
        (["info", "--checkpoint", str(tmp_path / "no.safetensors")], "does not exist"),
        (["info", "--env-id", "PIWM-CartPole-v7"], "did you mean 'PIWM-CartPole-v0'"),
        (["rollout", *ours, "--episodes", "0"], "episodes is 0"),
        (["rollout", *ours, "--context", "1", "--horizon", "5"], "context is 1 frames"),
        (["rollout", *ours, "--horizon", "0"], "horizon is 0; expected a whole number, 1 or more"),
        (["rollout", *ours, "--horizon", "-5"], "horizon is -5"),
        (["rollout", *ours, "--seed", "-1"], "seed is -1; expected a whole number, 0 or more"),
        (["rollout", *ours, "--output", "/dev/null/x"], "output: nothing can be written to"),
        (
            ["rollout", *ours, "--output", str(tmp_path / "text.npz")],
            "(File exists); expected a folder",
        ),
        (["state", str(tmp_path / "none.npz"), *ours], "is not a file"),
        (["state", str(tmp_path / "text.npz"), *ours], "cannot be read"),
        (["state", str(tmp_path / "empty.npz"), *ours], "has no array"),
        (["state", str(tmp_path / "short.npz"), *ours], "T >= 2"),
        (["state", str(tmp_path / "seven.npz"), *ours], "action of time step 1 is 7"),
        (["state", str(tmp_path / "words.npz"), *ours], "expected an integer from 0 to 1"),
        (["state", str(tmp_path / "few.npz"), *ours], "action has shape (1,)"),
        (["state", str(tmp_path / "floats.npz"), *ours], "type float64"),
        (["state", str(tmp_path / "small.npz"), *ours], "frames has shape (1, 3, 32, 64, 3)"),
    ]:
        assert main(arguments) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith("error: ")
        assert message in captured.err
        assert "Traceback" not in captured.err
        assert not captured.out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"piwm-gym {__version__}\n"


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["rollout", "--help"])
    assert caught.value.code == 0
    assert "Steps to imagine" in capsys.readouterr().out
    assert gym.registry["PIWM-CartPole-v0"]


@pytest.fixture
def lander(lander_checkpoint: str) -> list[str]:
    """Arguments that name a tiny checkpoint of a system with a scene."""
    return ["--env-id", "PIWM-LunarLander-v0", "--checkpoint", lander_checkpoint]


def test_rollout_of_a_system_with_a_scene(
    lander: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "films"
    arguments = ["rollout", *lander, "--output", str(folder), "--episodes", "2"]
    assert main([*arguments, "--horizon", "5", "--context", "4"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "6 frames, 776 x 280 pixels" in out
    assert "The scene's error is" in out
    assert "crashed" not in out
    assert {path.suffix for path in folder.iterdir()} == {".mp4", ".gif"}


def test_state_of_a_system_with_a_scene(
    lander: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = np.zeros((3, *LunarLander().frame.native, 3), dtype=np.uint8)
    np.savez(tmp_path / "window.npz", frames=frames, actions=np.array([0, 2]))
    assert main(["state", str(tmp_path / "window.npz"), *lander]) == 0
    out = capsys.readouterr().out
    assert "contact_left" in out
    assert "height_10" in out
