"""Films: exact number, size and rate of the pictures; nothing resampled, nothing half-written."""

import re
import subprocess
from pathlib import Path
from typing import Any

import gymnasium as gym
import imageio_ffmpeg  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import pytest
from PIL import Image

from piwm_gym.video import (
    contact_sheet,
    record,
    side_by_side,
    tile,
    upscale,
    write_video,
)


def moving_square(count: int, height: int = 64, width: int = 64) -> np.ndarray:
    frames = np.full((count, height, width, 3), 255, dtype=np.uint8)
    for t in range(count):
        frames[t, 20:40, t : t + 20] = (200, 150, 100)
    return frames


def read_mp4(path: Path) -> tuple[np.ndarray, float]:
    """Frames and rate of an mp4."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo"]
    command += ["-pix_fmt", "rgb24", "-fps_mode", "passthrough", "-"]
    result = subprocess.run(command, capture_output=True, check=True)
    found = re.search(r"Video: h264.* (\d+)x(\d+)[, ].* ([\d.]+) fps", result.stderr.decode())
    assert found is not None
    width, height = int(found[1]), int(found[2])
    frames = np.frombuffer(result.stdout, np.uint8).reshape(-1, height, width, 3)
    return frames, float(found[3])


def read_gif(path: Path) -> tuple[np.ndarray, list[int]]:
    """Frames of a gif and how long each is shown, ms."""
    frames, delays = [], []
    with Image.open(path) as image:
        for i in range(getattr(image, "n_frames", 1)):
            image.seek(i)
            frames.append(np.asarray(image.convert("RGB")))
            delays.append(image.info["duration"])
    return np.stack(frames), delays


def test_mp4_has_every_frame_at_its_rate(tmp_path: Path) -> None:
    frames = moving_square(26)
    assert write_video(frames, tmp_path / "a.mp4", fps=50) == tmp_path / "a.mp4"
    film, fps = read_mp4(tmp_path / "a.mp4")
    assert film.shape == (26, 256, 256, 3)
    assert fps == 50
    error = np.abs(film.astype(int) - upscale(frames, 4).astype(int))
    assert np.median(error) <= 2
    assert error.mean() < 2


def test_gif_is_exact(tmp_path: Path) -> None:
    frames = moving_square(12)
    write_video(frames, tmp_path / "a.gif", fps=50, scale=2)
    film, delays = read_gif(tmp_path / "a.gif")
    assert np.array_equal(film, upscale(frames, 2))
    assert delays == [20] * 12


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_repeated_frames_keep_their_count(suffix: str, tmp_path: Path) -> None:
    frames = moving_square(4).repeat(5, axis=0)
    write_video(frames, tmp_path / f"a{suffix}", fps=20)
    film, _ = (read_mp4 if suffix == ".mp4" else read_gif)(tmp_path / f"a{suffix}")
    assert len(film) == 20


@pytest.mark.parametrize(
    ("scale", "size"), [(None, (260, 252)), (1, (66, 64)), (2, (130, 126)), (3, (196, 190))]
)
def test_odd_sizes_are_not_resampled(
    scale: int | None, size: tuple[int, int], tmp_path: Path
) -> None:
    frames = moving_square(3, 65, 63)
    write_video(frames, tmp_path / "a.mp4", fps=10, scale=scale)
    film, _ = read_mp4(tmp_path / "a.mp4")
    assert film.shape == (3, *size, 3)
    factor = scale or 4
    expected = upscale(frames, factor).astype(int)
    assert np.abs(film[:, : 65 * factor, : 63 * factor] - expected).mean() < 4
    write_video(frames, tmp_path / "a.gif", fps=10, scale=scale)
    assert np.array_equal(read_gif(tmp_path / "a.gif")[0], expected)


@pytest.mark.parametrize(("fps", "delay"), [(50, 20), (60, 20), (30, 30), (20, 50), (7, 140)])
def test_gif_rates(fps: float, delay: int, tmp_path: Path) -> None:
    write_video(moving_square(3), tmp_path / "a.gif", fps)
    assert read_gif(tmp_path / "a.gif")[1] == [delay] * 3


def test_overwrites_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.mp4"
    write_video(moving_square(3), path, fps=10)
    before = path.read_bytes()

    with pytest.raises(ValueError, match=r"expected uint8 \(T, H, W, 3\)"):
        write_video(moving_square(3).astype(np.float32), path, fps=10)
    with pytest.raises(ValueError, match=r"scale is 1.5; expected a positive integer"):
        write_video(moving_square(3), path, fps=10, scale=1.5)  # type: ignore[arg-type]
    assert path.read_bytes() == before
    write_video(moving_square(5), path, fps=10)
    assert len(read_mp4(path)[0]) == 5
    assert [p.name for p in path.parent.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": "a.avi"}, r"ends in .mp4 or .gif"),
        ({"fps": 0}, "positive number of pictures per second"),
        ({"fps": float("nan")}, "positive number of pictures per second"),
        ({"frames": moving_square(0)}, r"shape \(0, 64, 64, 3\)"),
        ({"frames": moving_square(1)[0]}, r"shape \(64, 64, 3\)"),
        ({"frames": np.zeros((2, 3, 64, 64), np.uint8)}, r"shape \(2, 3, 64, 64\)"),
    ],
)
def test_refuses(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"frames": moving_square(2), "path": "a.mp4", "fps": 10} | change
    arguments["path"] = tmp_path / arguments["path"]
    with pytest.raises(ValueError, match=message):
        write_video(**arguments)
    assert not list(tmp_path.iterdir())


def test_tile_and_contact_sheet() -> None:
    frames = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((1, 4, 6, 3), np.uint8)
    sheet = tile(frames, columns=3, gap=1)
    assert sheet.shape == (2 * 4 + 1, 3 * 6 + 2, 3)
    assert (sheet[:4, 7:13] == 1).all()
    assert (sheet[5:, :6] == 3).all()
    assert (sheet[4] == 128).all()
    assert (sheet[5:, 14:] == 128).all()
    assert np.array_equal(tile(np.stack([frames, frames]), columns=3, gap=1)[1], sheet)
    assert np.array_equal(contact_sheet(frames, columns=2, every=2), tile(frames[[0, 2, 4]], 2))
    with pytest.raises(ValueError, match="columns is 0"):
        tile(frames, columns=0)


def test_side_by_side() -> None:
    real, imagined = moving_square(3), moving_square(3)[::-1]
    pair = side_by_side(real, imagined, scale=4)
    assert pair.shape == (3, 24 + 256, 4 * 130, 3)
    assert np.array_equal(pair[:, 24:, :256], upscale(real, 4))
    assert np.array_equal(pair[:, 24:, -256:], upscale(imagined, 4))
    assert pair[:, :24].min() == 0, "captions are drawn"
    with pytest.raises(ValueError, match="the films differ"):
        side_by_side(real, imagined[:2])


def test_two_recordings_are_two_files(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    for name in ("a", "b"):
        frames = record(env, tmp_path / f"{name}.mp4", steps=4, seed=0)
        film, fps = read_mp4(tmp_path / f"{name}.mp4")
        assert len(film) == len(frames) == 5
        assert film.shape == frames.shape
        assert fps == 50
    env.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_recording_ends_with_the_episode(tmp_path: Path) -> None:
    env = gym.make("CartPole-v1", render_mode="rgb_array", max_episode_steps=3)
    assert len(record(env, tmp_path / "a.gif", policy=lambda obs: 1, seed=0)) == 4
    env.close()
    with pytest.raises(ValueError, match="render_mode=None; expected 'rgb_array'"):
        record(gym.make("CartPole-v1"), tmp_path / "b.gif")


def test_record_a_vector_environment(tmp_path: Path) -> None:
    envs = gym.make_vec("CartPole-v1", 5, "sync", render_mode="rgb_array")
    frames = record(envs, tmp_path / "a.mp4", steps=3, seed=0, columns=3)
    envs.close()
    assert frames.shape == (4, 2 * 400 + 2, 3 * 600 + 4, 3)
    assert len(read_mp4(tmp_path / "a.mp4")[0]) == 4


def test_imagined_environments_are_filmed_too(checkpoint: str, tmp_path: Path) -> None:
    ours: dict[str, Any] = {"checkpoint": checkpoint, "render_mode": "rgb_array"}
    env = gym.make("PIWM-CartPole-v0", **ours)
    frames = record(env, tmp_path / "one.mp4", steps=4, seed=0)
    film, fps = read_mp4(tmp_path / "one.mp4")
    assert frames.shape == (5, 64, 64, 3)
    assert film.shape == (5, 256, 256, 3)
    assert fps == 50
    env.close()
    envs = gym.make_vec("PIWM-CartPole-v0", 6, **ours)
    frames = record(envs, tmp_path / "six.mp4", steps=4, seed=0, columns=3)
    assert frames.shape == (5, 2 * 64 + 2, 3 * 64 + 4, 3)
    assert len(read_mp4(tmp_path / "six.mp4")[0]) == 5
    same = record(envs, tmp_path / "grid.mp4", steps=4, seed=0, grid=(2, 3))
    assert np.array_equal(same, frames)
    pair = record(envs, tmp_path / "pair.gif", steps=4, seed=0, grid=(2, 1))
    assert pair.shape == (5, 2 * 64 + 2, 64, 3)
    assert np.array_equal(pair[:, :64], frames[:, :64, :64])
    assert np.array_equal(pair[:, 66:], frames[:, :64, 66:130])
    for grid, message in (
        ((2, 4), r"grid is \(2, 4\), 8 places; expected at most 6"),
        ((0, 3), r"grid is \(0, 3\); expected \(rows, columns\)"),
        ((2, 1.5), r"grid is \(2, 1.5\); expected"),
        (6, "grid is 6; expected"),
    ):
        with pytest.raises(ValueError, match=message):
            record(envs, tmp_path / "no.mp4", grid=grid)  # type: ignore[arg-type]
    assert not (tmp_path / "no.mp4").exists()
    envs.close()
